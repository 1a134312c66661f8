"""What becomes of a kubelet's call while the agent reads its record of direct volumes."""

import asyncio
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.csi import csi_pb2 as csi
from common.errors import CallError
from common.observe.metrics import Metrics
from edge.beside import direct_calls
from edge.beside.direct_calls import DirectCalls
from edge.csi_volume_plugin import VolumePlugin
from edge.volume_errors import NotReady
from edge.wanted.states import VolumeStates
from tests.kit.agent_settings import agent_settings

UNSTAGE = "/csi.v1.Node/NodeUnstageVolume"
ORDINARY = csi.NodeUnstageVolumeRequest(volume_id="v").SerializeToString()


async def test_a_caller_that_leaves_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(directory: Path, *, durable: bool) -> VolumeStates:
        reading.set()
        assert go_on.wait(10)
        return VolumeStates(directory, durable=durable)

    monkeypatch.setattr(direct_calls, "VolumeStates", slow)
    calls = DirectCalls(agent_settings(tmp_path, own=False), Metrics(), Mock())
    leaving = asyncio.ensure_future(calls.answer("d", UNSTAGE, ORDINARY))
    assert await asyncio.to_thread(reading.wait, 10)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go_on.set()
    assert await calls.answer("d", UNSTAGE, ORDINARY) is None
    await calls.close()


async def test_a_disk_that_cannot_be_read_once_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = DirectCalls(agent_settings(tmp_path, own=False), Metrics(), Mock())
    with monkeypatch.context() as broken:
        broken.setattr(VolumePlugin, "scan", Mock(side_effect=NotReady("the disk cannot be read")))
        with pytest.raises(CallError, match="cannot be read"):
            await calls.answer("d", UNSTAGE, ORDINARY)
    assert await calls.answer("d", UNSTAGE, ORDINARY) is None
    await calls.close()
