"""Room on each node: the stock provisioner tells the scheduler what the hub says of each, and pods go where room is."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Bridge, Proxy
from tests.kit.deployed import driver_objects, granted, hub_roles
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.manifests import GIB
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, start_on_each
from tests.kit.processes import Process, Supervisor
from tests.kit.requests import create
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

Object = dict[str, Any]

_FULL, _AWAY, _FREE = "full", "away", "free"
"""The three nodes, in the drivers' words: the Nodes have the namespace in their names."""

_PODS = 10

_LIMIT_S = 120.0


@pytest.fixture
def charted(control_plane: ControlPlane) -> Iterator[list[Object]]:
    """The objects of a driver with capacity, of which those that the provisioner needs are in the cluster."""
    made = driver_objects(capacity=True)
    control_plane.apply(hub_roles())  # with the namespace
    for each in made:
        if each["kind"] != "NetworkPolicy":
            control_plane.api.ensure(each)
    control_plane.api.wait_until("Pod", _POD, lambda _: True, what="made", namespace="csi-bridge")
    yield made
    control_plane.api.delete("StatefulSet", "csi-bridge-driver", namespace="csi-bridge")


_POD = "csi-bridge-driver-0"


@pytest.fixture
def vendors(claims: Claims, short_dir: Path, supervisor: Supervisor) -> dict[str, RunningDriver]:
    """By node: a driver with room for its pods; on one node a volume has it all."""
    flags = ("--no-attach", f"--capacity={2 * _PODS * GIB}")
    found = start_on_each((_FULL, _AWAY, _FREE), supervisor, short_dir, name=claims.storage_class, flags=flags)
    with Sidecar(found[_FULL].socket, patient=True) as sidecar:
        mount = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
        room = csi.CapacityRange(required_bytes=2 * _PODS * GIB)
        made = sidecar.call("CreateVolume", create("large", capacity_range=room, volume_capabilities=[mount]))
        assert made.ok, made.refusal
    return found


@pytest.fixture
def nodes(control_plane: ControlPlane, claims: Claims, vendors: dict[str, RunningDriver]) -> Iterator[dict[str, str]]:
    """The names of the Nodes, as kubelets and the drivers' registrations would leave them."""
    api, key = control_plane.api, f"topology.{claims.storage_class}/node"
    names = {node: f"{node}-{claims.namespace}" for node in vendors}
    room = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    for node, name in names.items():
        api.create(manifests.node(name, labels={key: node}))
        api.patch_status("Node", name, {"status": {"capacity": room, "allocatable": room}})
        api.create(manifests.csi_node(name, drivers={claims.storage_class: node}, topology_keys=[key]))
    yield names
    for name in names.values():
        api.delete("CSINode", name)
        api.delete("Node", name)


@pytest.fixture
def proxy(short_dir: Path, supervisor: Supervisor, vendors: dict[str, RunningDriver]) -> Iterator[Proxy]:
    """The proxy driver of a hub with three nodes. One has left."""
    with Bridge(short_dir, supervisor.directory) as bridge:
        bridge.start_hub()
        agents = {node: bridge.start_agent(node, vendor.socket) for node, vendor in vendors.items()}
        proxy = bridge.start_proxy(vendors[_FREE].name, "--placement=local")
        sidecar, told = proxy.sidecar(), list[object]()

        def free(node: str) -> int:
            term = csi.Topology(segments={f"topology.{vendors[node].name}/node": node})
            outcome = sidecar.call("GetCapacity", csi.GetCapacityRequest(accessible_topology=term))
            told[:] = [outcome.answer if outcome.ok else outcome.refusal]
            return int(outcome.answer.available_capacity) if outcome.ok else -1

        room = 2 * _PODS * GIB
        wait_for(
            lambda: (free(_AWAY), free(_FREE)) == (room, room),
            what="all nodes",
            timeout_s=_LIMIT_S,
            instead=lambda: told,
        )
        agents[_AWAY].kill()
        wait_for(lambda: free(_AWAY) == 0, what="word of its end", timeout_s=_LIMIT_S, instead=lambda: told)
        assert (free(_FULL), free(_FREE)) == (0, room)
        yield proxy


