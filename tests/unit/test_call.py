"""A call by hand: how its method is found, its JSON becomes bytes, and its answer JSON without secrets."""

import io
import json
from pathlib import Path

import click
import pytest

from cli.operators.call import encode_request, find_method, secrets_in, show
from common.csi import csi_pb2
from common.csi.methods import METHODS

CREATE = "/csi.v1.Controller/CreateVolume"
PUBLISH = "/csi.v1.Controller/ControllerPublishVolume"


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_found_by_its_name_with_its_service_and_by_its_path(method: str) -> None:
    name = method.rpartition("/")[2]
    assert find_method(method) == method
    assert find_method(method.removeprefix("/csi.v1.")) == method
    assert find_method(name) == method


def test_a_path_that_csi_does_not_know_is_sent_as_it_is() -> None:
    assert find_method("/csi.v1.Controller/Imagined") == "/csi.v1.Controller/Imagined"


@pytest.mark.parametrize("name", ["", "Createvolume", "Volume", "Node/CreateVolume", "/csi.v0.Controller/CreateVolume"])
def test_what_is_no_method_says_how_to_write_one(name: str) -> None:
    with pytest.raises(click.BadParameter, match=r"no CSI method is called .*; a whole path, /csi\.v1"):
        find_method(name)


@pytest.mark.parametrize("text", ["{}", "", " {} "])
def test_an_empty_request_is_no_bytes(text: str) -> None:
    assert encode_request(CREATE, text) == b""
    assert encode_request("/csi.v1.Controller/Imagined", text) == b""


@pytest.mark.parametrize("field", ["capacity_range", "capacityRange"])
def test_json_becomes_the_requests_bytes_in_both_spellings(field: str) -> None:
    text = json.dumps({"name": "pvc-1", field: {"required_bytes": "1073741824"}, "secrets": {"a": "b"}})
    wanted = csi_pb2.CreateVolumeRequest(name="pvc-1", capacity_range={"required_bytes": 1 << 30}, secrets={"a": "b"})
    assert csi_pb2.CreateVolumeRequest.FromString(encode_request(CREATE, text)) == wanted


def test_a_request_is_read_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "request.json").write_text('{"name": "größe"}')
    assert encode_request(CREATE, f"@{tmp_path / 'request.json'}") == b"\n\x07gr\xc3\xb6\xc3\x9fe"
    monkeypatch.setattr("sys.stdin", io.StringIO('{"name": "a"}'))
    assert encode_request(CREATE, "-") == b"\n\x01a"


def test_a_file_that_is_not_there_or_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(click.BadParameter, match=f"cannot read the request: .*{tmp_path / 'none'}"):
        encode_request(CREATE, f"@{tmp_path / 'none'}")
    with pytest.raises(click.BadParameter, match="cannot read the request"):
        encode_request(CREATE, f"@{tmp_path / 'bytes'}")


@pytest.mark.parametrize("text", ["{", "7", '{"nam": "a"}', '{"name": 7}', '{"capacity_range": "much"}', "name"])
def test_what_is_no_request_names_the_message(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a CreateVolumeRequest"):
        encode_request(CREATE, text)


def test_of_a_method_that_csi_does_not_know_only_an_empty_request_can_be_written() -> None:
    with pytest.raises(click.BadParameter, match="only an empty request can be sent"):
        encode_request("/csi.v1.Controller/Imagined", '{"a": 1}')


def test_an_answer_is_shown_as_json_over_several_lines() -> None:
    answer = csi_pb2.CreateVolumeResponse(volume={"volume_id": "v1", "capacity_bytes": 7}).SerializeToString()
    shown = show(METHODS[CREATE], answer)
    assert json.loads(shown) == {"volume": {"volume_id": "v1", "capacity_bytes": "7"}}
    assert "\n" in shown


def test_an_answer_is_shown_without_secrets() -> None:
    answer = csi_pb2.ControllerPublishVolumeResponse(publish_context={"chap": "hunter2"}).SerializeToString()
    assert "hunter2" not in show(METHODS[PUBLISH], answer)


def test_each_message_of_a_stream_is_one_line() -> None:
    method = METHODS["/csi.v1.SnapshotMetadata/GetMetadataAllocated"]
    answer = csi_pb2.GetMetadataAllocatedResponse(volume_capacity_bytes=7).SerializeToString()
    assert "\n" not in show(method, answer)


def test_an_answer_that_nobody_can_read_is_shown_in_base64() -> None:
    assert json.loads(show(None, b"\xff\x00")) == {"base64": "/wA="}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (CREATE, '{"name": "pvc-1", "secrets": {"password": "hunter2"}}'),
        (CREATE, '{"volume_capabilities": [{"mount": {"mount_flags": ["password=hunter2"]}}]}'),
        (PUBLISH, '{"volume_id": "v", "secrets": {"password": "hunter2"}}'),
    ],
)
def test_secrets_on_the_command_line_are_warned_of(path: str, text: str) -> None:
    warning = secrets_in(path, text, encode_request(path, text))
    assert warning.startswith("warning: other users see the secrets of this request in the process list")
    assert "@FILE" in warning
    assert "hunter2" not in warning


@pytest.mark.parametrize("path", [CREATE, "/csi.v1.Controller/Imagined"])
def test_a_request_without_secrets_is_not_warned_of(path: str) -> None:
    assert secrets_in(path, "{}", encode_request(path, "{}")) == ""
