"""What becomes of a kubelet's call while the agent reads its record of direct volumes, or if the hub contradicts it."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from common.csi import csi_pb2 as csi
from common.csi.volume_context import DIRECT_VOLUME
from common.errors import CallError
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sync_messages import put
from common.observe.metrics import Metrics
from common.status import Code
from edge.beside import direct_calls
from edge.beside.direct_calls import DirectCalls
from edge.csi_volume_plugin import VolumePlugin
from edge.disk.layout import Layout
from edge.disk.runtimes import direct_runtime
from edge.stores.former_state import DIRECT
from edge.stores.metastore import Metastore
from edge.volume_errors import NotReady
from edge.wanted.states import Publication, State, VolumeStates
from tests.kit.agent_settings import agent_settings
from tests.kit.edge_volumes import DRIVER, persistent_claim, persistent_volume, pod
from tests.kit.node_driver import ScriptedDriver

UNSTAGE = "/csi.v1.Node/NodeUnstageVolume"
ASKED: dict[str, Any] = {"volume_id": "h-data", "volume_context": {DIRECT_VOLUME: "true"}}
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


async def test_a_target_that_is_not_named_as_the_hubs_pv_is_refused_and_nothing_is_begun(tmp_path: Path) -> None:
    calls, driver = await _told(tmp_path)
    stage = csi.NodeStageVolumeRequest(**ASKED, staging_target_path=str(tmp_path / "root/staging"))
    assert await calls.answer(DRIVER, "/csi.v1.Node/NodeStageVolume", stage.SerializeToString()) == b""
    # Two PVs have this handle. The kubelet's pod has the one, and the hub's pod of the same uid the other.
    target = Layout(tmp_path / "root").target("web-uid", "pv-other")
    publish = csi.NodePublishVolumeRequest(**ASKED, target_path=str(target))
    with pytest.raises(CallError, match=r"the pod's volume .*h-data is PV pv-data, not pv-other") as refused:
        await calls.answer(DRIVER, "/csi.v1.Node/NodePublishVolume", publish.SerializeToString())
    await calls.close()
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert driver.methods == ["Stage"]
    assert not target.parent.exists()
    states = VolumeStates(tmp_path / "state" / DIRECT)
    assert [(type(row).__name__, row.state) for row in states.rows()] == [("Device", State.DONE)]
    await states.close()


async def test_the_secret_of_a_kubelets_expansion_reaches_the_driver(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path / "state" / DIRECT)
    await states.put(Publication(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid", block=True))
    await states.close()
    layout = Layout(tmp_path / "root")
    device = Layout(layout.beside_kubelet).block_target("pv-data", "web-uid")
    device.parent.mkdir(parents=True)
    device.touch()
    calls, driver = await _told(tmp_path, {"nodeExpandSecretRef": {"name": "key", "namespace": "default"}})
    expand = csi.NodeExpandVolumeRequest(
        volume_id="h-data", volume_path=str(layout.target("web-uid", "pv-data")), secrets={"password": "hunter2"}
    )
    with pytest.raises(CallError):  # this driver's device is a file, which has no size
        await calls.answer(DRIVER, "/csi.v1.Node/NodeExpandVolume", expand.SerializeToString())
    await calls.close()
    assert dict(driver.last("NodeExpandVolume").secrets) == {"password": "hunter2"}


async def _told(directory: Path, source: dict[str, Any] | None = None) -> tuple[DirectCalls, ScriptedDriver]:
    """Return the calls of an agent that the hub has told of a pod with a direct volume, and the volume's driver."""
    settings = replace(
        agent_settings(directory / "state", own=False),
        root_dir=directory / "root",
        relay_dir=directory / "relay",
        direct_runtime=(direct_runtime("kata=go:4.1"),),
    )
    store = Metastore(settings.state_dir / DIRECT)
    for body in (
        persistent_volume(csi={"volumeAttributes": {DIRECT_VOLUME: "true"}, **(source or {})}),
        persistent_claim(metadata={"uid": "data-uid"}),
        pod(claims=("data",), spec={"runtimeClassName": "kata"}),
    ):
        metadata = body["metadata"]
        ref = Ref(body["kind"], metadata.get("namespace", ""), metadata["name"])
        await store.objects.store([put(1, Object(ref, Stamp(metadata.get("uid", "u"), "1"), encode_body(body)))])
    await store.close()
    driver = ScriptedDriver()
    return DirectCalls(settings, Metrics(), Mock(find_beside_kubelet=lambda _: driver)), driver