@pytest.fixture
def provisioner(proxy: Proxy, charted: list[Object], sidecars: Sidecars) -> Process:
    """The charted provisioner, with its flags, environment and ServiceAccount."""
    (driver,) = (it for it in charted if it["kind"] == "StatefulSet")
    (container,) = (it for it in driver["spec"]["template"]["spec"]["containers"] if it["name"] == "csi-provisioner")
    of_pod = {"metadata.namespace": "csi-bridge", "metadata.name": _POD}
    variables = os.environ | {it["name"]: of_pod[it["valueFrom"]["fieldRef"]["fieldPath"]] for it in container["env"]}
    return sidecars.start_deployed(container, proxy.socket, "--capacity-poll-interval=5s", environment=variables)


@pytest.mark.usefixtures("scheduler")
def test_pods_go_past_a_full_node_and_one_that_is_away_to_the_one_with_room(
    control_plane: ControlPlane,
    claims: Claims,
    nodes: dict[str, str],
    vendors: dict[str, RunningDriver],
    charted: list[Object],
    provisioner: Process,
) -> None:
    api, name = control_plane.api, f"{claims.storage_class}-wait"
    waiting = claims.of_class(name)
    api.create(manifests.csi_driver(claims.storage_class, attachRequired=False, storageCapacity=True))
    api.create(manifests.storage_class(claims.storage_class, name=name, wait_for_consumer=True))

    def room() -> dict[str, Object]:
        found = (it for it in api.all("CSIStorageCapacity", namespace="csi-bridge") if it["storageClassName"] == name)
        return {next(iter(it["nodeTopology"]["matchLabels"].values())): it for it in found}

    wait_for(lambda: room().keys() == vendors.keys(), what="capacities", timeout_s=_LIMIT_S, instead=room)
    found = room()
    assert {node: it["capacity"] for node, it in found.items()} == {_FULL: "0", _AWAY: "0", _FREE: f"{2 * _PODS}Gi"}
    owners = {(ref["kind"], ref["name"]) for it in found.values() for ref in it["metadata"]["ownerReferences"]}
    assert owners == {("StatefulSet", "csi-bridge-driver")}

    pods = [f"pod-{number}" for number in range(_PODS)]
    for pod in pods:
        waiting.ask(pod)
        api.create(manifests.pod(pod, namespace=claims.namespace, claim=pod))
    for pod in pods:
        placed = api.wait_until(
            "Pod",
            pod,
            lambda it: bool(it["spec"].get("nodeName")),
            what="scheduled",
            namespace=claims.namespace,
            timeout_s=_LIMIT_S,
        )
        assert placed["spec"]["nodeName"] == nodes[_FREE]
        waiting.wait_bound(pod)

    # By name: the provisioner repeats a create that has succeeded while its cache lacks the new PersistentVolume.
    asked = {node: {call.fields["name"] for call in it.calls("CreateVolume")} for node, it in vendors.items()}
    assert {node: len(names) for node, names in asked.items()} == {_FULL: 1, _AWAY: 0, _FREE: _PODS}
    assert not [failure for pod in pods for failure in waiting.failures(pod)]

    api.delete("StorageClass", name)
    wait_for(lambda: not room(), what="end of the capacities", timeout_s=_LIMIT_S, instead=room)
    assert not [line for line in provisioner.output().splitlines() if "forbidden" in line]
    asked = {(it.verb, it.group, it.resource) for it in control_plane.asked_by("csi-bridge-driver")}
    role = [it for it in charted if it["metadata"]["name"] == "csi-bridge-driver-capacity" and it["kind"] == "Role"]
    # Where the API server cannot begin a watch with what there is (before Kubernetes 1.34), sidecars list it first.
    assert granted(role) - asked <= {("list", "storage.k8s.io", "csistoragecapacities")}
    api.delete("CSIDriver", claims.storage_class)
