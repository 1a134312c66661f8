"""The call log holds names, ids and ends, and no secret."""

from pathlib import Path

import pytest

from common.csi import csi_pb2 as pb
from tests.kit.testdriver.call_log import CallLog, made, read_calls


def test_a_call_is_read_back_with_its_names_its_answers_id_and_its_code(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "calls")
    answer = pb.CreateVolumeResponse(volume=pb.Volume(volume_id="vol-1"))

    with log.noting("CreateVolume", pb.CreateVolumeRequest(name="pvc-1")) as call:
        call.fields.update(made(answer))
        call.code = "OK"
    log.close()

    [read] = read_calls(tmp_path / "calls")
    assert (read.method, read.fields, read.code) == ("CreateVolume", {"name": "pvc-1", "volume_id": "vol-1"}, "OK")
    assert read.end is not None
    assert read.start <= read.end


def test_a_call_that_never_ended_is_there_without_an_end(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "calls")
    noting = log.noting("Probe", pb.ProbeRequest())
    noting.__enter__()
    log.close()

    [read] = read_calls(tmp_path / "calls")

    assert (read.end, read.code) == (None, "")
    with pytest.raises(OSError, match="Bad file descriptor"):
        noting.__exit__(None, None, None)


def test_neither_secrets_nor_parameters_nor_contexts_are_written(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "calls")
    request = pb.NodePublishVolumeRequest(
        volume_id="vol-1",
        target_path="/t",
        secrets={"k": "s3cret"},
        volume_context={"k": "s3cret"},
        publish_context={"k": "s3cret"},
        volume_capability=pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume(mount_flags=["s3cret"])),
    )

    with log.noting("NodePublishVolume", request):
        pass
    log.close()

    text = (tmp_path / "calls").read_text()
    assert "s3cret" not in text
    assert '"target_path": "/t"' in text
