"""A real kubelet that calls a driver through the relay: the node's segment in CSINode and Node, and a pod's volume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Bridge
from tests.kit.needs import needs_mounts
from tests.kit.peers.testdriver import start_testdriver
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for
from tests.peers.kubelet.cluster_objects import Use, Volume, pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.processes import Supervisor
    from tests.peers.kubelet.kubelet_node import KubeletNode

NAME = "relayed.csi"
SEGMENT = "csi-bridge.io/node"

pytestmark = [needs_mounts, pytest.mark.slow]


@pytest.fixture(params=["registrar", "csi-node-driver-registrar"])
def registrar(request: pytest.FixtureRequest, peer: Callable[[str], Path]) -> Path:
    """The tests' own registrar, and the stock one where it is on PATH."""
    return peer(request.param)


def test_a_kubelet_ties_a_driver_without_a_topology_to_its_node_and_mounts_its_volumes_through_the_relay(
    registrar: Path, kubelet_node: KubeletNode, place: Path, supervisor: Supervisor, tmp_path: Path
) -> None:
    plugins = kubelet_node.root / "plugins"
    (plugins / NAME).mkdir(parents=True)
    own, relay = plugins / NAME / "csi.sock", plugins / "csi-bridge" / f"{NAME}.sock"
    flags = ("--no-topology", "--no-attach")
    vendor = start_testdriver(supervisor, place, name=NAME, node_id=kubelet_node.name, flags=flags, socket=own)
    always = [registrar, f"--csi-address={own}", f"--plugin-registration-path={kubelet_node.root / 'plugins_registry'}"]
    registers = supervisor.start("registrar", [*always, f"--kubelet-registration-path={relay}"])
    assert registers.wait_exit() == 1  # the kubelet could not reach the driver: there is no relay yet

    with Bridge(place, tmp_path) as bridge:
        settings = ("--registration=observe", f"--root-dir={kubelet_node.root}", f"--relay-dir={relay.parent}")
        agent = bridge.start_agent(kubelet_node.name, flags=settings, through="127.0.0.1:1")
        wait_for(relay.exists, what="the relay", instead=agent.process.log_tail)
        past = supervisor.start("registrar-past-the-relay", [*always, f"--kubelet-registration-path={own}"])
        entry = _wait_entry(kubelet_node)
        assert not entry.get("topologyKeys")
        (problem,) = wait_for(lambda: agent.status()["problems"], what="word about it")
        assert "not through the relay" in problem
        past.stop()
        registers.start()
        entry = _wait_entry(kubelet_node, lambda it: it.get("topologyKeys"))
        assert (entry["nodeID"], entry["topologyKeys"]) == (kubelet_node.name, [SEGMENT])
        known: Any = kubelet_node._plane.api.get("Node", kubelet_node.name)
        assert known["metadata"]["labels"][SEGMENT] == kubelet_node.name
        assert [(it["name"], it["socket"]) for it in agent.status()["drivers"]] == [(NAME, str(own))]
        wait_for(lambda: not agent.status()["problems"], what="end of the problem", instead=agent.process.log_tail)

        with Sidecar(own) as sidecar:
            capability = csi.VolumeCapability(access_mode={"mode": "SINGLE_NODE_MULTI_WRITER"}, mount={})
            request = csi.CreateVolumeRequest(name="data", volume_capabilities=[capability])
            handle = sidecar.call("CreateVolume", request).answer.volume.volume_id
        _create_volume(kubelet_node, handle)

        first = _create_pod(kubelet_node, "first")
        _wait_published(kubelet_node, "first")
        published = kubelet_node.root / "pods" / first / "volumes/kubernetes.io~csi/pv-data/mount"
        (published / "file").write_text("hello")
        assert (vendor.state / "volumes" / handle / "data" / "file").read_text() == "hello"
        assert vendor.calls("NodePublishVolume")

        agent.kill()
        second = _create_pod(kubelet_node, "second")
        agent.start()
        _wait_published(kubelet_node, "second")
        for name, uid in (("first", first), ("second", second)):
            kubelet_node.delete("Pod", name, namespace="default")
            wait_for(
                lambda name=name, uid=uid: kubelet_node.is_gone(name, namespace="default", uid=uid),  # type: ignore[misc]  # bound at once
                what=f"end of {name}",
                timeout_s=60.0,
                instead=kubelet_node.kubelet.process.log_tail,
            )
        wait_for(lambda: vendor.calls("NodeUnstageVolume"), what="unstage", timeout_s=60.0)
        registers.stop()


def _wait_entry(node: KubeletNode, is_it: Callable[[Any], object] = bool) -> Any:
    def look() -> Any:
        entry = node.registration(NAME)["entry"]
        return entry if entry and is_it(entry) else None

    return wait_for(look, what="the driver in CSINode", timeout_s=60.0, instead=node.kubelet.process.log_tail)


def _create_volume(node: KubeletNode, handle: str) -> None:
    """A claim and its PersistentVolume, which only this node may use."""
    driver = {"metadata": {"name": NAME}, "spec": {"attachRequired": False}}
    node.create({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **driver})
    volume = Volume(size="16Mi")
    claim = volume.claim(namespace="default", volume="pv-data", storage_class="")
    made = volume.persistent_volume("pv-data", driver=NAME, handle=handle, claim=claim)
    here = {"key": SEGMENT, "operator": "In", "values": [node.name]}
    made["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    node.create(made)
    node.create(claim)


def _create_pod(node: KubeletNode, name: str) -> str:
    """A pod with the volume; its UID."""
    uses = [(Use(), Volume())]
    manifest = pod(
        name, namespace="default", node=node.name, uses=uses, inlines=(), driver=NAME, security={}, grace_s=1
    )
    return str(node.create(manifest)["metadata"]["uid"])


def _wait_published(node: KubeletNode, pod: str) -> None:
    wait_for(
        lambda: node.is_published(pod, namespace="default"),
        what=f"volumes of {pod}",
        timeout_s=90.0,
        instead=lambda: node.why_not(pod, namespace="default"),
    )
