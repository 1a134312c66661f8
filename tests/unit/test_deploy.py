"""deploy/, as far as it can be judged without a cluster: our own flags, versions, and what the files promise."""

import base64
import json
import os
import re
import runpy
import shlex
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import DNSName, IPAddress, SubjectAlternativeName, load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID
from kubernetes.client.exceptions import ApiException

from cli import main, process
from cli.process_options import EDGE_OPTIONS
from cloud.trust.admission import admit
from common.errors import HandshakeRefused
from common.net.certificate import with_certificate
from common.net.enrolment import rights_in
from common.net.peer import Peer
from common.net.settings import ProcessSettings
from common.observe.version import VERSION, introduce
from edge.settings import AgentFlags
from examples.dirdriver import main as dirdriver
from tests.kit import needs
from tests.kit.certificates import handshake
from tests.kit.deployed import (
    CHART,
    DEPLOY,
    OURS,
    ROOT,
    arguments,
    containers,
    example_driver,
    manifests,
    objects,
    of_kinds,
    pod_spec,
    trial,
)

Object = dict[str, Any]

VALUES = {"DRIVER_NAME": "dirdriver.csi", "NODE_NAME": "n1"}
"""What the pods' environment says, where a manifest takes it from elsewhere."""

CONTAINERS = {it["name"]: it for path in manifests() for it in containers(objects(path))}

OWN = {name: it for name, it in CONTAINERS.items() if it["image"].startswith(OURS)}

DOCKERFILE = (DEPLOY / "images/Dockerfile").read_text()

GO_MODULES = (ROOT / "tests/peers/go/sidecars/go.mod").read_text()


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProcessSettings]:
    """Gives the real command line some arguments, and returns the settings with which the process would have run."""
    found: list[ProcessSettings] = []
    monkeypatch.setattr(process, "run", lambda settings, _main, **_: found.append(settings))

    def run(*argv: str) -> ProcessSettings:
        monkeypatch.setattr(sys, "argv", ["csi-bridge", *argv])
        with pytest.raises(SystemExit) as exit_:
            main.main()
        assert not exit_.value.code, "it says itself what is wrong with them"
        return found.pop()

    return run


@pytest.mark.parametrize("name", ["hub", "driver", "agent"])
def test_the_command_line_takes_every_containers_arguments(
    settings_of: Callable[..., ProcessSettings], name: str
) -> None:
    assert settings_of(*arguments(OWN[name], **VALUES))


def test_what_the_agent_leaves_on_a_node_is_what_the_page_says_to_remove() -> None:
    spec = pod_spec(of_kinds(trial(), "DaemonSet")[0])
    assert spec is not None
    on_host = [Path(it["hostPath"]["path"]) for it in spec["volumes"] if "hostPath" in it]
    steps = (ROOT / "docs/install.md").read_text().partition("**5. The nodes' disks.**")[2]
    removed = [Path(it) for it in re.findall("`(/.+?)`", steps.partition("Without a kubelet")[0])]
    made = [path for path in on_host if path.parent != Path("/var/lib/kubelet")]
    assert [str(path) for path in made if not any(map(path.is_relative_to, removed))] == []
    assert Path("/var/lib/kubelet/plugins/csi-bridge") in removed  # the relay's


def test_the_image_of_agents_with_direct_volumes_is_built_as_its_file_says() -> None:
    assert '"edge-direct"' in (CHART / "templates/agent.yaml").read_text()
    assert "FROM base AS edge-direct\n" in DOCKERFILE


def test_the_example_driver_takes_its_containers_arguments() -> None:
    context = dirdriver.main.make_context("dirdriver", arguments(example_driver(), **VALUES))
    assert context.params["drivername"] == "dirdriver.csi"


def test_the_images_are_those_of_this_version() -> None:
    assert {it["image"].rpartition(":")[2] for it in OWN.values()} == {VERSION}
    told = re.findall(r"-t \S+:(\S+)", DOCKERFILE)
    assert set(told) == {VERSION}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_nightly_audit_is_a_command_in_the_hubs_pod() -> None:
    text = (CHART / "templates/audit.yaml").read_text()
    words = re.findall(r"^ +- (.+)$", text[text.index("args:") :], re.MULTILINE)
    at = words.index("--")
    assert words[1] == "exec"
    assert "--container=hub" in words[:at]
    program, command, *flags = words[at + 1 :]
    assert program == "csi-bridge"
    main.cli.commands[command].make_context(command, flags)


