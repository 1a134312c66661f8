"""deploy/, on a real API server, with the stock sidecars and with real certificates: what the files say works."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit import needs
from tests.kit.deployed import (
    DEPLOY,
    ROOT,
    arguments,
    container,
    granted,
    kustomizations,
    kustomized,
    objects,
    pod_spec,
    with_components,
    with_flags,
)
from tests.kit.forms import in_each_form
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.deployment import SIDECARS, Deployment
from tests.kit.peers.kube_api import KubeApi
from tests.kit.peers.manifests import GIB
from tests.kit.peers.sidecars import Sidecars
from tests.kit.processes import Supervisor, listens_on
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

Object = dict[str, Any]

_BIN = Path(sys.executable).parent
_NODE = "edge-1"
_READY_S = 60.0

STEP_BY_STEP = {
    "certificates.sh": "the bridge of these tests has its certificates from it",
    "edge/csi-bridge-edge.service": "systemd reads it, below",
    "edge/edge.env": "tests/unit/test_deploy.py starts an agent with it",
    "images/Dockerfile": "tests/e2e/images.py builds it",
    "images/build.sh": "tests/e2e/images.py runs it",
    "images/digests.sh": "a newcomer types it, below",
    "images/csidriver": "runs below, as KubeEdge's StatefulSet would",
}
"""Files that kubectl does not read, and who does."""


# ---- on the API server -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rendered(peer: Callable[[str], Path]) -> dict[str, list[Object]]:
    return {str(path.relative_to(DEPLOY)): kustomized(peer("kubectl"), path) for path in kustomizations()}


@pytest.fixture
def judged(peer: Callable[[str], Path], control_plane: ControlPlane) -> Callable[[list[Object]], list[str]]:
    """Lets the API server judge objects, every field of them: a line for each, and no warning."""

    def judge(given: list[Object]) -> list[str]:
        # On the server's side: what others made of an object that is there is no matter.
        how = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
        kubeconfig = f"--kubeconfig={control_plane.admin_kubeconfig()}"
        return _output(peer("kubectl"), kubeconfig, *how, text=yaml.safe_dump_all(given)).splitlines()

    return judge


def _output(*command: object, text: str = "") -> str:
    done = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def kinds(sidecars: Sidecars, control_plane: ControlPlane) -> None:
    """What the folders suppose to be there: the kinds of snapshots, and the namespaces."""
    sidecars.install_snapshot_kinds()
    for path in ("cloud/base/hub-rbac.yaml", "edge/base/namespace.yaml", "examples/driver/namespace.yaml"):
        for found in objects(DEPLOY / path):
            if found["kind"] == "Namespace":
                control_plane.api.ensure(found)


_LEVEL = "pod-security.kubernetes.io/enforce"

_ON_ITS_HOST = "cloud/overlays/kubeedge"
"""Its hub uses a directory of its host, as root: its namespace has another level of Pod Security."""


@pytest.mark.usefixtures("kinds")
def test_the_api_server_takes_every_object_of_every_folder(
    rendered: dict[str, list[Object]], judged: Callable[[list[Object]], list[str]], control_plane: ControlPlane
) -> None:
    """Without a warning: no pod asks for more than its namespace allows, which in the cloud is next to nothing."""
    assert _level(rendered["cloud/base"]) == "restricted"
    every = [found for path, made in rendered.items() if path != _ON_ITS_HOST for found in made]
    said = judged(every)
    assert len(said) == len(every)
    assert all(line.endswith("serverside-applied (server dry run)") for line in said)

    on_its_host = rendered[_ON_ITS_HOST]
    control_plane.api.patch("Namespace", "csi-bridge", {"metadata": {"labels": {_LEVEL: _level(on_its_host)}}})
    try:
        assert len(judged(on_its_host)) == len(on_its_host)
    finally:
        control_plane.api.patch("Namespace", "csi-bridge", {"metadata": {"labels": {_LEVEL: "restricted"}}})


def _level(made: list[Object]) -> str:
    (namespace,) = (it for it in made if it["kind"] == "Namespace")
    return str(namespace["metadata"]["labels"][_LEVEL])


def test_no_file_is_left_out() -> None:
    read = {DEPLOY / name for name in STEP_BY_STEP}
    for path in kustomizations():
        read.add(path / "kustomization.yaml")
        content = yaml.safe_load((path / "kustomization.yaml").read_text())
        named = [*content.get("resources", ()), *(it["path"] for it in content.get("patches", ()) if "path" in it)]
        read |= {file for name in named if (file := (path / name).resolve()).is_file()}
    assert sorted(read) == sorted(path for path in DEPLOY.rglob("*") if path.is_file())


def test_whoever_may_call_the_hub_alone_may_call_its_pod(rendered: dict[str, list[Object]]) -> None:
    """The podSelector of a way out means the hub's pod in every folder, whatever labels an overlay adds."""
    (hub,) = _pods(rendered["cloud/base"])
    ways = {
        (path, policy["metadata"]["name"]): _selects(to["podSelector"], hub)
        for path, made in rendered.items()
        for policy in _policies(made)
        for rule in policy["spec"]["egress"]
        for to in rule.get("to", ())
    }
    assert ways == {
        ("cloud/driver", "csi-bridge-driver"): True,
        ("cloud/another-driver", "csi-bridge-driver-other"): True,
        ("cloud/overlays/one-pod", "csi-bridge-hub"): True,
    }


