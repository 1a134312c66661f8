"""From sidecars on every node to the bridge and back: the stock provisioner, with --node-deployment and without."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.bridge import Bridge
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, start_on_each
from tests.kit.processes import Process, Supervisor
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

_NODES = ("n1", "n2")
_FLAGS = ("--strict-topology", "--timeout=60s", "--retry-interval-start=500ms", "--retry-interval-max=1s")


@pytest.fixture
def vendors(claims: Claims, short_dir: Path, supervisor: Supervisor) -> dict[str, RunningDriver]:
    return start_on_each(_NODES, supervisor, short_dir, name=claims.storage_class, flags=("--no-attach",))


@pytest.fixture
def names(control_plane: ControlPlane, claims: Claims) -> Iterator[dict[str, str]]:
    """The names of the Nodes, as kubelets and the drivers' registrations would leave them."""
    api, key = control_plane.api, f"topology.{claims.storage_class}/node"
    found = {node: f"{node}-{claims.namespace}" for node in _NODES}
    for node, name in found.items():
        api.create(manifests.node(name, labels={key: node}))
        api.create(manifests.csi_node(name, drivers={claims.storage_class: node}, topology_keys=[key]))
    yield found
    for name in found.values():
        api.delete("CSINode", name)
        api.delete("Node", name)


@pytest.fixture
def bridge(short_dir: Path, supervisor: Supervisor) -> Iterator[Bridge]:
    with Bridge(short_dir, supervisor.directory) as bridge:
        yield bridge


def test_volumes_outlive_the_move_of_their_sidecars_to_the_cloud_and_back(
    control_plane: ControlPlane,
    claims: Claims,
    sidecars: Sidecars,
    vendors: dict[str, RunningDriver],
    names: dict[str, str],
    bridge: Bridge,
) -> None:
    waiting = claims.of_class(f"{claims.storage_class}-wait")
    control_plane.api.create(
        manifests.storage_class(claims.storage_class, name=waiting.storage_class, wait_for_consumer=True)
    )

    def ask(claim: str, node: str) -> None:
        # What the scheduler writes once it has chosen the pod's node.
        waiting.ask(claim, annotations={"volume.kubernetes.io/selected-node": names[node]})

    def on_each_node(start: Callable[..., Process]) -> list[Process]:
        return [
            start(
                "csi-provisioner",
                vendors[node].socket,
                "--node-deployment",
                *_FLAGS,
                log_name=f"csi-provisioner-{node}",
                variables={"NODE_NAME": names[node]},
            )
            for node in _NODES
        ]

    on_nodes = on_each_node(sidecars.start)
    for claim in ("old", "kept"):
        ask(claim, "n2")
    handles = [waiting.wait_bound(claim)["spec"]["csi"]["volumeHandle"] for claim in ("old", "kept")]
    assert sorted(vendors["n2"].volumes) == sorted(handles)
    for each in on_nodes:
        each.stop()
    ask("between", "n1")

    bridge.start_hub()
    for node, vendor in vendors.items():
        bridge.start_agent(node, vendor.socket)
    proxy = bridge.start_proxy(claims.storage_class)
    central = sidecars.start("csi-provisioner", proxy.socket, *_FLAGS, log_name="csi-provisioner-central")
    assert [waiting.wait_bound("between")["spec"]["csi"]["volumeHandle"]] == vendors["n1"].volumes
    waiting.let_go("old")
    wait_for(lambda: vendors["n2"].volumes == handles[1:], what="end of the old volume")
    central.stop()

    on_each_node(sidecars.start)
    waiting.let_go("between")
    waiting.let_go("kept")
    assert (vendors["n1"].volumes, vendors["n2"].volumes) == ([], [])
    assert [len(vendor.calls("CreateVolume")) for vendor in vendors.values()] == [1, 2]