def test_the_sidecars_are_those_that_the_tests_run() -> None:
    tags = yaml.safe_load((CHART / "values.yaml").read_text())["images"]["sidecarTags"]
    stock = {name: tag for name, tag in tags.items() if name.startswith("csi-")}
    # No Go module proxy has this one: somebody builds it by hand.
    by_hand = stock.pop("csi-snapshot-metadata")
    assert f"run version {by_hand.removeprefix('v')} and its client" in (ROOT / "docs/storage.md").read_text()
    assert set(stock) == {"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"}
    for name, version in stock.items():
        module = f"github.com/kubernetes-csi/{name.replace('csi-', 'external-')}/{version.partition('.')[0]}"
        assert re.search(rf"^\t{re.escape(module)} {re.escape(version)}\b", GO_MODULES, re.MULTILINE)


def test_the_schema_knows_every_value_and_no_other() -> None:
    def compare(values: Any, schema: Object, path: str = "") -> None:
        if schema.get("additionalProperties") is False:
            assert set(values) == set(schema["properties"]) - {"global"}, path
            for name, value in values.items():
                compare(value, schema["properties"][name], f"{path}.{name}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    compare(values, json.loads((CHART / "values.schema.json").read_text()))


# ---- what the examples promise --------------------------------------------------------------------------------------


def examples(kind: str) -> Iterator[Object]:
    for path in manifests():
        if path.is_relative_to(DEPLOY / "examples"):
            yield from (it for it in objects(path) if it["kind"] == kind)


def test_the_restored_volume_is_wanted_where_the_snapshots_volume_is() -> None:
    """Else, of several edge nodes, the scheduler takes one that the copy cannot be made on."""
    pods = {it["metadata"]["name"]: it for it in examples("Pod")}
    terms = pods["restored"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = terms
    assert term["topologyKey"] == "kubernetes.io/hostname"
    meant = term["labelSelector"]["matchLabels"].items()
    assert [name for name, it in pods.items() if meant <= it["metadata"].get("labels", {}).items()] == ["dynamic"]


@pytest.mark.parametrize("key", ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"])
def test_the_examples_pods_stay_on_a_node_that_is_away(key: str) -> None:
    pods = list(examples("Pod"))
    assert len(pods) == 4
    for pod in pods:
        assert {"key": key, "operator": "Exists", "effect": "NoExecute"} in pod["spec"]["tolerations"]


def test_the_examples_pods_may_run_without_a_kubelet_and_prefer_an_edge_node_with_one() -> None:
    """Where there are nodes of both kinds, the first volume is seen from a container."""
    for pod in examples("Pod"):
        assert {"key": "csi-bridge.io/edge", "operator": "Exists"} in pod["spec"]["tolerations"]
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        (term,) = preferred["preference"]["matchExpressions"]
        assert term == {"key": "csi-bridge.io/edge", "operator": "In", "values": ["kubelet"]}


def test_the_restored_volume_has_room_for_the_expanded_one() -> None:
    page = (ROOT / "docs/first-volume.md").read_text()
    (expanded,) = re.findall(r"kubectl patch pvc dynamic .*\"storage\": \"(\w+)\"", page)
    claims = {
        it["metadata"]["name"]: it["spec"]["resources"]["requests"]["storage"]
        for it in examples("PersistentVolumeClaim")
    }
    assert claims["restored"] == expanded


def test_the_example_driver_brings_its_own_namespace() -> None:
    """It can be applied before the agents, and without them."""
    made = [it for path in (DEPLOY / "examples/driver").glob("*.yaml") for it in objects(path)]
    namespaces = {it["metadata"]["name"] for it in made if it["kind"] == "Namespace"}
    assert {it["metadata"]["namespace"] for it in made if "namespace" in it["metadata"]} == namespaces


def test_the_examples_volumes_are_of_the_example_driver() -> None:
    (name,) = {it["metadata"]["name"] for it in examples("CSIDriver")}
    assert {it["provisioner"] for it in examples("StorageClass")} == {name}
    assert {it["driver"] for it in examples("VolumeSnapshotClass")} == {name}
    assert {it["spec"]["csi"]["driver"] for it in examples("PersistentVolume")} == {name}
    classes = {it["metadata"]["name"] for it in examples("StorageClass")}
    assert {it["spec"]["storageClassName"] for it in examples("PersistentVolumeClaim")} == {*classes, ""}


# ---- certificates ----------------------------------------------------------------------------------------------------


needs_openssl = needs.skip_without(needs.program("openssl"))


def certify(directory: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call certificates.sh, with these variables in its environment."""
    command = [str(DEPLOY / "certificates.sh"), str(directory), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)


def files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@needs_openssl
def test_a_name_of_the_hub_is_an_address_only_if_all_of_it_is_one(tmp_path: Path) -> None:
    names = ("hub.10.0.0.5.nip.io", "10-0-0-5.example", "10.0.0.5", "2001:db8::1")
    assert certify(tmp_path, "hub", *names).returncode == 0
    certificate = load_pem_x509_certificate((tmp_path / "hub/tls.crt").read_bytes())
    told = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    assert told.get_values_for_type(DNSName) == list(names[:2])
    assert [str(it) for it in told.get_values_for_type(IPAddress)] == list(names[2:])


@needs_openssl
def test_hub_and_node_take_each_others_certificates_when_they_check_strictly(tmp_path: Path) -> None:
    """As Python's default context does from 3.13 on."""
    for argv in (("hub", "hub.example"), ("edge", "n1")):
        assert certify(tmp_path, *argv).returncode == 0
    client, server = (
        strict(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "edge-n1"),
        strict(ssl.PROTOCOL_TLS_SERVER, tmp_path / "hub"),
    )
    node, hub = handshake(client, server, name="hub.example")
    assert subject(hub.getpeercert()) == {"organizationName": "system:nodes", "commonName": "system:node:n1"}
    assert subject(node.getpeercert()) == {"organizationName": "csi-bridge:hubs", "commonName": "csi-bridge:hub"}


def strict(protocol: int, made: Path) -> ssl.SSLContext:
    """A context with what certificates.sh has made for one end."""
    context = ssl.SSLContext(protocol)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(made / "ca.crt")
    context.load_cert_chain(made / "tls.crt", made / "tls.key")
    return context


def subject(certificate: Object | None) -> dict[str, str]:
    assert certificate is not None, "the handshake has not ended"
    return {name: value for ((name, value),) in certificate["subject"]}


@needs_openssl
def test_a_certificates_folder_has_what_goes_into_the_secret_and_nothing_else(tmp_path: Path) -> None:
    assert certify(tmp_path, "edge", "n1").stdout == f"{tmp_path}/edge-n1\n"
    authority = {"ca.crt", "ca.key"}
    assert files(tmp_path).keys() == authority | {f"edge-n1/{name}" for name in ("ca.crt", "tls.crt", "tls.key")}


@needs_openssl
def test_a_renewal_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    certify(tmp_path, "hub", "hub.example")
    before = files(tmp_path)

    done = certify(tmp_path, "hub", "hub.example", "10.0.0.5.6")

    assert done.returncode != 0
    assert "10.0.0.5.6" in done.stderr
    assert files(tmp_path) == before


def shown(folder: Path) -> Peer:
    """What the hub reads in a certificate."""
    certificate = load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    return with_certificate("10.0.0.1:7", certificate.public_bytes(Encoding.DER))


@needs_openssl
@pytest.mark.parametrize(("role", "name"), [("edge", "n1.example.org"), ("driver", "Dir-driver.csi")])
@pytest.mark.parametrize("longer", [0, 40])
def test_the_hub_admits_the_holder_of_a_certificate_under_its_name_alone(
    role: str, name: str, longer: int, tmp_path: Path
) -> None:
    name += "x" * longer
    assert certify(tmp_path, role, name).returncode == 0
    peer = shown(tmp_path / f"{role}-{name}")
    assert admit(introduce(role, name, instance="i"), peer, insecure=False) == role
    for other_role, other in ((role, name + "x"), ("driver" if role == "edge" else "edge", name.lower())):
        with pytest.raises(HandshakeRefused):
            admit(introduce(other_role, other, instance="i"), peer, insecure=False)


@needs_openssl
def test_a_hubs_certificate_is_for_the_drivers_that_it_serves_and_for_no_client_if_it_serves_none(
    tmp_path: Path,
) -> None:
    assert certify(tmp_path, "hub", "hub.example").returncode == 0
    assert shown(tmp_path / "hub").purposes == (ExtendedKeyUsageOID.SERVER_AUTH.dotted_string,)
    served = ("csi-bridge:driver:a.csi", "csi-bridge:driver:b.csi")
    assert certify(tmp_path, "hub", "hub.example", *served).returncode == 0
    peer = shown(tmp_path / "hub")
    for driver in ("a.csi", "b.csi"):
        assert admit(introduce("driver", driver, instance="i"), peer, insecure=False) == "driver"
    assert ExtendedKeyUsageOID.SERVER_AUTH.dotted_string in (peer.purposes or ())
    for wrong in ("", "a.csi,URI:csi-bridge:node:n2", "a_b"):
        assert certify(tmp_path, "hub", f"csi-bridge:driver:{wrong}").returncode == 2


@needs_openssl
def test_a_nodes_certificate_names_its_drivers(tmp_path: Path) -> None:
    assert certify(tmp_path, "edge", "n1", "a.csi", "b.csi").returncode == 0
    peer = shown(tmp_path / "edge-n1")
    assert admit(introduce("edge", "n1", instance="i"), peer, insecure=False) == "edge"
    assert rights_in(peer.uris) == ("a.csi", "b.csi")
    assert peer.common_names == ("system:node:n1",), "for a hub that reads common names alone"
    assert certify(tmp_path, "edge", "n1", "a.csi,URI:csi-bridge:node:n2").returncode == 2


@needs_openssl
@pytest.mark.parametrize(("role", "longest"), [("driver", 63), ("edge", 250)])
def test_a_name_that_is_too_long_is_refused_with_the_limit(role: str, longest: int, tmp_path: Path) -> None:
    done = certify(tmp_path, role, "n" * longest)
    assert (done.returncode, done.stderr) == (0, "")
    before = files(tmp_path)

    done = certify(tmp_path, role, "n" * (longest + 1))

    assert done.returncode != 0
    assert done.stderr.endswith(f"has {longest + 1} characters; the limit is {longest}\n")
    assert files(tmp_path) == before


@needs_openssl
@pytest.mark.parametrize("role", ["edge", "driver"])
@pytest.mark.parametrize("name", ["", "../n1", "n1,URI:csi-bridge:node:n2", "n1/CN=system:node:n2", "n 1", "n1\nn2"])
def test_a_name_that_would_say_more_than_one_thing_is_refused(role: str, name: str, tmp_path: Path) -> None:
    done = certify(tmp_path / "tls", role, name)
    assert (done.returncode, "is no name of a Kubernetes node or CSI driver" in done.stderr) == (2, True)
    assert not (tmp_path / "tls").exists()


@needs_openssl
@pytest.mark.parametrize("days", ["0", "-1", "00", "1y", "1.5", " 7"])
def test_days_that_make_no_certificate_that_counts_are_refused_before_anything_is_made(
    days: str, tmp_path: Path
) -> None:
    tls = tmp_path / "tls"
    done = certify(tls, "edge", "n1", DAYS=days)
    assert (done.returncode, done.stderr) == (
        2, f"{DEPLOY}/certificates.sh: DAYS={days} must be a whole number of days, 1 or more\n"
    )  # fmt: skip
    assert not tls.exists()


@needs_openssl
def test_a_certificate_ends_after_the_days_that_were_asked_for(tmp_path: Path) -> None:
    for days, expected in (("10", 10), ("", 365)):
        assert certify(tmp_path, "edge", "n1", DAYS=days).returncode == 0
        made = load_pem_x509_certificate((tmp_path / "edge-n1/tls.crt").read_bytes())
        assert (made.not_valid_after_utc - made.not_valid_before_utc).days == expected


class Secrets:
    """The Secrets of a namespace, as the Job's script reads and makes them."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, str]] = {}

    def read_namespaced_secret(self, name: str, namespace: str) -> SimpleNamespace:
        if name not in self.made:
            raise ApiException(status=404)
        return SimpleNamespace(data=self.made[name])

    def create_namespaced_secret(self, namespace: str, body: Object) -> SimpleNamespace:
        self.made[body["metadata"]["name"]] = body["data"]
        return SimpleNamespace(data=body["data"])


def test_the_charts_job_makes_certificates_that_the_hub_admits_and_replaces_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = runpy.run_path(str(CHART / "files/certificates.py"))
    secrets = Secrets()
    monkeypatch.setattr(script["config"], "load_incluster_config", lambda: None)
    monkeypatch.setattr(script["client"], "CoreV1Api", lambda: secrets)
    names = ("csi-bridge-hub.csi-bridge.svc", "10.0.0.5", "csi-bridge:driver:a.csi")
    for drivers in (("b.csi=of-b",), ("b.csi=of-b", "c.csi=of-c")):
        before = dict(secrets.made)
        script["main"]("csi-bridge", " ".join(names), *drivers)
        assert before.items() <= secrets.made.items()
    assert secrets.made.keys() == {"csi-bridge-hub-ca", "csi-bridge-hub-tls", "of-b", "of-c"}

    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        for file, content in secrets.made[name].items():
            (tmp_path / name / file).write_bytes(base64.b64decode(content))
        return tmp_path / name

    hub, driver = folder("csi-bridge-hub-tls"), folder("of-b")
    assert admit(introduce("driver", "b.csi", instance="i"), shown(driver), insecure=False) == "driver"
    assert admit(introduce("driver", "a.csi", instance="i"), shown(hub), insecure=False) == "driver"
    with pytest.raises(HandshakeRefused):
        admit(introduce("driver", "a.csi", instance="i"), shown(driver), insecure=False)
    client, server = strict(ssl.PROTOCOL_TLS_CLIENT, driver), strict(ssl.PROTOCOL_TLS_SERVER, hub)
    of_driver, of_hub = handshake(client, server, name="csi-bridge-hub.csi-bridge.svc")
    wanted = {"organizationName": "csi-bridge:drivers", "commonName": "csi-bridge:driver:b.csi"}
    assert subject(of_hub.getpeercert()) == wanted
    assert subject(of_driver.getpeercert()) == {"organizationName": "csi-bridge:hubs", "commonName": "csi-bridge:hub"}


# ---- the systemd unit ------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """What edge.env says, with the lines that wait there as comments."""
    lines = (DEPLOY / "edge/edge.env").read_text().splitlines()
    return dict(line.removeprefix("#").split("=", 1) for line in lines if re.match(r"#?[A-Z_]+=", line))


def test_the_units_settings_are_those_of_the_agent(
    monkeypatch: pytest.MonkeyPatch, settings_of: Callable[..., ProcessSettings]
) -> None:
    told = environment()
    assert set(told) <= {option.envvar for option in EDGE_OPTIONS.all}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CSI_BRIDGE_EDGE_HUB", "wss://hub-0.example:10350 wss://hub-1.example:10350")
    unit = (DEPLOY / "edge/csi-bridge-edge.service").read_text()
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    settings = settings_of(*shlex.split(command)[1:])
    assert isinstance(settings, AgentFlags)
    assert settings.registration == "own"
    assert [hub.host for hub in settings.hub] == ["hub-0.example", "hub-1.example"]
    assert f"StateDirectory={settings.state_dir.relative_to('/var/lib')}\n" in unit
    assert f"RuntimeDirectory={settings.status.parent.relative_to('/run')}\n" in unit


def test_the_unit_has_time_to_drain() -> None:
    (limit,) = re.findall(
        r"^TimeoutStopSec=(\d+)s$", (DEPLOY / "edge/csi-bridge-edge.service").read_text(), re.MULTILINE
    )
    assert int(limit) > EDGE_OPTIONS.default("drain_timeout_s")


# ---- images ----------------------------------------------------------------------------------------------------------


def test_the_images_name_no_platform_and_copy_what_there_is() -> None:
    instructions = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    assert not re.search("amd64|arm|x86|platform", instructions)
    for line in re.findall(r"^COPY (?!--from)(.*)$", instructions, re.MULTILINE):
        for source in [word for word in line.split() if not word.startswith("--")][:-1]:
            assert (ROOT / source).exists(), source


def test_every_packaged_folder_is_in_the_images() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert [name for name in packages if f"COPY {name} {name}\n" not in DOCKERFILE] == []


def test_the_script_builds_every_image() -> None:
    (built,) = re.findall(r"IMAGES:-(.*?)}", (DEPLOY / "images/build.sh").read_text())
    stages = (it.split(maxsplit=3) for it in re.split("^FROM ", DOCKERFILE, flags=re.MULTILINE))
    assert sorted(built.split()) == sorted(name for _, _, name, steps in stages if "ENTRYPOINT" in steps)


def test_the_images_install_each_dependency_in_the_version_of_the_tests() -> None:
    def plain(name: str) -> str:
        return re.sub("[-_.]+", "-", name).lower()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cloud"], *extras["edge"], *extras["demo"], *extras["dev"]]
    names = {plain(re.split("[^A-Za-z0-9._-]", it)[0]) for it in wanted} - {project["name"]}
    pinned = {plain(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names - pinned == set()
