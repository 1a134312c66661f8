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
    CHART,
    CRDS,
    DEPLOY,
    DRIVER,
    NAMESPACE,
    ROOT,
    SIDECARS,
    WITH_FILES,
    arguments,
    charted,
    container,
    containers,
    driver_roles,
    example_driver,
    granted,
    hub_roles,
    manifests,
    objects,
    of_kinds,
    pod_spec,
    relaying_agent,
    template,
    trial,
    with_flags,
)
from tests.kit.forms import in_each_form
from tests.kit.peers import manifests as made_up
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.deployment import SIDECARS as NAMES
from tests.kit.peers.deployment import Deployment
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
    "images/Dockerfile": "images/build.sh builds it",
    "images/build.sh": "release.py runs it",
    "images/digests.sh": "a newcomer types it, below",
    "release.py": "tests/integration/test_release.py runs it",
    "release-tools.txt": "deploy/release.py installs them",
    "trial-values.yaml": "`make trial` reads it",
    "images/csidriver": "runs below, as KubeEdge's StatefulSet would",
}
"""Files that kubectl does not read, and who does."""


# ---- the chart, on the API server ------------------------------------------------------------------------------------

OTHER: Object = {"name": "other.csi", "shortName": "other", "sidecars": SIDECARS, "args": ["--placement=local"]}
FULL: Object = {
    **DRIVER,
    "capacity": True,
    "groupSnapshots": True,
    "snapshotMetadata": {"caCert": "-----BEGIN CERTIFICATE-----"},
    "secrets": [{"namespace": "default", "names": ["storage-credentials"]}],
    "serviceAccountTokens": [{"namespace": "default", "names": ["default"]}],
}
DIGESTS = dict.fromkeys(
    ("cloud", "edge", "kubectl", "livenessprobe", "csi-snapshot-metadata"), f"sha256:{'5' * 64}"
) | {f"csi-{name}": f"sha256:{'6' * 64}" for name in SIDECARS}

FORMS: dict[str, Object] = {
    "certificates from files": WITH_FILES,
    "everything": {
        "createNamespace": True,
        "certificates": {"make": True, "names": ["hub.example"]},
        "drivers": [FULL, OTHER],
        "agent": {"relay": True, "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]},
        "audit": {"enabled": True},
        "admissionPolicies": {"digests": True},
        "images": {"digests": DIGESTS, "pullSecrets": ["registry"]},
    },
    "two hubs": {
        "createNamespace": True,
        "hub": {"replicas": 2},
        "drivers": [DRIVER, OTHER],
        "audit": {"enabled": True},
    },
    "one pod": {"createNamespace": True, "drivers": [{**DRIVER, "inHub": True}, {**OTHER, "inHub": True}]},
    "two hubs in one pod": {
        "createNamespace": True,
        "hub": {"replicas": 2, "service": {"type": "NodePort", "nodePorts": [{"wss": 30350}, {"wss": 30351}]}},
        "drivers": [{**DRIVER, "inHub": True}],
    },
    "direct volumes": {"createNamespace": True, "agent": {"relay": True, "directRuntimes": ["kata=go:4.1"]}},
    "KubeEdge": {
        "createNamespace": True,
        "hub": {"join": False, "edgecoreNodes": True, "socketDir": "/var/lib/kubeedge"},
        "agent": {
            "join": False,
            "hub": "wss://hub.example:10350",
            "rootDir": "/var/lib/edged",
            "nodeSelector": {"node-role.kubernetes.io/edge": ""},
        },
    },
    "in a trial": {"createNamespace": True, **yaml.safe_load((DEPLOY / "trial-values.yaml").read_text())},
}
"""Values of the chart, by what they are for."""


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
    """What the chart and the examples suppose to be there: the kinds of snapshots, and the namespaces."""
    sidecars.install_snapshot_kinds()
    control_plane.apply(of_kinds(trial(), "Namespace"))
    control_plane.apply(DEPLOY / "examples/driver/namespace.yaml")


_LEVEL = "pod-security.kubernetes.io/enforce"


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("form", FORMS)
def test_the_api_server_takes_every_object_of_the_chart(
    form: str, judged: Callable[[list[Object]], list[str]], control_plane: ControlPlane
) -> None:
    """Without a warning: no pod asks for more than its namespace allows, which in the cloud is next to nothing."""
    made = charted(FORMS[form])
    namespaces = {it["metadata"]["name"]: it["metadata"]["labels"] for it in of_kinds(made, "Namespace")}
    level = namespaces[NAMESPACE][_LEVEL]
    # A hub that uses a directory of its host, as root, has another level.
    assert level == ("privileged" if form == "KubeEdge" else "restricted")
    control_plane.api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {_LEVEL: level}}})
    try:
        said = judged(made)
    finally:
        control_plane.api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {_LEVEL: "restricted"}}})
    assert len(said) == len(made)
    assert all(line.endswith("serverside-applied (server dry run)") for line in said)


