"""The health monitor: external-health-monitor reads the lists of all nodes, and tells which claim's volume is broken.

It knows only drivers of CSI 1.12 and older, whose ListVolumes tells each volume's condition. Their answers pass the
bridge unchanged. With a driver that has the health of CSI 1.13 instead, it ends at its start, also without a bridge.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.testdriver import RunningDriver, make_on, start_on_each
from tests.kit.ports import free_ports
from tests.kit.processes import Supervisor, listens_on
from tests.kit.sidecar import Sidecar
from tests.kit.testdriver.health import VOLUME_CONDITION
from tests.kit.waiting import wait_for

_NODES = ("n1", "n2")
_LIMIT_S = 60.0


class Site:
    """Two nodes with a volume each, behind one proxy driver."""

    def __init__(self, bridge: Bridge, vendors: dict[str, RunningDriver]) -> None:
        bridge.start_hub()
        self.vendors = vendors  # by node
        self.agents: dict[str, Agent] = {it: bridge.start_agent(it, vendors[it].socket) for it in vendors}  # by node
        self.proxy: Proxy = bridge.start_proxy(vendors["n1"].name, "--placement=local")
        self.sidecar: Sidecar = self.proxy.sidecar()
        # The id of each node's volume.
        self.volumes = {node: make_on(node, self.sidecar, driver=vendors[node].name) for node in vendors}

    def break_(self, node: str) -> None:
        """Take away the data of a node's volume."""
        (directory,) = self.vendors[node].directories()
        shutil.rmtree(directory / "data")

    def conditions(self) -> dict[str, bytes]:
        """The status of each volume in a list of all nodes, by its node."""
        found, request = {}, csi.ListVolumesRequest()
        for _ in _NODES:
            outcome = self.sidecar.call("ListVolumes", request)
            assert outcome.ok, outcome.refusal
            found |= {it.volume.volume_id: it.status.SerializeToString() for it in outcome.answer.entries}
            request.starting_token = outcome.answer.next_token
        assert not request.starting_token
        return {node: found[volume] for node, volume in self.volumes.items()}


@pytest.fixture
def site(short_dir: Path, supervisor: Supervisor) -> Iterator[Site]:
    flags = ("--no-attach", "--volume-condition")
    vendors = start_on_each(_NODES, supervisor, short_dir, name="condition.csi", flags=flags)
    with Bridge(short_dir, supervisor.directory) as bridge:
        yield Site(bridge, vendors)


def test_the_list_of_all_nodes_has_the_conditions_that_the_monitor_reads(site: Site) -> None:
    """The capabilities without which it ends, and the conditions of old drivers, for which CSI 1.13 has no field."""
    told = site.sidecar.call("ControllerGetCapabilities").answer.capabilities
    kinds = {capability.rpc.type for capability in told}
    assert {csi.ControllerServiceCapability.RPC.LIST_VOLUMES, VOLUME_CONDITION} <= kinds
    well = b"\x12\x02\x08\x00"
    assert site.conditions() == {"n1": well, "n2": well}
    site.break_("n2")
    text = b"the volume's data is gone from the state directory"
    ill = b"\x08\x01\x12" + bytes((len(text),)) + text
    broken = b"\x12" + bytes((len(ill),)) + ill
    assert site.conditions() == {"n1": well, "n2": broken}
    site.agents["n2"].kill()
    assert site.conditions() == {"n1": well, "n2": broken}, "the last complete list of a node that is away"


def test_the_stock_monitor_tells_the_claim_of_a_broken_volume_on_any_node(
    site: Site, control_plane: ControlPlane, supervisor: Supervisor, peer: Callable[[str], Path], namespace: str
) -> None:
    api, program = control_plane.api, peer("csi-external-health-monitor-controller")
    claims = Claims(api=api, namespace=namespace, storage_class="")
    for node, volume in site.volumes.items():
        name = f"{node}-{namespace}"
        claims.ask(node, volumeName=name)
        claim = {"namespace": namespace, "name": node}
        driver = site.vendors[node].name
        api.create(manifests.persistent_volume(name, driver=driver, handle=volume, claimRef=claim))
        claims.wait_bound(node)
    (port,) = free_ports(1)
    command = [
        program,
        f"--csi-address=unix://{site.proxy.socket}",
        f"--kubeconfig={control_plane.admin_kubeconfig()}",
        "--list-volumes-interval=1s",
        f"--http-endpoint=127.0.0.1:{port}",
        "--v=5",
    ]
    monitor = supervisor.start(program.name, command, ready=lambda: listens_on(port), timeout_s=_LIMIT_S)

    def told(claim: str, reason: str) -> list[str]:
        return [
            event["message"]
            for event in api.all("Event", namespace=namespace)
            if (event["involvedObject"]["name"], event["reason"]) == (claim, reason)
        ]

    site.break_("n2")
    wait_for(lambda: told("n2", "VolumeConditionAbnormal"), what="event", timeout_s=_LIMIT_S, instead=monitor.log_tail)
    assert "data is gone" in told("n2", "VolumeConditionAbnormal")[0]
    site.agents["n1"].kill()
    before = len(site.vendors["n2"].calls("ListVolumes"))
    wait_for(
        lambda: len(site.vendors["n2"].calls("ListVolumes")) > before + 2, what="further lists", timeout_s=_LIMIT_S
    )
    assert monitor.running
    assert not told("n1", "VolumeConditionAbnormal")
    for node in _NODES:
        api.delete("PersistentVolumeClaim", node, namespace=namespace)
        api.delete("PersistentVolume", f"{node}-{namespace}")
