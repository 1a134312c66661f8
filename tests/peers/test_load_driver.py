"""The load generator's driver mounts in earnest, says so in its log, and does nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from common.csi import csi_pb2 as pb
from common.status import Code
from tests.integration.testdriver.support import needs_mounts
from tests.kit.leftovers import mounts_below
from tests.kit.processes import listens_on
from tests.kit.sidecar import Sidecar
from tests.kit.testdriver.call_log import read_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.kit.processes import Supervisor

CAPABILITY = pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume(), access_mode={"mode": "SINGLE_NODE_WRITER"})


@pytest.fixture
def driver(short_dir: Path, supervisor: Supervisor, peer: Callable[[str], Path]) -> Iterator[Sidecar]:
    socket = short_dir / "d.sock"
    flags = [f"--mounts={short_dir / 'volumes'}", f"--call-log={short_dir / 'calls.jsonl'}"]
    command = [peer("loadgen"), "serve", f"--endpoint=unix://{socket}", *flags]
    supervisor.start("load driver", command, ready=lambda: listens_on(socket))
    with Sidecar(socket) as sidecar:
        yield sidecar


@needs_mounts
def test_a_volume_is_staged_published_measured_and_taken_down_again(short_dir: Path, driver: Sidecar) -> None:
    staging, target = short_dir / "staging", short_dir / "target"
    staging.mkdir()
    up: list[tuple[str, Message]] = [
        (
            "NodeStageVolume",
            pb.NodeStageVolumeRequest(volume_id="v", staging_target_path=str(staging), volume_capability=CAPABILITY),
        ),
        (
            "NodePublishVolume",
            pb.NodePublishVolumeRequest(
                volume_id="v",
                staging_target_path=str(staging),
                target_path=str(target),
                volume_capability=CAPABILITY,
            ),
        ),
    ]
    down: list[tuple[str, Message]] = [
        ("NodeUnpublishVolume", pb.NodeUnpublishVolumeRequest(volume_id="v", target_path=str(target))),
        ("NodeUnstageVolume", pb.NodeUnstageVolumeRequest(volume_id="v", staging_target_path=str(staging))),
    ]
    for method, request in [*up, *up]:
        assert driver.call(method, request).ok
    assert sorted(map(str, mounts_below(short_dir))) == [str(staging), str(target)]
    (target / "file").write_text("data")
    assert (staging / "file").read_text() == "data"
    stats = driver.call("NodeGetVolumeStats", pb.NodeGetVolumeStatsRequest(volume_id="v", volume_path=str(target)))
    assert stats.answer.usage[0].total > 0

    for method, request in [*down, *down]:
        assert driver.call(method, request).ok
    assert list(mounts_below(short_dir)) == []
    assert not target.exists()
    assert (short_dir / "volumes" / "v" / "file").read_text() == "data"

    calls = read_calls(short_dir / "calls.jsonl")
    assert [call.method for call in calls] == [
        *[method for method, _ in [*up, *up]],
        "NodeGetVolumeStats",
        *[method for method, _ in [*down, *down]],
    ]
    assert all(call.code == "OK" and call.end is not None and call.end >= call.start for call in calls)


def test_with_attach_a_volume_is_published_to_a_node_first_and_the_driver_says_so(
    short_dir: Path, supervisor: Supervisor, peer: Callable[[str], Path]
) -> None:
    socket = short_dir / "a.sock"
    command = [peer("loadgen"), "serve", f"--endpoint=unix://{socket}", "--attach"]
    supervisor.start("attaching driver", command, ready=lambda: listens_on(socket))

    with Sidecar(socket) as sidecar:
        kinds = [it.rpc.type for it in sidecar.call("ControllerGetCapabilities").answer.capabilities]
        assert pb.ControllerServiceCapability.RPC.PUBLISH_UNPUBLISH_VOLUME in kinds
        assert sidecar.call("ControllerPublishVolume", pb.ControllerPublishVolumeRequest(volume_id="v")).ok
        assert sidecar.call("ControllerUnpublishVolume", pb.ControllerUnpublishVolumeRequest(volume_id="v")).ok


def test_what_is_refused_is_in_the_log_by_its_code(short_dir: Path, driver: Sidecar) -> None:
    gone = pb.NodeGetVolumeStatsRequest(volume_id="v", volume_path="/nowhere")

    assert driver.call("NodeGetVolumeStats", gone).refusal[0] == Code.NOT_FOUND
    (call,) = read_calls(short_dir / "calls.jsonl")
    assert (call.code, call.fields) == ("NOT_FOUND", {"volume_id": "v"})
