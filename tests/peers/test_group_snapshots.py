"""Group snapshots: the stock snapshotter and snapshot-controller take those of several volumes of a node at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Agent, Bridge
from tests.kit.deployed import arguments, driver_objects, granted, hub_roles
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, start_on_each
from tests.kit.processes import Process, Supervisor
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

Object = dict[str, Any]

_GATE = "--feature-gates=CSIVolumeGroupSnapshot=true"

_NODES = ("n1", "n2")

_LIMIT_S = 120.0

_BEING_MADE = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created"


@pytest.fixture
def charted(control_plane: ControlPlane, sidecars: Sidecars) -> list[Object]:
    """The objects of a driver whose snapshotter takes group snapshots, of which the permissions are in the cluster."""
    made = driver_objects(groupSnapshots=True)
    control_plane.apply(hub_roles())  # with the namespace
    for each in made:
        if each["kind"] not in {"NetworkPolicy", "StatefulSet"}:
            control_plane.api.ensure(each)
    sidecars.install_snapshot_kinds()
    return made


@pytest.fixture
def vendors(claims: Claims, short_dir: Path, supervisor: Supervisor) -> dict[str, RunningDriver]:
    return start_on_each(_NODES, supervisor, short_dir, name=claims.storage_class, flags=("--no-attach",))


@pytest.fixture
def names(control_plane: ControlPlane, claims: Claims) -> dict[str, str]:
    """The names of the Nodes, as kubelets and the drivers' registrations would leave them."""
    api, key = control_plane.api, f"topology.{claims.storage_class}/node"
    found = {node: f"{node}-{claims.namespace}" for node in _NODES}
    for node, name in found.items():
        api.create(manifests.node(name, labels={key: node}))
        api.create(manifests.csi_node(name, drivers={claims.storage_class: node}, topology_keys=[key]))
    return found


@pytest.fixture
def bridge(short_dir: Path, supervisor: Supervisor) -> Iterator[Bridge]:
    with Bridge(short_dir, supervisor.directory) as bridge:
        bridge.start_hub()
        yield bridge


@pytest.fixture
def agents(bridge: Bridge, vendors: dict[str, RunningDriver]) -> dict[str, Agent]:
    return {node: bridge.start_agent(node, vendor.socket) for node, vendor in vendors.items()}


@pytest.fixture
def snapshotter(
    bridge: Bridge,
    agents: dict[str, Agent],
    claims: Claims,
    charted: list[Object],
    sidecars: Sidecars,
) -> Process:
    """The charted snapshotter with its flags and ServiceAccount, beside a provisioner and the snapshot-controller."""
    proxy = bridge.start_proxy(claims.storage_class, "--placement=local")
    assert agents.keys() == set(_NODES)
    sidecars.start("csi-provisioner", proxy.socket, "--strict-topology")
    sidecars.start_snapshot_controller(_GATE, "--retry-interval-max=5s")
    (driver,) = (it for it in charted if it["kind"] == "StatefulSet")
    (container,) = (it for it in driver["spec"]["template"]["spec"]["containers"] if it["name"] == "csi-snapshotter")
    assert _GATE in arguments(container)
    return sidecars.start_deployed(container, proxy.socket, retry_interval_max="5s")


