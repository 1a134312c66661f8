"""The end of a node, and a new machine in its place, with the stock sidecars and Kubernetes' own controllers."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.bridge import Agent, Bridge
from tests.kit.deployed import hub_roles
from tests.kit.edge_node import NODE, pod, volume
from tests.kit.leftovers import clear
from tests.kit.needs import needs_mounts
from tests.kit.operator import by_hand, hub_state
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.cluster_node import HUB, ClusterNode
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import start_testdriver
from tests.kit.processes import Supervisor
from tests.kit.waiting import wait_for

pytestmark = [needs_mounts, pytest.mark.slow]

Object = dict[str, Any]

_LIMIT_S = 120.0

_RELEASE_S = 240.0  # kubernetes ends the pods of a Node that is gone after 40 to 60 s, and a busy machine takes longer

_PATIENCE = ("--retry-interval-start=500ms", "--retry-interval-max=2s", "--timeout=30s")


class Site:
    """A hub in a cluster, its nodes without kubelets, the stock sidecars, and a StatefulSet with one pod."""

    def __init__(self, bridge: Bridge, claims: Claims, plane: ControlPlane, supervisor: Supervisor, at: Path) -> None:
        self.api, self.claims, self.plane = plane.api, claims, plane
        self.bridge, self._supervisor, self._at = bridge, supervisor, at
        self.hub = f"--hub=unix://{bridge.hub.uds}"
        self.driver = claims.storage_class

    def add_node(self, name: str) -> Agent:
        node, directory = f"{name}-{self.claims.namespace}", self._at / name
        directory.mkdir()
        vendor = start_testdriver(self._supervisor, directory, name=self.driver, node_id=node, flags=("--no-topology",))
        agent = self.bridge.start_agent(node, vendor.socket)
        self.plane.wait_registered(self.driver, node)
        return agent

    def start_set(self) -> None:
        name = f"{self.driver}-wait"
        self.api.create(manifests.storage_class(self.driver, name=name, wait_for_consumer=True))
        self.api.create(_stateful_set(self.claims.namespace, name))

    def pod(self) -> Object:
        """The pod of the StatefulSet, once it has a node and its claim a volume that is attached there."""

        def look() -> Object | None:
            found = self.api.get("Pod", "web-0", namespace=self.claims.namespace)
            if found is None or not found["spec"].get("nodeName") or found["metadata"].get("deletionTimestamp"):
                return None
            node = found["spec"]["nodeName"]
            attached = [it for it in self.attachments() if it["spec"]["nodeName"] == node]
            return found if attached and (attached[0].get("status") or {}).get("attached") else None

        return wait_for(look, what="pod with its volume", timeout_s=_LIMIT_S, instead=self.tell)

    def attachments(self) -> list[Object]:
        return [it for it in self.api.all("VolumeAttachment") if it["spec"]["attacher"] == self.driver]

    def volumes(self) -> list[Object]:
        return [
            it for it in self.api.all("PersistentVolume") if (it["spec"].get("csi") or {}).get("driver") == self.driver
        ]

    def tell(self) -> str:
        events = "\n".join(self.api.events("web-0", namespace=self.claims.namespace))
        claim = self.api.get("PersistentVolumeClaim", "data-web-0", namespace=self.claims.namespace)
        return f"{events}\n{claim}\n{self.volumes()}\n{self.attachments()}\n{by_hand('status', self.hub).stdout}"

    def command(self, node: str, *flags: str) -> list[str]:
        return [sys.executable, "-m", "cli", "forget", node, "--abandon-volumes", self.hub, *flags]

    def forget(self, node: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = self.command(node, *flags)
        return subprocess.run(command, capture_output=True, text=True, timeout=_RELEASE_S, check=False)


@pytest.fixture
def site(
    short_dir: Path, supervisor: Supervisor, claims: Claims, control_plane: ControlPlane, sidecars: Sidecars
) -> Iterator[Site]:
    api = control_plane.api
    control_plane.apply(hub_roles())
    kubeconfig = control_plane.service_account_kubeconfig("csi-bridge", HUB)
    api.create(manifests.csi_driver(claims.storage_class, attachRequired=True))
    control_plane.start_scheduler()
    with Bridge(short_dir, supervisor.directory) as bridge:
        bridge.start_hub(f"--kubeconfig={kubeconfig}")
        site = Site(bridge, claims, control_plane, supervisor, short_dir)
        try:
            site.first = site.add_node("n1")  # type: ignore[attr-defined]  # the node that ends
            proxy = bridge.start_proxy(claims.storage_class, "--placement=local")
            bridge.wait_routed(proxy.sidecar())
            sidecars.start("csi-provisioner", proxy.socket, "--strict-topology", *_PATIENCE)
            sidecars.start("csi-attacher", proxy.socket, *_PATIENCE)
            yield site
        finally:
            control_plane.scheduler.stop()
    clear(short_dir)


def test_a_stateful_set_moves_on_after_its_node_is_abandoned(site: Site, control_plane: ControlPlane) -> None:
    api, namespace = site.api, site.claims.namespace
    first, second = f"n1-{namespace}", f"n2-{namespace}"
    operator = f"--kubeconfig={control_plane.admin_kubeconfig()}"
    site.start_set()
    before = site.pod()
    assert before["spec"]["nodeName"] == first
    (lost,) = site.volumes()
    site.first.kill()  # type: ignore[attr-defined]  # as above
    site.add_node("n2")

    assert "may come back; first run csi-bridge deny" in site.forget(first, operator).stderr
    assert by_hand("deny", first, site.hub).returncode == 0
    listed = site.forget(first, operator)
    assert listed.returncode == 0, listed.stderr
    for expected in (f"Pod  {namespace}/web-0", "VolumeAttachment", lost["metadata"]["name"], "nothing is changed"):
        assert expected in re.sub(" +", "  ", listed.stdout) or expected in listed.stdout

    hubs_own = f"--kubeconfig={control_plane.service_account_kubeconfig('csi-bridge', HUB)}"
    assert "may not delete persistentvolumes, " in site.forget(first, "--yes", hubs_own).stderr
    claim = api.get("PersistentVolumeClaim", "data-web-0", namespace=namespace)
    assert claim is not None
    assert claim["metadata"].get("deletionTimestamp") is None

    _kill_in_the_middle(site, first, operator)
    _allow_in_the_middle(site, first, operator)
    assert by_hand("deny", first, site.hub).returncode == 0
    kubeconfig = control_plane.admin_kubeconfig().read_text()
    done = subprocess.run(
        site.command(first, "--yes", "--kubeconfig=-"),
        input=kubeconfig, capture_output=True, text=True, timeout=_RELEASE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{site.tell()}"
    assert f"edge node {first} is abandoned, and stays denied" in done.stdout

    after = site.pod()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["nodeName"] == second
    (volume_,) = site.volumes()
    assert volume_["metadata"]["uid"] != lost["metadata"]["uid"]
    assert [it["spec"]["nodeName"] for it in site.attachments()] == [second]
    assert api.get("Node", first) is None
    told = [it["involvedObject"]["kind"] for where in (namespace, "default") for it in _events(api, where)]
    assert {"Pod", "PersistentVolumeClaim", "VolumeAttachment", "PersistentVolume"} <= set(told)
    assert f"edge node {first} is abandoned" in site.forget(first, "--yes", operator).stdout
    assert first in by_hand("denials", site.hub).stdout


def _kill_in_the_middle(site: Site, node: str, operator: str) -> None:
    with subprocess.Popen(site.command(node, "--yes", operator)) as process:
        site.api.wait_until(
            "PersistentVolumeClaim", "data-web-0", lambda it: bool(it["metadata"].get("deletionTimestamp")),
            what="deleted", namespace=site.claims.namespace,
        )  # fmt: skip
        process.kill()


def _allow_in_the_middle(site: Site, node: str, operator: str) -> None:
    """Allow the node between two passes of a command, which then stops."""
    with subprocess.Popen(
        site.command(node, "--yes", operator), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("goes: ")
        assert by_hand("allow", node, site.hub).returncode == 0
        _, errors = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 1
    assert f"{node} may come back" in errors


def test_a_new_machine_with_the_old_disk_mounts_the_old_data(
    short_dir: Path, tmp_path: Path, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    with ClusterNode(short_dir, tmp_path, control_plane) as node:
        node.start(driver_flags=("--no-attach", "--no-topology"))
        hub = f"--hub=unix://{node.bridge.hub.uds}"
        term = {"matchExpressions": [{"key": "csi-bridge.io/node", "operator": "In", "values": [NODE]}]}
        affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        persistent, claim = volume("data", node.make_volume("data"))
        persistent["spec"].update(affinity)
        for each in (persistent, claim, pod("web", "data")):
            api.create(each)
        (path,) = node.wait_published("web", timeout_s=60.0)
        (path / "file").write_text("old data")
        node.agent.kill()
        node.wipe_mounts()

        node.root.rename(short_dir / "of-the-old-machine")

        (short_dir / "new").mkdir()
        flags = (f"--root-dir={node.root}",)
        new = Agent(NODE, node.bridge.hub.address, [node.driver.socket], short_dir / "new", tmp_path, flags)
        node.bridge.members.append(new)
        new.start()
        node.agent = new
        said = f"another machine has joined as node {NODE}"
        wait_for(
            lambda: any(said in it for it in hub_state(node.bridge.hub.uds)["problems"]),
            what="earlier machine",
            timeout_s=60.0,
        )
        done = by_hand("fence", NODE, "--yes", hub)
        assert done.stdout.startswith(f"the earlier machine of node {NODE} is fenced"), done.stderr
        assert not any(said in it for it in hub_state(node.bridge.hub.uds)["problems"])
        api.delete_now("Pod", "web", namespace="default")
        api.create(pod("again", "data"))
        (path,) = node.wait_published("again", timeout_s=60.0)
        assert (path / "file").read_text() == "old data"
        spec = api.get("PersistentVolume", "pv-data")["spec"]  # type: ignore[index]  # it is there
        assert spec["nodeAffinity"] == affinity["nodeAffinity"]


def test_a_hub_without_its_state_finds_the_volumes_of_the_hub_before(
    short_dir: Path, tmp_path: Path, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    control_plane.apply(hub_roles())
    term = {"matchExpressions": [{"key": "csi-bridge.io/node", "operator": "In", "values": [NODE]}]}
    persistent, _ = volume("earlier", "vol-1", nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
    persistent["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": "dirdriver.csi"}
    api.create(persistent)
    with Bridge(short_dir, tmp_path) as bridge:
        hub = bridge.start_hub(f"--kubeconfig={control_plane.service_account_kubeconfig('csi-bridge', HUB)}")
        expected = "the hub's records are new, but PersistentVolume pv-earlier of driver dirdriver.csi was made"
        wait_for(
            lambda: [it for it in hub_state(hub.uds)["lost"] if expected in it],
            what="loss",
            timeout_s=_LIMIT_S,
            instead=lambda: hub_state(hub.uds),
        )
        assert "settled: " in by_hand("trust", f"--hub=unix://{hub.uds}").stdout
        hub.stop()
        hub.start()
        assert hub_state(hub.uds)["lost"] == []


def _events(api: KubeApi, namespace: str) -> list[Object]:
    return [it for it in api.all("Event", namespace=namespace) if it["reason"] == "NodeAbandoned"]


def _stateful_set(namespace: str, storage_class: str) -> Object:
    """One pod with one volume. No kubelet runs it, so it takes any taint."""
    claim = manifests.claim("data", namespace=namespace, storage_class=storage_class, size_bytes=16 << 20)
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "serviceName": "web",
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [
                        {"name": "c", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
                    ],
                    "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 1,
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim["spec"]}],
        },
    }
