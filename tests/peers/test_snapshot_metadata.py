"""The stock csi-snapshot-metadata and its project's client: they get through the bridge what they get without it."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deployed import ROOT, arguments, containers, driver_objects, granted, hub_roles, with_flags
from tests.kit.forms import slow_in_hub
from tests.kit.needs import program, skip_without
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.peers.tunnel import Tunnel
from tests.kit.ports import free_ports
from tests.kit.processes import Process, Supervisor, listens_on
from tests.kit.testdriver.metadata import BLOCK_BYTES

pytestmark = [slow_in_hub, pytest.mark.slow, skip_without(program("openssl"))]

Object = dict[str, Any]

_SIDECAR, _CLIENT = "csi-snapshot-metadata", "snapshot-metadata-lister"

_SIZE_BYTES = 16 << 20

_LIMIT_S = 120.0


class Lister:
    """A backup program: it asks for the blocks of snapshots at the address that the driver's object has."""

    def __init__(self, program: Path, api: KubeApi, kubeconfig: Path, *, namespace: str, driver: str) -> None:
        self._program, self._api, self._kubeconfig = program, api, kubeconfig
        self._namespace, self._driver = namespace, driver

    def ask_at(self, port: int, *flags: str) -> tuple[list[Object], str]:
        """The records of the stream, and the error that ended it, if any."""
        address = {"spec": {"address": f"localhost:{port}"}}
        self._api.patch("SnapshotMetadataService", self._driver, address)
        who = (f"-service-account-namespace={self._namespace}", "-service-account=backup")
        command = [self._program, f"-kubeconfig={self._kubeconfig}", f"-n={self._namespace}", *who, "-o=json", *flags]
        done = subprocess.run([str(it) for it in command], capture_output=True, text=True, check=False, timeout=60)
        assert bool(done.stderr) == bool(done.returncode)
        records = done.stdout if done.stdout.endswith("]") else f"{done.stdout or '['}]"
        return json.loads(records), done.stderr