@pytest.mark.usefixtures("kinds")
def test_the_api_server_takes_every_object_of_the_examples(judged: Callable[[list[Object]], list[str]]) -> None:
    made = [found for path in manifests() if path.is_relative_to(DEPLOY / "examples") for found in objects(path)]
    assert len(judged(made)) == len(made)


@pytest.mark.parametrize("form", FORMS)
def test_helm_finds_no_fault_with_the_chart(form: str, peer: Callable[[str], Path]) -> None:
    _output(peer("helm"), "lint", "--strict", "--quiet", CHART, "--values=-", text=yaml.safe_dump(FORMS[form]))


def test_the_trial_is_a_rendering_of_the_chart() -> None:
    """`make trial` writes it."""
    head = "# A trial on one cluster (docs/install.md). `make trial` renders it from deploy/chart: change it there.\n"
    text = head + yaml.safe_dump_all(
        charted(FORMS["in a trial"]), default_flow_style=None, width=140, sort_keys=False, allow_unicode=True
    )
    if os.environ.get("CSI_BRIDGE_WRITE_TRIAL"):
        (DEPLOY / "trial.yaml").write_text(text)
    assert (DEPLOY / "trial.yaml").read_text() == text, "make trial"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"drivers": [DRIVER, {**DRIVER, "name": "other.csi"}]}, "dirdriver.csi and other.csi need a shortName each"),
        ({"hub": {"replicas": 2, "socketDir": "/var/lib/kubeedge"}}, "two hubs (hub.replicas=2) cannot both serve"),
        ({"hub": {"join": False}}, "set agent.join=false, and bring each node its certificate"),
        ({"agent": {"join": False}}, "also need agent.hub, the hub's address such as wss://hub.example:10350"),
        ({"agent": {"namespace": NAMESPACE}}, "are both csi-bridge"),
        ({"admissionPolicies": {"digests": True}}, "images.digests has none for"),
        ({"drivers": [{**DRIVER, "sidecars": {}, "capacity": True}]}, "is told by its provisioner"),
        ({"drivers": [{**DRIVER, "sidecars": {}, "groupSnapshots": True}]}, "are made by its snapshotter"),
        ({"drivers": [{**DRIVER, "inHub": True, "args": ["--http=x"]}]}, "may only be --placement, --nodeid and"),
        ({"hub": {"service": {"nodePorts": [{}, {}]}}}, "has 2 entries for 1 Services"),
        ({"hub": {"replica": 2}}, "additional properties 'replica' not allowed"),
        ({"hub": {"replicas": 3}}, "at '/hub/replicas'"),
        ({"drivers": [{"name": "a.csi"}]}, "missing property 'sidecars'"),
        ({"images": {"digests": {"cloud": "latest"}}}, "at '/images/digests/cloud'"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_reason(values: Object, reason: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_before_kubernetes_1_30_the_policies_must_be_left_out() -> None:
    older = "--kube-version=1.29.0"
    assert "set admissionPolicies.enabled=false" in template({}, older).stderr
    made = charted({"admissionPolicies": {"enabled": False}}, older)
    assert of_kinds(made, "StatefulSet")
    assert not of_kinds(made, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def test_every_object_is_in_the_namespace_of_the_release_or_of_the_agents() -> None:
    """But for those whose place Kubernetes or the values say."""
    made = charted(FORMS["everything"], "--namespace=storage")
    places = {it["metadata"].get("namespace") for it in made}
    assert places == {None, "storage", "csi-bridge-edge", "kube-node-lease", "default"}
    of_agents = {it["kind"] for it in made if it["metadata"].get("namespace") == "csi-bridge-edge"}
    assert of_agents == {"ServiceAccount", "DaemonSet"}
    text = yaml.safe_dump_all(made)
    assert "system:serviceaccount:storage:csi-bridge-hub" in text
    assert not re.findall(r"serviceaccount:csi-bridge:|csi-bridge\.svc", text)


def test_an_uninstalled_chart_leaves_the_records() -> None:
    kept = {it["metadata"]["name"] for it in charted() if "helm.sh/resource-policy" in str(it["metadata"])}
    assert kept == {it["metadata"]["name"] for it in objects(CRDS)}
    assert len(kept) == 4


def test_no_file_is_left_out() -> None:
    read = {DEPLOY / name for name in STEP_BY_STEP} | set(manifests())
    read |= {path for path in CHART.rglob("*") if path.is_file()}
    assert sorted(read) == sorted(path for path in DEPLOY.rglob("*") if path.is_file())


@pytest.mark.parametrize("form", FORMS)
def test_whoever_may_call_the_hub_alone_may_call_its_pod(form: str) -> None:
    """The podSelector of a way out means the hub's pod, whatever labels it has."""
    made = charted(FORMS[form])
    (hub,) = (it["spec"]["template"]["metadata"]["labels"] for it in of_kinds(made, "StatefulSet", of="csi-bridge-hub"))
    ways = [
        _selects(to["podSelector"], hub)
        for policy in of_kinds(made, "NetworkPolicy")
        for rule in policy["spec"]["egress"]
        for to in rule.get("to", ())
    ]
    assert all(ways)
    drivers = FORMS[form].get("drivers", [])
    apart, inside = (sum(bool(it.get("inHub")) is where for it in drivers) for where in (False, True))
    assert len(ways) == apart + bool(inside)


@pytest.mark.parametrize("form", FORMS)
def test_edge_nodes_and_proxy_drivers_reach_the_ports_that_the_hub_offers_them(form: str) -> None:
    made = charted(FORMS[form])
    ports = {it["name"] for it in container("hub", FORMS[form])["ports"]} - {"hub-http"}
    services = {
        it["metadata"]["name"]: {port["targetPort"] for port in it["spec"]["ports"]} for it in of_kinds(made, "Service")
    }
    services.pop("csi-bridge-driver-metadata", None)  # for backup programs
    assert services.pop("csi-bridge-hub") == {"wss"}
    assert all(it == ports for it in services.values())
    (policy,) = of_kinds(made, "NetworkPolicy", of="csi-bridge-hub")
    assert {rule["ports"][0]["port"] for rule in policy["spec"]["ingress"] if "from" not in rule} == ports


def test_each_of_two_hubs_has_an_address_of_its_own() -> None:
    """By which nodes and proxy drivers reach it. The certificate that docs/install.md makes has all these names."""
    made = charted(FORMS["two hubs"])
    (hub,) = (it["spec"] for it in of_kinds(made, "StatefulSet", of="csi-bridge-hub"))
    labels = hub["template"]["metadata"]["labels"]
    pods = [f"csi-bridge-hub-{number}" for number in range(hub["replicas"])]
    ways = {it["metadata"]["name"]: it["spec"] for it in of_kinds(made, "Service")}
    assert ways.pop("csi-bridge-hub")["selector"] == labels
    assert {name: it["selector"] for name, it in ways.items()} == {
        pod: {**labels, "statefulset.kubernetes.io/pod-name": pod} for pod in pods
    }
    inside = [f"{pod}.csi-bridge.svc" for pod in pods]
    for driver in (it["spec"] for it in of_kinds(made, "StatefulSet", of="csi-bridge-driver")):
        spec = driver["template"]["spec"]
        assert _dialled(spec["containers"][0]) == {f"wss://{name}:10350" for name in inside}
        (spread,) = spec["topologySpreadConstraints"]
        assert (driver["replicas"], spread["matchLabelKeys"]) == (2, ["csi-bridge.io/driver"])
        assert _selects(spread["labelSelector"], driver["template"]["metadata"]["labels"])
    assert _dialled(container("hub", FORMS["two hubs in one pod"])) == {f"wss://{name}:10350" for name in inside}
    named = (ROOT / "docs/install.md").read_text().partition("### Two hubs")[2].partition("```")[2].partition("```")[0]
    assert {*inside, "csi-bridge-hub.csi-bridge.svc"} < set(named.replace("\\\n", "").split())
    (budget,) = (it["spec"] for it in of_kinds(made, "PodDisruptionBudget"))
    (apart,) = hub["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [_selects(it, labels) for it in (budget["selector"], apart["labelSelector"])] == [True, True]


def _dialled(container: Object) -> set[str]:
    return {it.partition("=")[2] for it in container["args"] if it.startswith("--hub-endpoint=")}


def test_the_nightly_audit_asks_both_hubs() -> None:
    """Only the leader answers, and one answer is enough."""
    made = charted(FORMS["two hubs"])
    (job,) = (it["spec"]["jobTemplate"]["spec"] for it in of_kinds(made, "CronJob"))
    assert (job["completions"], job["successPolicy"]) == (2, {"rules": [{"succeededCount": 1}]})
    (audit,) = job["template"]["spec"]["containers"]
    asked = {arguments(audit, JOB_COMPLETION_INDEX=str(number))[2] for number in range(job["completions"])}
    (role,) = (it["rules"] for it in of_kinds(made, "Role", of="csi-bridge-audit"))
    assert [asked] * 2 == [set(rule["resourceNames"]) for rule in role]


def test_what_is_made_for_another_driver_is_for_its_pod_alone() -> None:
    made = charted(FORMS["two hubs"])
    first, other = (
        it["spec"]["template"]["metadata"]["labels"] for it in of_kinds(made, "StatefulSet", of="csi-bridge-driver")
    )
    of_other = of_kinds(made, "NetworkPolicy", "StatefulSet", of="csi-bridge-driver-other")
    selectors = [it["spec"].get("podSelector") or it["spec"]["selector"] for it in of_other]
    assert [(_selects(it, other), _selects(it, first)) for it in selectors] == [(True, False)] * 2


def test_what_runs_in_the_cloud_keeps_off_the_edge() -> None:
    wanted = {("csi-bridge.io/edge", "DoesNotExist"), ("node-role.kubernetes.io/edge", "DoesNotExist")}
    made = of_kinds(charted(FORMS["everything"]), "StatefulSet", "CronJob", "Job")
    assert len(made) == 5
    for spec in filter(None, map(pod_spec, made)):
        required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = required["nodeSelectorTerms"]
        assert {(it["key"], it["operator"]) for it in term["matchExpressions"]} == wanted


@pytest.mark.parametrize("name", ["hub", "csi-provisioner", "csi-provisioner-other"])
def test_in_one_pod_the_hub_serves_the_sockets_that_the_sidecars_call(name: str) -> None:
    """They are those of a pod of their own, without the liveness probe: the hub's own probe is about its process."""
    inside = container(name, FORMS["one pod"])
    suffix = "-other" if name.endswith("-other") else ""
    if name == "hub":
        served = [it for it in inside["args"] if it.startswith("--serve=")]
        assert served == [
            "--serve=dirdriver.csi=unix:///csi/csi.sock",
            "--serve=other.csi=unix:///csi-other/csi.sock,placement=local",
        ]
        places = {it["name"]: it["mountPath"] for it in inside["volumeMounts"]}
        assert (places["socket"], places["socket-other"]) == ("/csi", "/csi-other")
        return
    alone = container(name.removesuffix("-other"))
    assert inside["volumeMounts"] == [{"name": f"socket{suffix}", "mountPath": "/csi"}]
    same = {key: value for key, value in inside.items() if key not in {"name", "volumeMounts"}}
    assert same == {key: value for key, value in alone.items() if key not in {"name", "volumeMounts"}}


@pytest.mark.parametrize("suffix", ["", "-other"])
def test_a_drivers_further_permissions_are_for_its_own_account(suffix: str) -> None:
    made = charted({"drivers": [{**FULL, **({"shortName": suffix[1:]} if suffix else {})}]})
    (driver,) = of_kinds(made, "StatefulSet", of="csi-bridge-driver")
    flags = {it["name"]: it.get("args", ()) for it in driver["spec"]["template"]["spec"]["containers"]}
    assert "--enable-capacity" in flags["csi-provisioner"]
    assert "--feature-gates=CSIVolumeGroupSnapshot=true" in flags["csi-snapshotter"]
    bound = {it["roleRef"]["name"]: it["subjects"] for it in made if it["kind"].endswith("RoleBinding")}
    for role in (f"csi-bridge-driver-capacity{suffix}", f"csi-bridge-driver-group-snapshotter{suffix}"):
        assert [it["name"] for it in bound[role]] == [f"csi-bridge-driver{suffix}"]
        assert role in {it["metadata"]["name"] for it in made if it["kind"].endswith("Role")}


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}
    return bool(selector["matchLabels"].items() <= labels.items())


def test_kubeedges_agents_find_the_drivers_where_edgecore_does() -> None:
    spec = _of_daemons(charted(FORMS["KubeEdge"]))
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
    given = arguments(example_driver(), NODE_NAME=_NODE)
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
            plane.apply([*hub_roles(), *driver_roles()])
            self.account, self.hub, self.serves = "csi-bridge-driver", container("hub"), ""
        else:
            self.account, self.serves = pod["spec"]["serviceAccountName"], "dirdriver.csi"
            (self.hub,) = (it for it in pod["spec"]["containers"] if it["name"] == "hub")

    @cached_property
    def hub_kubeconfig(self) -> Path:
        return self._plane.service_account_kubeconfig("csi-bridge", "csi-bridge-hub")


@pytest.fixture
def cloud(
    control_plane: ControlPlane,
    peer: Callable[[str], Path],
    *,
    in_hub: bool,
) -> Iterator[Cloud]:
    """The cloud's part of deploy/. In one pod it is all that the chart makes, applied."""
    if not in_hub:
        yield Cloud(control_plane)
        return
    rendered = charted({**WITH_FILES, "agent": {"enabled": False}, "drivers": [{**DRIVER, "inHub": True}]})
    made = yaml.safe_dump_all(rendered)
    kubectl = (peer("kubectl"), f"--kubeconfig={control_plane.admin_kubeconfig()}")
    _output(*kubectl, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-", text=made)
    hub = control_plane.api.get("StatefulSet", "csi-bridge-hub", namespace="csi-bridge")
    assert hub is not None
    yield Cloud(control_plane, hub["spec"]["template"])
    # Other tests have the namespace and the kinds, too.
    shared = {"Namespace", "CustomResourceDefinition"}
    rest = yaml.safe_dump_all(it for it in rendered if it["kind"] not in shared)
    _output(*kubectl, "delete", "--wait=false", "-f", "-", text=rest)


@pytest.mark.parametrize("name", NAMES)
def test_a_sidecar_knows_its_flags(name: str, peer: Callable[[str], Path]) -> None:
    command = [str(peer(name)), *arguments(container(name)), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def edge_1(control_plane: ControlPlane) -> str:
    """The node, as its kubelet and the driver's registration leave it in the cluster."""
    api, key = control_plane.api, "topology.dirdriver.csi/node"
    api.create(made_up.node(_NODE, labels={key: _NODE, "csi-bridge.io/edge": "kubelet"}))
    api.create(made_up.csi_node(_NODE, drivers={"dirdriver.csi": _NODE}, topology_keys=[key]))
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
    deployment.new_agent(_NODE, of=container("agent"), root=short_dir / "root").start()
    proxy = deployment.start_proxy("dirdriver.csi")
    deployment.wait_routed(proxy.sidecar())
    stock = [sidecars.start_deployed(container(name), proxy.socket, account=cloud.account) for name in NAMES]

    api.create(made_up.attributes_class("gold", driver="dirdriver.csi", tier="gold"))
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
    unused = granted(driver_roles()) - {(it.verb, it.group, it.resource) for it in asked}
    # Where the API server cannot begin a watch with what there is (before Kubernetes 1.34), sidecars list it first. An
    # event is patched if it comes again.
    assert {it for it in unused if it[0] != "list"} <= {("patch", "", "events")}


_SOURCES = {
    "restored": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "dynamic"},
    "cloned": {"kind": "PersistentVolumeClaim", "name": "data"},
}


def _attach_and_detach(api: KubeApi, volume: str) -> None:
    api.create(made_up.volume_attachment("deploy", driver="dirdriver.csi", node=_NODE, volume=volume))
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
) -> None:
    deployment.start_hub_of(container("hub"))
    start_vendor(supervisor, short_dir, "--no-topology", "--no-attach")
    agent = relaying_agent(directRuntimes=[])
    relay = short_dir / "root/plugins/csi-bridge"
    deployment.new_agent(_NODE, of=agent, root=short_dir / "root", relay_dir=relay).start()

    socket = relay / "dirdriver.csi.sock"
    wait_for(lambda: listens_on(socket), what="the relay's socket", timeout_s=_READY_S)
    with Sidecar(socket, patient=True) as kubelet:
        told = kubelet.call("NodeGetInfo").answer
    assert dict(told.accessible_topology.segments) == {"csi-bridge.io/node": _NODE}


# ---- in KubeEdge's place ---------------------------------------------------------------------------------------------


def test_kubeedges_stateful_set_works_with_another_image(
    deployment: Deployment, supervisor: Supervisor, short_dir: Path
) -> None:
    """With the part of it that docs/from-kubeedge.md shows, the hub on CloudCore's socket, and EdgeCore's directory."""
    deployment.start_hub_of(container("hub"))
    name, csi = "csi-hostpath", short_dir / "csi/csi.sock"
    csi.parent.mkdir()
    start_vendor(supervisor, short_dir, name=name)
    agent = container("agent", FORMS["KubeEdge"])
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
    """Types blocks of shell in a copy of the tree, and gives what that says, and the manifests of every installation.

    The API server judges what is created, labelled and deleted, and keeps nothing of it. What needs pods that run is
    left to the tests with nodes.
    """
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "bin").mkdir()
    kubectl, helm = tmp_path / "bin/kubectl", tmp_path / "bin/helm"
    real = f"{peer('kubectl')} --kubeconfig={control_plane.admin_kubeconfig()}"
    kubectl.write_text(
        f"""#!/bin/sh
case "$*" in
"create namespace"*) ;; # other tests have made it
*delete*) exec {real} "$@" --dry-run=server --ignore-not-found ;;
*apply*|*create*|*label*) exec {real} "$@" --dry-run=server ;;
esac
"""
    )
    helm.write_text(
        f"""#!/bin/sh
verb=$1
[ "$verb" != upgrade ] || [ "$2" != --install ] || shift
shift
case $verb in
install|upgrade) {peer("helm")} template "$@" >rendered.yaml
    {real} apply --server-side --force-conflicts --dry-run=server --validate=strict -f rendered.yaml
    cat rendered.yaml ;;
template) exec {peer("helm")} template "$@" ;;
esac
"""
    )
    docker = tmp_path / "bin/docker"
    docker.write_text(f"#!/bin/sh\n[ $# = 6 ] && echo sha256:{_DIGEST}\n")
    for program in (kubectl, helm, docker):
        program.chmod(0o755)

    def type_(blocks: list[str]) -> str:
        done = subprocess.run(
            ["sh", "-c", "\n".join(["set -e", *blocks])],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "image: registry.your.company/csi-bridge/edge:0.1.0" in done.stdout
        return done.stdout

    return type_


@pytest.mark.slow
@pytest.mark.usefixtures("kinds", "edge_1")
def test_what_the_documents_say_to_type_works(newcomer: Callable[[list[str]], str], tmp_path: Path) -> None:
    first, last = typed("install", until=_REMOVAL), typed("install", since=_REMOVAL)
    said = newcomer([*first, *typed("first-volume"), *last])

    for line in ("node/edge-1", "csidriver.storage.k8s.io/dirdriver.csi created", "secret/csi-bridge-hub-tls created"):
        assert line in said
    assert "secret/csi-bridge-driver-other-tls created" in said
    # The last installation names every image by its digest.
    images = [it["image"] for it in containers(objects(tmp_path / "rendered.yaml"))]
    assert images
    assert [image for image in images if not image.endswith(f"@sha256:{_DIGEST}")] == []


@pytest.mark.parametrize("page", ["install", "from-kubeedge", "runtime-assisted", "storage"])
def test_the_values_that_a_page_shows_are_those_of_the_chart(page: str) -> None:
    """The blocks of YAML with values, and the values in a line of text."""
    text = (ROOT / f"docs/{page}.md").read_text()
    names = yaml.safe_load((CHART / "values.yaml").read_text()).keys()
    shown = re.findall("```yaml\n(.*?)```", text, re.DOTALL)
    shown += [f"{{{it}}}" if not it.startswith("{") else it for it in re.findall(r"`(\w+: \{[^`]*\})`", text)]
    blocks = [found for it in shown if "…" not in it for found in yaml.safe_load_all(it) if isinstance(found, dict)]
    found = [values for values in blocks if values.keys() <= names]
    assert len(found) >= (6 if page == "install" else page == "runtime-assisted")
    for values in found:
        assert charted(values)


@pytest.mark.usefixtures("kinds")
def test_what_users_of_kubeedge_are_told_to_type_works(newcomer: Callable[[list[str]], str]) -> None:
    """The images and certificates are made as install.md says."""
    said = newcomer([*typed("install", until="## 3. "), *typed("from-kubeedge")])

    for line in ("path: /var/lib/kubeedge", "--root-dir=/var/lib/kubelet", 'value: "wss://hub.example:10350"'):
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