def test_a_group_is_taken_on_its_node_and_one_of_several_nodes_is_refused_for_good(
    control_plane: ControlPlane,
    claims: Claims,
    names: dict[str, str],
    vendors: dict[str, RunningDriver],
    agents: dict[str, Agent],
    charted: list[Object],
    snapshotter: Process,
) -> None:
    api, namespace, driver = control_plane.api, claims.namespace, claims.storage_class
    for name, node in (("data", "n1"), ("logs", "n1"), ("far", "n2")):
        claims.ask(name, annotations={"volume.kubernetes.io/selected-node": names[node]})
        claims.wait_bound(name)
        labels = {"all": "yes", "node": node}
        api.patch("PersistentVolumeClaim", name, {"metadata": {"labels": labels}}, namespace=namespace)
    api.create(manifests.group_snapshot_class(driver))

    def take(name: str, **labels: str) -> None:
        api.create(manifests.group_snapshot(name, namespace=namespace, snapshot_class=driver, labels=labels))

    def wait_ready(name: str) -> Object:
        return api.wait_status("VolumeGroupSnapshot", name, "readyToUse", namespace=namespace, timeout_s=_LIMIT_S)

    def contents() -> list[Object]:
        return [it for it in api.all("VolumeGroupSnapshotContent") if it["spec"]["driver"] == driver]

    def being_made() -> list[Object]:
        return [it for it in contents() if _BEING_MADE in it["metadata"].get("annotations", {})]

    def let_go(name: str) -> None:
        # The snapshot-controller leaves the content of a group that is deleted before it has protected the group.
        api.wait_until(
            "VolumeGroupSnapshot",
            name,
            lambda it: any("bound-protection" in each for each in it["metadata"].get("finalizers", [])),
            what="protected",
            namespace=namespace,
            timeout_s=_LIMIT_S,
        )
        api.delete("VolumeGroupSnapshot", name, namespace=namespace)
        api.wait_gone("VolumeGroupSnapshot", name, namespace=namespace, timeout_s=_LIMIT_S)
        wait_for(lambda: not contents(), what="end of the contents", timeout_s=_LIMIT_S, instead=contents)

    def listed(node: str) -> list[csi.Snapshot]:
        with Sidecar(vendors[node].socket, patient=True) as sidecar:
            return [entry.snapshot for entry in sidecar.call("ListSnapshots").answer.entries]

    # All members on one node.
    take("near", node="n1")
    wait_ready("near")
    members = [it for it in api.all("VolumeSnapshot", namespace=namespace) if it["metadata"].get("ownerReferences")]
    assert sorted(it["spec"]["source"]["persistentVolumeClaimName"] for it in members) == ["data", "logs"]
    for member in members:
        api.wait_status("VolumeSnapshot", member["metadata"]["name"], "readyToUse", namespace=namespace)
    assert len({snapshot.group_snapshot_id for snapshot in listed("n1")}) == 1
    assert (len(listed("n1")), listed("n2")) == (2, [])

    # A volume from a member, on the member's node.
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": members[0]["metadata"]["name"]}
    claims.ask("again", annotations={"volume.kubernetes.io/selected-node": names["n1"]}, dataSource=source)
    claims.wait_bound("again")
    claims.let_go("again")
    let_go("near")
    assert listed("n1") == []

    # Members on two nodes: nothing is made, and the error is final, so the snapshotter gives the group up.
    take("wide", all="yes")
    refused = api.wait_until(
        "VolumeGroupSnapshot",
        "wide",
        lambda it: "only within one edge node" in it.get("status", {}).get("error", {}).get("message", ""),
        what="refused",
        namespace=namespace,
        timeout_s=_LIMIT_S,
    )
    why = refused["status"]["error"]["message"]
    assert "FailedPrecondition" in why
    assert "is on n1" in why
    assert "is on n2" in why
    # A final error takes the annotation away, and the next try sets it anew for its time.
    wait_for(lambda: contents() and not being_made(), what="end of a try", timeout_s=_LIMIT_S, instead=contents)
    assert [len(vendors[node].calls("CreateVolumeGroupSnapshot")) for node in _NODES] == [1, 0]
    let_go("wide")

    # A group of a node that is away is made when it is back.
    agents["n2"].kill()
    take("away", node="n2")
    api.wait_until(
        "VolumeGroupSnapshot",
        "away",
        lambda it: "n2" in it.get("status", {}).get("error", {}).get("message", ""),
        what="refused for now",
        namespace=namespace,
        timeout_s=_LIMIT_S,
    )
    assert being_made()
    agents["n2"].process.start()
    wait_ready("away")
    let_go("away")
    assert [len(vendors[node].calls("DeleteVolumeGroupSnapshot")) for node in _NODES] == [1, 1]
    assert (listed("n1"), listed("n2")) == ([], [])

    api.delete("VolumeGroupSnapshotClass", driver)
    for name in ("data", "logs", "far"):
        claims.let_go(name)
    assert not [line for line in snapshotter.output().splitlines() if "forbidden" in line]
    asked = {(it.verb, it.group, it.resource) for it in control_plane.asked_by("csi-bridge-driver")}
    roles = [it for it in charted if it["metadata"]["name"] == "csi-bridge-driver-group-snapshotter"]
    # Where the API server cannot begin a watch with what there is (before Kubernetes 1.34), sidecars list it first.
    assert {it for it in granted(roles) - asked if it[0] != "list"} == set()
