"""A vol_data.json is the kubelet's byte for byte, and nothing in it is guessed."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.disk.volume_data import VolumeData, VolumeDataUnknown, of_staging, of_target, parse
from edge.volumes import Pod, PodVolume, Volume

VOLUME = Volume(driver="d.csi", handle="vol-1", name="pv1")
POD = Pod(uid="u1", namespace="default", name="web")
WANTED = PodVolume(pod=POD, volume=VOLUME, volume_name="data")


def test_the_file_of_a_staging_names_handle_and_driver() -> None:
    assert of_staging(WANTED).encode() == b'{"driverName":"d.csi","volumeHandle":"vol-1"}\n'


def test_the_file_of_a_staging_keeps_the_selinux_context() -> None:
    want = replace(WANTED, selinux_context="system_u:object_r:t:s0:c1,c2")
    written = json.loads(of_staging(want).encode())
    assert written["seLinuxMountContext"] == "system_u:object_r:t:s0:c1,c2"


def test_the_file_of_a_target_has_the_kubelets_keys_in_gos_order() -> None:
    raw = of_target(WANTED, "n1").encode()
    written = json.loads(raw)
    assert list(written) == [
        "attachmentID",
        "driverName",
        "nodeName",
        "specVolID",
        "volumeHandle",
        "volumeLifecycleMode",
    ]
    assert written["volumeLifecycleMode"] == "Persistent"
    assert written["attachmentID"].startswith("csi-")
    assert raw.endswith(b"}\n")


def test_characters_that_go_escapes_are_escaped() -> None:
    data = VolumeData(driver="d.csi", handle="<a&b>\u2028é")
    assert data.encode() == b'{"driverName":"d.csi","volumeHandle":"\\u003ca\\u0026b\\u003e\\u2028\xc3\xa9"}\n'


def test_keys_of_a_newer_kubelet_are_ignored() -> None:
    raw = b'{"driverName":"d","volumeHandle":"h","newer":{"a":1},"alsoNewer":3}'
    assert parse(raw) == VolumeData(driver="d", handle="h")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "has no driverName"),
        (b'{"driverName":"d"}', "has no volumeHandle"),
        (b'{"driverName":"d","volumeHandle":7}', "volumeHandle is not a string"),
        (b'{"driverName":"d","volumeHandle":"h","nodeName":null}', "nodeName is not a string"),
        (rb'{"driverName":"d","volumeHandle":"\ud800"}', "volumeHandle is not text"),
        (rb'{"driverName":"d","volumeHandle":"h","specVolID":"\udfff\ud83d"}', "specVolID is not text"),
    ],
)
def test_what_does_not_tell_its_volume_is_unknown_and_says_why(raw: bytes, why: str) -> None:
    with pytest.raises(VolumeDataUnknown, match=why):
        parse(raw)


@given(st.binary(max_size=200))
def test_no_content_does_more_than_be_unknown(raw: bytes) -> None:
    with contextlib.suppress(VolumeDataUnknown):
        parse(raw)


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_what_was_read_can_be_written(handle: str) -> None:
    with contextlib.suppress(VolumeDataUnknown):
        assert parse(parse(json.dumps({"driverName": "d", "volumeHandle": handle}).encode()).encode()).handle == handle


@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_what_is_written_can_be_read(driver: str, handle: str, name: str) -> None:
    data = VolumeData(driver=driver, handle=handle, name=name)
    try:
        raw = data.encode()
    except UnicodeEncodeError:
        return  # lone surrogates: no object of Kubernetes holds any
    assert parse(raw) == data