def test_edge_nodes_and_proxy_drivers_reach_one_port_of_the_hub(rendered: dict[str, list[Object]]) -> None:
    for path in ("cloud/base", "cloud/overlays/one-pod", "cloud/overlays/kubeedge"):
        ways = {
            it["metadata"]["name"]: [port["targetPort"] for port in it["spec"]["ports"]]
            for it in rendered[path]
            if it["kind"] == "Service"
        }
        assert ways == {"csi-bridge-edges": ["wss"], "csi-bridge-hub": ["wss"]}
    (hub,) = _policies(rendered["cloud/base"])
    assert {"ports": [{"port": "wss"}]} in hub["spec"]["ingress"]


@pytest.mark.usefixtures("kinds")
def test_each_of_two_hubs_has_an_address_of_its_own(
    peer: Callable[[str], Path], judged: Callable[[list[Object]], list[str]], tmp_path: Path
) -> None:
    """By which nodes and proxy drivers reach it. The certificate that docs/install.md makes has all these names."""
    made = kustomized(peer("kubectl"), with_components(tmp_path, "cloud/overlays/join", "cloud/ha"))
    (hub,) = (it["spec"] for it in made if it["kind"] == "StatefulSet")
    labels = hub["template"]["metadata"]["labels"]
    pods = [f"csi-bridge-hub-{number}" for number in range(hub["replicas"])]
    ways = {it["metadata"]["name"]: it["spec"] for it in made if it["kind"] == "Service"}
    assert ways.pop("csi-bridge-hub")["selector"] == labels
    assert {name: it["selector"] for name, it in ways.items()} == {
        pod: {**labels, "statefulset.kubernetes.io/pod-name": pod} for pod in pods
    }
    ports = {it["name"] for it in hub["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for it in ways.values() for port in it["ports"]} == ports - {"hub-http"}
    of_driver = kustomized(peer("kubectl"), with_components(tmp_path, "cloud/another-driver", "cloud/ha/driver"))
    (driver,) = (it["spec"] for it in of_driver if it["kind"] == "StatefulSet")
    spec = driver["template"]["spec"]
    dialled = {it.partition("=")[2] for it in spec["containers"][0]["args"] if it.startswith("--hub-endpoint=")}
    (spread,) = spec["topologySpreadConstraints"]
    assert (driver["replicas"], spread["matchLabelKeys"]) == (2, ["csi-bridge.io/driver"])
    assert _selects(spread["labelSelector"], driver["template"]["metadata"]["labels"])
    inside = [f"{pod}.csi-bridge.svc" for pod in pods]
    assert dialled == {f"wss://{name}:10350" for name in inside}
    in_one_pod = kustomized(peer("kubectl"), with_components(tmp_path, "cloud/overlays/one-pod", "cloud/ha"))
    (hub_inside,) = (it["spec"]["template"]["spec"]["containers"] for it in in_one_pod if it["kind"] == "StatefulSet")
    (args,) = (it["args"] for it in hub_inside if it["name"] == "hub")
    assert {it.partition("=")[2] for it in args if it.startswith("--hub-endpoint=")} == dialled
    named = (ROOT / "docs/install.md").read_text().partition("### Two hubs")[2].partition("```")[2].partition("```")[0]
    assert {*inside, "csi-bridge-hub.csi-bridge.svc"} < set(named.replace("\\\n", "").split())
    (budget,) = (it["spec"] for it in made if it["kind"] == "PodDisruptionBudget")
    (apart,) = hub["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [_selects(it, labels) for it in (budget["selector"], apart["labelSelector"])] == [True, True]
    for each in ([*made, *of_driver], in_one_pod):
        assert len(judged(each)) == len(each)


@pytest.mark.usefixtures("kinds")
def test_the_nightly_audit_asks_both_hubs(
    peer: Callable[[str], Path], judged: Callable[[list[Object]], list[str]], tmp_path: Path
) -> None:
    """Only the leader answers, and one answer is enough."""
    made = kustomized(peer("kubectl"), with_components(tmp_path, "cloud/audit", "cloud/ha"))
    (job,) = (it["spec"]["jobTemplate"]["spec"] for it in made if it["kind"] == "CronJob")
    assert (job["completions"], job["successPolicy"]) == (2, {"rules": [{"succeededCount": 1}]})
    (audit,) = job["template"]["spec"]["containers"]
    asked = {arguments(audit, JOB_COMPLETION_INDEX=str(number))[2] for number in range(job["completions"])}
    (role,) = (it["rules"] for it in made if it["kind"] == "Role")
    assert [asked] * 2 == [set(rule["resourceNames"]) for rule in role]
    assert len(judged(made)) == len(made)


def test_what_is_made_for_another_driver_is_for_its_pod_alone(rendered: dict[str, list[Object]]) -> None:
    made = rendered["cloud/another-driver"]
    (first,), (other,) = _pods(rendered["cloud/driver"]), _pods(made)
    selectors = [it["spec"]["podSelector"] for it in _policies(made)]
    selectors += [it["spec"]["selector"] for it in made if it["kind"] == "StatefulSet"]
    assert [(_selects(it, other), _selects(it, first)) for it in selectors] == [(True, False)] * 2


@pytest.mark.parametrize("of", ["base", "overlays/join", "overlays/kubeedge", "overlays/one-pod"])
def test_each_hub_can_write_the_csinodes_of_edgecores(peer: Callable[[str], Path], tmp_path: Path, of: str) -> None:
    made = kustomized(peer("kubectl"), with_components(tmp_path, f"cloud/{of}", "cloud/edgecore"))
    (hub,) = (it for it in made if (it["kind"], it["metadata"]["name"]) == ("StatefulSet", "csi-bridge-hub"))
    assert "--edgecore-nodes=true" in hub["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("suffix", ["", "-other"])
def test_a_drivers_components_combine(peer: Callable[[str], Path], tmp_path: Path, suffix: str) -> None:
    """Also in a copy of the template, where all objects have a name of their own."""
    folder = with_components(
        tmp_path, "cloud/another-driver" if suffix else "cloud/driver", "cloud/capacity", "cloud/group-snapshots"
    )
    made = kustomized(peer("kubectl"), folder)
    (driver,) = (it for it in made if it["kind"] == "StatefulSet")
    flags = {it["name"]: it.get("args", ()) for it in driver["spec"]["template"]["spec"]["containers"]}
    assert "--enable-capacity" in flags["csi-provisioner"]
    if not suffix:  # the template leaves the snapshotter out
        assert "--feature-gates=CSIVolumeGroupSnapshot=true" in flags["csi-snapshotter"]
    bound = {it["roleRef"]["name"]: it["subjects"] for it in made if it["kind"].endswith("RoleBinding")}
    for role in (f"csi-bridge-driver-capacity{suffix}", f"csi-bridge-driver-group-snapshotter{suffix}"):
        assert [it["name"] for it in bound[role]] == [f"csi-bridge-driver{suffix}"]
        assert role in {it["metadata"]["name"] for it in made if it["kind"].endswith("Role")}


def _policies(made: list[Object]) -> list[Object]:
    return [it for it in made if it["kind"] == "NetworkPolicy"]


def _pods(made: list[Object]) -> list[dict[str, str]]:
    return [it["spec"]["template"]["metadata"]["labels"] for it in made if it["kind"] == "StatefulSet"]


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}
    return bool(selector["matchLabels"].items() <= labels.items())


def test_kubeedges_agents_find_the_drivers_where_edgecore_does(rendered: dict[str, list[Object]]) -> None:
    spec = _of_daemons(rendered["edge/overlays/kubeedge"])
    (agent,) = spec["containers"]
    assert "--root-dir=/var/lib/edged" in agent["args"]
    places = {it["name"]: it["hostPath"]["path"] for it in spec["volumes"] if "hostPath" in it}
    for mount in agent["volumeMounts"]:
        assert places.get(mount["name"], mount["mountPath"]) == mount["mountPath"]
        assert not mount["mountPath"].startswith("/var/lib/kubelet")


def _of_daemons(made: list[Object]) -> Object:
    (spec,) = (pod_spec(it) for it in made if it["kind"] == "DaemonSet")
    assert spec is not None
    return spec


# ---- the whole of it, from these files -------------------------------------------------------------------------------


@pytest.fixture
def deployment(short_dir: Path, supervisor: Supervisor) -> Iterator[Deployment]:
    """The bridge as deploy/ starts it, beside a kubelet's directory `root`."""
    (short_dir / "root/plugins_registry").mkdir(parents=True)
    with Deployment(short_dir, supervisor.directory) as deployment:
        yield deployment


def start_vendor(supervisor: Supervisor, directory: Path, *flags: str, name: str = "dirdriver.csi") -> Path:
    """Start the example driver where a kubelet's plugins are, with flags the test driver; its socket."""
    socket = directory / "root/plugins" / name / "csi.sock"
    socket.parent.mkdir(parents=True)
    state = directory / "vendor"
    state.mkdir()
    given = arguments(container("examples/driver/node.yaml", "dirdriver"), NODE_NAME=_NODE)
    args = with_flags(given, endpoint=f"unix://{socket}", state_dir=state, drivername=name)
    program = [sys.executable, "-m", "tests.kit.testdriver.main"] if flags else [_BIN / "dirdriver"]
    supervisor.start("dirdriver", [*program, *args, *flags], ready=lambda: listens_on(socket), timeout_s=_READY_S)
    return socket


class Cloud:
    """The cloud's part of deploy/.

    Attributes:
        account: the name of the sidecars' ServiceAccount.
        hub: the hub's container.
        serves: the driver that the hub serves itself; empty: none.
    """

    def __init__(self, plane: ControlPlane, pod: Object | None = None) -> None:
        """The sidecars of a pod of their own, or those of the hub's `pod`."""
        self._plane = plane
        if pod is None:
            plane.apply(DEPLOY / "cloud/base/hub-rbac.yaml")
            plane.apply(DEPLOY / "cloud/driver/rbac.yaml")
            self.account, self.hub, self.serves = "csi-bridge-driver", container("cloud/base/hub.yaml", "hub"), ""
        else:
            self.account, self.serves = pod["spec"]["serviceAccountName"], pod["metadata"]["labels"][_OF_DRIVER]
            (self.hub,) = (it for it in pod["spec"]["containers"] if it["name"] == "hub")

    @cached_property
    def hub_kubeconfig(self) -> Path:
        return self._plane.service_account_kubeconfig("csi-bridge", "csi-bridge-hub")


_OF_DRIVER = "csi-bridge.io/driver"


@pytest.fixture
def cloud(
    control_plane: ControlPlane,
    peer: Callable[[str], Path],
    rendered: dict[str, list[Object]],
    *,
    in_hub: bool,
) -> Iterator[Cloud]:
    """The cloud's part of deploy/. In one pod it is the whole overlay, applied."""
    if not in_hub:
        yield Cloud(control_plane)
        return
    made = yaml.safe_dump_all(rendered["cloud/overlays/one-pod"])
    kubectl = (peer("kubectl"), f"--kubeconfig={control_plane.admin_kubeconfig()}")
    _output(*kubectl, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-", text=made)
    hub = control_plane.api.get("StatefulSet", "csi-bridge-hub", namespace="csi-bridge")
    assert hub is not None
    yield Cloud(control_plane, hub["spec"]["template"])
    # Other tests have the namespace and the kinds, too.
    shared = {"Namespace", "CustomResourceDefinition"}
    rest = yaml.safe_dump_all(it for it in rendered["cloud/overlays/one-pod"] if it["kind"] not in shared)
    _output(*kubectl, "delete", "--wait=false", "-f", "-", text=rest)


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_knows_its_flags(name: str, peer: Callable[[str], Path]) -> None:
    command = [str(peer(name)), *arguments(container("cloud/driver/driver.yaml", name)), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def edge_1(control_plane: ControlPlane) -> str:
    """The node, as its kubelet and the driver's registration leave it in the cluster."""
    api, key = control_plane.api, "topology.dirdriver.csi/node"
    api.create(manifests.node(_NODE, labels={key: _NODE, "csi-bridge.io/edge": "kubelet"}))
    api.create(manifests.csi_node(_NODE, drivers={"dirdriver.csi": _NODE}, topology_keys=[key]))
    return _NODE


@pytest.fixture
def claims(control_plane: ControlPlane, namespace: str) -> Iterator[Claims]:
    """Claims of the StorageClass of examples/dynamic."""
    (storage_class,) = objects(DEPLOY / "examples/dynamic/storageclass.yaml")
    control_plane.api.create(storage_class)
    yield Claims(api=control_plane.api, namespace=namespace, storage_class=storage_class["metadata"]["name"])
    control_plane.api.delete("StorageClass", storage_class["metadata"]["name"])


@in_each_form
@pytest.mark.slow
def test_all_that_the_sidecars_may_do_is_used_and_nothing_is_missing(
    deployment: Deployment,
    cloud: Cloud,
    sidecars: Sidecars,
    claims: Claims,
    edge_1: str,
    control_plane: ControlPlane,
    supervisor: Supervisor,
    short_dir: Path,
) -> None:
    """A volume's whole life: made, grown, attached, detached, cloned, restored from a snapshot, deleted."""
    api, of_node = control_plane.api, {"volume.kubernetes.io/selected-node": edge_1}
    before = len(control_plane.asked_by(cloud.account))
    sidecars.install_snapshot_kinds()
    sidecars.start_snapshot_controller()
    deployment.start_hub_of(cloud.hub, kubeconfig=cloud.hub_kubeconfig, serves=cloud.serves)
    vendor = start_vendor(supervisor, short_dir, "--mutable-parameter=tier")
    deployment.new_agent(_NODE, of=container("edge/base/agent.yaml", "agent"), root=short_dir / "root").start()
    proxy = deployment.start_proxy("dirdriver.csi")
    deployment.wait_routed(proxy.sidecar())
    stock = [
        sidecars.start_deployed(container("cloud/driver/driver.yaml", name), proxy.socket, account=cloud.account)
        for name in SIDECARS
    ]

    api.create(manifests.attributes_class("gold", driver="dirdriver.csi", tier="gold"))
    claims.ask("data", annotations=of_node, volumeAttributesClassName="gold")
    volume = claims.wait_bound("data")["metadata"]["name"]
    claims.grow("data", 2 * GIB)
    api.wait_until("PersistentVolume", volume, lambda it: it["spec"]["capacity"]["storage"] == "2Gi", what="of 2 GiB")
    _attach_and_detach(api, volume)
    _snapshot(api, claims.namespace)
    for name, source in _SOURCES.items():
        claims.ask(name, annotations=of_node, size_bytes=2 * GIB, dataSource=source)
        claims.wait_bound(name)
    for name in (*_SOURCES, "data"):
        claims.let_go(name)
    api.delete("VolumeSnapshot", "dynamic", namespace=claims.namespace)
    wait_for(lambda: not api.all("VolumeSnapshotContent"), what="end of the snapshot", timeout_s=_READY_S)
    api.delete("VolumeSnapshotClass", "edge")
    api.delete("VolumeAttributesClass", "gold")

    with Sidecar(vendor, patient=True) as driver:
        assert not driver.call("ListVolumes").answer.entries
        assert not driver.call("ListSnapshots").answer.entries
    for process in stock:
        assert process.running
        assert not re.findall(r"^.*forbidden.*$", process.output(), re.MULTILINE)
    asked = control_plane.asked_by(cloud.account, since=before)
    unused = granted(objects(DEPLOY / "cloud/driver/rbac.yaml")) - {(it.verb, it.group, it.resource) for it in asked}
    # Where the API server cannot begin a watch with what there is (before Kubernetes 1.34), sidecars list it first. An
    # event is patched if it comes again.
    assert {it for it in unused if it[0] != "list"} <= {("patch", "", "events")}


_SOURCES = {
    "restored": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "dynamic"},
    "cloned": {"kind": "PersistentVolumeClaim", "name": "data"},
}


def _attach_and_detach(api: KubeApi, volume: str) -> None:
    api.create(manifests.volume_attachment("deploy", driver="dirdriver.csi", node=_NODE, volume=volume))
    api.wait_status("VolumeAttachment", "deploy", "attached")
    api.delete("VolumeAttachment", "deploy")
    api.wait_gone("VolumeAttachment", "deploy")


def _snapshot(api: KubeApi, namespace: str) -> None:
    for found in (
        *objects(DEPLOY / "examples/snapshot/class.yaml"),
        *objects(DEPLOY / "examples/snapshot/snapshot.yaml"),
    ):
        spec = found.get("spec")
        if spec is not None:
            found["metadata"]["namespace"] = namespace
            spec["source"] = {"persistentVolumeClaimName": "data"}
        api.create(found)
    api.wait_status("VolumeSnapshot", "dynamic", "readyToUse", namespace=namespace)


# ---- storage of each node's own, without a topology -----------------------------------------------------------------


def test_the_relay_tells_the_kubelet_the_node_of_a_driver_without_a_topology(
    deployment: Deployment,
    supervisor: Supervisor,
    short_dir: Path,
    tmp_path: Path,
    peer: Callable[[str], Path],
) -> None:
    deployment.start_hub_of(container("cloud/base/hub.yaml", "hub"))
    start_vendor(supervisor, short_dir, "--no-topology", "--no-attach")
    agent, joined = (
        _of_daemons(kustomized(peer("kubectl"), with_components(tmp_path, of, "edge/relay")))["containers"][0]
        for of in ("edge/base", "edge/overlays/join")
    )
    assert joined["args"][-1] == agent["args"][-1]
    relay = short_dir / "root/plugins/csi-bridge"
    deployment.new_agent(_NODE, of=agent, root=short_dir / "root", relay_dir=relay).start()

    socket = relay / "dirdriver.csi.sock"
    wait_for(lambda: listens_on(socket), what="the relay's socket", timeout_s=_READY_S)
    with Sidecar(socket, patient=True) as kubelet:
        told = kubelet.call("NodeGetInfo").answer
    assert dict(told.accessible_topology.segments) == {"csi-bridge.io/node": _NODE}


# ---- in KubeEdge's place ---------------------------------------------------------------------------------------------


def test_kubeedges_stateful_set_works_with_another_image(
    deployment: Deployment, supervisor: Supervisor, short_dir: Path, rendered: dict[str, list[Object]]
) -> None:
    """With the part of it that docs/from-kubeedge.md shows, the hub on CloudCore's socket, and EdgeCore's directory."""
    deployment.start_hub_of(container("cloud/base/hub.yaml", "hub"))
    name, csi = "csi-hostpath", short_dir / "csi/csi.sock"
    csi.parent.mkdir()
    start_vendor(supervisor, short_dir, name=name)
    (agent,) = _of_daemons(rendered["edge/overlays/kubeedge"])["containers"]
    deployment.new_agent(_NODE, of=agent, root=short_dir / "root").start()

    shown = re.findall("```yaml\n(.*?)```", (ROOT / "docs/from-kubeedge.md").read_text(), re.DOTALL)
    (spec,) = (found for text in shown if "containers" in (found := yaml.safe_load(text)))
    (proxy,) = spec["containers"]
    assert {it["mountPath"] for it in proxy["volumeMounts"]} == {"/csi", "/kubeedge"}
    here = {"unix:///csi/csi.sock": csi, "unix:///kubeedge/kubeedge.sock": deployment.hub.uds}
    args = " ".join(arguments(proxy, KUBE_NODE_NAME=_NODE))
    for there, socket in here.items():
        assert args.count(there) == 1
        args = args.replace(there, f"unix://{socket}")
    state = {"CSI_BRIDGE_DRIVER_STATE_DIR": str(short_dir / "csidriver")}
    supervisor.start(
        "csidriver",
        [DEPLOY / "images/csidriver", *args.split()],
        ready=lambda: listens_on(csi),
        timeout_s=_READY_S,
        environment={**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}", **state},
    )

    with Sidecar(csi) as sidecar:
        deployment.wait_routed(sidecar)
        assert sidecar.call("GetPluginInfo").answer.name == name


def test_the_patch_for_older_kubernetes_leaves_out_every_policy(tmp_path: Path, peer: Callable[[str], Path]) -> None:
    shown = re.findall("```yaml\n(.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)
    (patch,) = (text for text in shown if "admissionregistration" in text)
    with (with_components(tmp_path, "cloud/overlays/join") / "kustomization.yaml").open("a") as file:
        file.write(patch)
    kinds = [it["kind"] for it in kustomized(peer("kubectl"), tmp_path)]
    assert "StatefulSet" in kinds
    assert not [kind for kind in kinds if kind.startswith("ValidatingAdmissionPolicy")]


# ---- what a newcomer types -------------------------------------------------------------------------------------------


def typed(name: str, *, since: str = "", until: str = "") -> list[str]:
    """The blocks of shell of a page, maybe only those from a heading on, or before one."""
    page = (ROOT / f"docs/{name}.md").read_text()
    end = page.index(until) if until else len(page)
    return re.findall("```sh\n(.*?)```", page[page.index(since) : end], re.DOTALL)


_REMOVAL = "## To remove it"

_DIGEST = "5" * 64  # the digest of every image, as the registry tells it


@pytest.fixture
def newcomer(tmp_path: Path, peer: Callable[[str], Path], control_plane: ControlPlane) -> Callable[[list[str]], str]:
    """Types blocks of shell in a copy of the tree, and gives what that says, and what my-cluster makes at the end.

    The API server judges what is created, labelled and deleted, and keeps nothing of it. What needs pods that run is
    left to the tests with nodes.
    """
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin/kubectl"
    real = f"{peer('kubectl')} --kubeconfig={control_plane.admin_kubeconfig()}"
    kubectl.write_text(
        f"""#!/bin/sh
case "$*" in
*delete*) exec {real} "$@" --dry-run=server --ignore-not-found ;;
*apply*|*create*|*label*) exec {real} "$@" --dry-run=server ;;
*kustomize*) exec {real} "$@" ;;
esac
"""
    )
    docker = tmp_path / "bin/docker"
    docker.write_text(f"#!/bin/sh\n[ $# = 6 ] && echo sha256:{_DIGEST}\n")
    for program in (kubectl, docker):
        program.chmod(0o755)

    def type_(blocks: list[str]) -> str:
        look = "for each in cloud edge other; do [ ! -d my-cluster/$each ] || kubectl kustomize my-cluster/$each; done"
        done = subprocess.run(
            ["sh", "-c", "\n".join(["set -e", *blocks, look])],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"image: registry.your.company/csi-bridge/edge@sha256:{_DIGEST}" in done.stdout
        images = re.findall(r"^ *(?:- )?image: (.*)$", done.stdout, re.MULTILINE)
        assert [image for image in images if not image.endswith(f"@sha256:{_DIGEST}")] == []
        assert "secret/csi-bridge-hub-tls created" in done.stdout
        return done.stdout

    return type_


_API_SERVERS_CALLERS = ("csi-bridge-hub", "csi-bridge-driver", "csi-bridge-driver-other")
"""NetworkPolicies that let their pods call the API server."""


@pytest.mark.slow
@pytest.mark.usefixtures("kinds", "edge_1")
def test_what_the_documents_say_to_type_works(newcomer: Callable[[list[str]], str]) -> None:
    first, last = typed("install", until=_REMOVAL), typed("install", since=_REMOVAL)
    said = newcomer([*first, *typed("first-volume"), *last])

    for line in ("node/edge-1", "csidriver.storage.k8s.io/dirdriver.csi created"):
        assert line in said
    for line in ("csi-bridge.io/driver: other.csi", "- --placement=local", "- --extra-create-metadata"):
        assert line in said
    assert "secret/csi-bridge-driver-other-tls created" in said
    assert "nodePort: 30350" in said
    assert said.count("port: 8443") == len(_API_SERVERS_CALLERS)


@pytest.mark.usefixtures("kinds")
def test_what_users_of_kubeedge_are_told_to_type_works(newcomer: Callable[[list[str]], str]) -> None:
    """The images and certificates are made as install.md says."""
    said = newcomer([*typed("install", until="## 3. "), *typed("from-kubeedge")])

    for line in ("path: /var/lib/kubeedge", "--root-dir=/var/lib/edged", "hub: wss://hub.example:10350"):
        assert line in said


# ---- what kubectl does not read --------------------------------------------------------------------------------------


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    if missing := needs.program("systemd-analyze"):
        pytest.skip(missing)
    unit = tmp_path / "csi-bridge-edge.service"
    text = (DEPLOY / "edge/csi-bridge-edge.service").read_text()
    unit.write_text(text.replace("/usr/bin/csi-bridge", str(_BIN / "csi-bridge")))
    for name in ("sysinit.target", "basic.target", "shutdown.target", "local-fs.target", "network.target"):
        (tmp_path / name).write_text("[Unit]\nDefaultDependencies=no\n")
    for name in ("system.slice", "-.slice"):
        (tmp_path / name).write_text("[Unit]\nDefaultDependencies=no\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", unit],
        env={**os.environ, "SYSTEMD_UNIT_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