def _blocks(records: list[Object]) -> list[int]:
    """The numbers of the blocks in a stream."""
    return [it.get("byte_offset", 0) // BLOCK_BYTES for each in records for it in each["block_metadata"]]


@pytest.fixture
def programs(peer: Callable[[str], Path]) -> dict[str, Path]:
    return {name: peer(name) for name in (_SIDECAR, _CLIENT)}


@pytest.fixture
def vendor(programs: dict[str, Path], testdriver: Callable[..., RunningDriver], claims: Claims) -> RunningDriver:
    assert programs
    return testdriver(name=claims.storage_class, flags=("--no-topology",))


@pytest.fixture
def tunnel(vendor: RunningDriver, tunnel_to: Callable[[Path, str], Tunnel], sidecars: Sidecars) -> Tunnel:
    """The bridge in front of the driver, with all that makes snapshots."""
    tunnel = tunnel_to(vendor.socket, vendor.name)
    sidecars.install_snapshot_kinds()
    sidecars.start_snapshot_controller("--retry-interval-max=5s")
    for name in ("csi-provisioner", "csi-snapshotter"):
        sidecars.start(name, tunnel.socket, "--retry-interval-max=5s")
    return tunnel


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The certificate that docs/storage.md makes, here for this machine, with its key beside it."""
    (command,) = re.findall(r"openssl req .*\n.*subjectAltName=DNS:\$name.*", (ROOT / "docs/storage.md").read_text())
    steps = f"name=localhost\n{command.replace('.csi-bridge.svc', '')}"
    subprocess.run(["sh", "-ec", steps], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "metadata.crt"


@pytest.fixture
def deployed(
    control_plane: ControlPlane, sidecars: Sidecars, vendor: RunningDriver, certificate: Path
) -> Iterator[list[Object]]:
    """The driver's objects of the chart, of which those that are not the pod's are in the cluster."""
    sidecars.install_snapshot_kinds()
    made = driver_objects(name=vendor.name, snapshotMetadata={"caCert": certificate.read_text()})
    control_plane.apply(hub_roles())  # with the namespace
    control_plane.apply(it for it in made if it["kind"] not in {"NetworkPolicy", "StatefulSet"})
    yield made
    control_plane.api.delete("SnapshotMetadataService", vendor.name)


@pytest.fixture
def lister(programs: dict[str, Path], control_plane: ControlPlane, claims: Claims, deployed: list[Object]) -> Lister:
    """The client, with the permissions that docs/storage.md gives a backup program."""
    api, namespace, group = control_plane.api, claims.namespace, "rbac.authorization.k8s.io"
    name = f"backup-{namespace}"
    account = {"kind": "ServiceAccount", "name": "backup", "namespace": namespace}
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "backup", "namespace": namespace}})
    api.create({"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": _OF_CLIENT})
    api.create(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [account],
        }
    )
    assert deployed
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "backup")
    return Lister(programs[_CLIENT], api, kubeconfig, namespace=namespace, driver=claims.storage_class)


@pytest.fixture
def start_sidecar(
    programs: dict[str, Path],
    control_plane: ControlPlane,
    supervisor: Supervisor,
    deployed: list[Object],
    certificate: Path,
) -> Callable[[Path], tuple[Process, int]]:
    """Starts the chart's container on a CSI socket, and returns it with its port. It listens on all addresses."""
    (container,) = (it for it in containers(deployed) if it["name"] == _SIDECAR)

    def start(socket: Path) -> tuple[Process, int]:
        port, http = free_ports(2)
        flags = with_flags(
            arguments(container),
            csi_address=socket,
            tls_cert=certificate,
            tls_key=certificate.with_suffix(".key"),
            port=port,
            http_endpoint=f"127.0.0.1:{http}",
        )
        kubeconfig = control_plane.service_account_kubeconfig("csi-bridge", "csi-bridge-driver")
        command = [programs[_SIDECAR], *flags, f"--kubeconfig={kubeconfig}"]
        name = f"{_SIDECAR}-{socket.parent.name}"
        return supervisor.start(name, command, ready=lambda: listens_on(http), timeout_s=60.0), port

    return start


def test_the_sidecar_gives_the_same_blocks_and_the_same_errors_with_and_without_a_bridge(
    start_sidecar: Callable[[Path], tuple[Process, int]],
    lister: Lister,
    tunnel: Tunnel,
    vendor: RunningDriver,
    claims: Claims,
    control_plane: ControlPlane,
    deployed: list[Object],
) -> None:
    api, namespace = claims.api, claims.namespace
    before = len(control_plane.asked_by("csi-bridge-driver"))
    (sidecar, through_bridge), (_, direct) = start_sidecar(tunnel.socket), start_sidecar(vendor.socket)
    claims.ask("data", size_bytes=_SIZE_BYTES, volume_mode="Block")
    claims.ask("files")
    image = vendor.state / "volumes" / claims.wait_bound("data")["spec"]["csi"]["volumeHandle"] / "image"
    claims.wait_bound("files")
    api.create(manifests.snapshot_class(vendor.name))

    def take(name: str, *, claim: str = "data", **blocks: bytes) -> str:
        """Write to the volume and take a snapshot. Returns the driver's id of it."""
        with image.open("r+b") as file:
            for number, data in blocks.items():
                file.seek(int(number.removeprefix("b")) * BLOCK_BYTES)
                file.write(data)
        api.create(manifests.snapshot(name, namespace=namespace, snapshot_class=vendor.name, claim=claim))
        ready = api.wait_status("VolumeSnapshot", name, "readyToUse", namespace=namespace, timeout_s=_LIMIT_S)
        content = api.get("VolumeSnapshotContent", ready["status"]["boundVolumeSnapshotContentName"])
        assert content is not None
        return str(content["status"]["snapshotHandle"])

    first = take("first", b0=b"a", b7=b"b", b4095=b"c")
    take("second", b7=b"d", b100=b"e", b0=b"\0")
    of_files = take("of-files", claim="files")

    def ask(*flags: str) -> tuple[list[Object], str]:
        told = lister.ask_at(through_bridge, *flags)
        assert told == lister.ask_at(direct, *flags)
        return told

    records, _ = ask("-s=first")
    assert _blocks(records) == [0, 7, 4095]
    assert {it["volume_capacity_bytes"] for it in records} == {_SIZE_BYTES}
    assert _blocks(ask("-s=second")[0]) == [7, 100, 4095]
    assert _blocks(ask("-s=second", "-p=first")[0]) == [0, 7, 100]
    records, _ = ask("-s=second", f"-P={first}", "-max-results=1", f"-starting-offset={7 * BLOCK_BYTES}")
    assert (_blocks(records), len(records)) == ([7, 100], 2)
    assert ask("-s=second", "-p=second") == ([], "")

    for flags, code, why in (
        (("-s=first", f"-starting-offset={_SIZE_BYTES + 1}"), "OutOfRange", "starting_offset is outside the volume"),
        (("-s=of-files",), "FailedPrecondition", "its blocks are not known"),
        (("-s=second", "-P=snap-none"), "NotFound", "snapshot snap-none does not exist"),
        (("-s=first", f"-P={of_files}"), "FailedPrecondition", "its blocks are not known"),
        # The sidecar refuses this itself: an account that may not get VolumeSnapshots does not see their blocks.
        (("-s=first", "-service-account=default"), "PermissionDenied", "user does not have permissions"),
    ):
        records, error = ask(*flags)
        assert records == []
        assert re.search(f"code = {code} desc = .*{why}", error), error
    vendor.set_faults("GetMetadataDelta=error:DATA_LOSS:the disk is broken")
    assert ask("-s=second", "-p=first")[1].endswith("rpc error: code = DataLoss desc = the disk is broken\n")
    vendor.set_faults()

    # The node is away, and comes back.
    tunnel.cut()
    records, error = lister.ask_at(through_bridge, "-s=first")
    assert records == []
    assert re.search("code = Unavailable desc = .*edge node edge-1 is offline since", error), error
    tunnel.heal()
    tunnel.wait_until_up()
    assert _blocks(ask("-s=first")[0]) == [0, 7, 4095]
    assert sidecar.running
    asked = {(it.verb, it.group, it.resource) for it in control_plane.asked_by("csi-bridge-driver", since=before)}
    assert granted(it for it in deployed if it["metadata"]["name"] == "csi-bridge-driver-metadata") == asked

    for name in ("first", "second", "of-files"):
        api.delete("VolumeSnapshot", name, namespace=namespace)
        api.wait_gone("VolumeSnapshot", name, namespace=namespace, timeout_s=_LIMIT_S)
    for name in ("data", "files"):
        claims.let_go(name)


_OF_CLIENT = [
    {
        "apiGroups": ["snapshot.storage.k8s.io"],
        "resources": ["volumesnapshots", "volumesnapshotcontents"],
        "verbs": ["get"],
    },
    {"apiGroups": ["cbt.storage.k8s.io"], "resources": ["snapshotmetadataservices"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
]
