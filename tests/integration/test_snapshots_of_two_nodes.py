"""Calls that name snapshots, on two nodes with storage of their own. No stock sidecar calls GetSnapshot yet."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.bridge import Agent, Bridge
from tests.kit.peers.testdriver import RunningDriver, make_on, start_on_each
from tests.kit.processes import Supervisor
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

_DRIVER = "dirdriver.csi"
_NODES = ("n1", "n2")


@dataclass
class Site:
    """Two nodes with a snapshot each, and a sidecar in the cloud."""

    vendors: dict[str, RunningDriver]  # by node
    agents: dict[str, Agent]  # by node
    direct: dict[str, Sidecar]  # by node: a connection to its driver, without the bridge
    sidecar: Sidecar
    snapshots: dict[str, csi.Snapshot]  # by node

    def asked(self, method: str) -> list[str]:
        """The nodes whose driver was asked, once for each call through the bridge."""
        return [node for node in _NODES for _ in self.vendors[node].calls(method)]


@pytest.fixture
def site(short_dir: Path, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        supervisor = stack.enter_context(Supervisor(tmp_path / "logs"))
        bridge = stack.enter_context(Bridge(short_dir, tmp_path))
        vendors = start_on_each(_NODES, supervisor, short_dir, name=_DRIVER, flags=("--no-attach",))
        bridge.start_hub()
        agents = {node: bridge.start_agent(node, vendor.socket) for node, vendor in vendors.items()}
        sidecar = bridge.start_proxy(_DRIVER, "--placement=local").sidecar()
        direct = {node: stack.enter_context(Sidecar(vendor.socket, patient=True)) for node, vendor in vendors.items()}
        snapshots = {}
        for node in _NODES:
            volume = make_on(node, sidecar, driver=_DRIVER)
            made = sidecar.call("CreateSnapshot", csi.CreateSnapshotRequest(name=f"s-{node}", source_volume_id=volume))
            assert made.ok, made.refusal
            snapshots[node] = made.answer.snapshot
        yield Site(vendors, agents, direct, sidecar, snapshots)


def test_a_snapshot_is_got_from_the_driver_that_has_it(site: Site) -> None:
    for node in _NODES:
        request = csi.GetSnapshotRequest(snapshot_id=site.snapshots[node].snapshot_id)
        outcome = site.sidecar.call("GetSnapshot", request)
        assert outcome.ok, outcome.refusal
        assert outcome.answer == site.direct[node].call("GetSnapshot", request).answer
        assert outcome.answer.snapshot == site.snapshots[node]
    assert site.asked("GetSnapshot") == ["n1", "n1", "n2", "n2"]

    # The driver's own refusal is passed on.
    site.vendors["n1"].set_faults("GetSnapshot=error:PERMISSION_DENIED:not yours")
    request = csi.GetSnapshotRequest(snapshot_id=site.snapshots["n1"].snapshot_id)
    assert site.sidecar.call("GetSnapshot", request).refusal == (Code.PERMISSION_DENIED, "not yours")

    # NOT_FOUND would be final, and a third node may have it.
    unknown = site.sidecar.call("GetSnapshot", csi.GetSnapshotRequest(snapshot_id="nowhere"))
    assert unknown.code == Code.UNAVAILABLE
    assert "does not know which edge node of driver dirdriver.csi has snapshot nowhere" in unknown.message

    site.agents["n1"].kill()
    wait_for(
        lambda: "n1 is offline" in site.sidecar.call("GetSnapshot", request).refusal[1],
        what="word of n1's end",
        instead=lambda: site.sidecar.call("GetSnapshot", request).refusal,
    )
    assert site.sidecar.call("GetSnapshot", request).code == Code.UNAVAILABLE


def test_blocks_of_snapshots_are_asked_of_their_node_and_those_of_two_nodes_are_not_compared(site: Site) -> None:
    here, there = (site.snapshots[node].snapshot_id for node in _NODES)
    allocated = csi.GetMetadataAllocatedRequest(snapshot_id=there)
    # The driver knows no blocks of directories.
    directly = site.direct["n2"].stream("GetMetadataAllocated", allocated).outcome()
    assert directly.code == Code.FAILED_PRECONDITION
    assert site.sidecar.stream("GetMetadataAllocated", allocated).outcome() == directly
    assert site.asked("GetMetadataAllocated") == ["n2", "n2"]

    delta = csi.GetMetadataDeltaRequest(base_snapshot_id=here, target_snapshot_id=there)
    code, message = site.sidecar.stream("GetMetadataDelta", delta).outcome().refusal
    assert code == Code.FAILED_PRECONDITION
    assert message.endswith(f"snapshot {here} is on n1; snapshot {there} is on n2")
    assert site.asked("GetMetadataDelta") == []
