"""The stock csi-snapshot-metadata and its project's client: they get through the bridge what they get without it."""

import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import Authority
from tests.kit.forms import slow_in_hub
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

pytestmark = [slow_in_hub, pytest.mark.slow]

Object = dict[str, Any]

_SIDECAR, _CLIENT = "csi-snapshot-metadata", "snapshot-metadata-lister"

_SIZE_BYTES = 16 << 20

_LIMIT_S = 120.0

_KIND = "SnapshotMetadataService"


class Lister:
    """A backup program: it asks for the blocks of snapshots at the address that the driver's object has."""

    def __init__(self, program: Path, api: KubeApi, kubeconfig: Path, *, namespace: str, driver: str) -> None:
        self._program, self._api, self._kubeconfig = program, api, kubeconfig
        self._namespace, self._driver = namespace, driver

    def ask_at(self, port: int, *flags: str) -> tuple[list[Object], str]:
        """The records of the stream, and the error that ended it, if any."""
        address = {"spec": {"address": f"localhost:{port}"}}
        self._api.patch(_KIND, self._driver, address)
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
def lister(
    programs: dict[str, Path], control_plane: ControlPlane, claims: Claims, vendor: RunningDriver, authority: Authority
) -> Iterator[Lister]:
    """The client, with the permissions that docs/storage.md gives a backup program."""
    api, namespace = control_plane.api, claims.namespace
    api.ensure(_DEFINITION)
    api.wait_until("CustomResourceDefinition", _DEFINITION["metadata"]["name"], _is_established, what="established")
    bundle = base64.b64encode(authority.path.read_bytes()).decode()
    api.create(
        {
            "apiVersion": "cbt.storage.k8s.io/v1beta1",
            "kind": _KIND,
            "metadata": {"name": vendor.name},
            "spec": {"address": "localhost:1", "audience": vendor.name, "caCert": bundle},
        }
    )
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "backup", "namespace": namespace}})
    _grant(api, "backup", namespace, _OF_CLIENT)
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "backup")
    yield Lister(programs[_CLIENT], api, kubeconfig, namespace=namespace, driver=vendor.name)
    api.delete(_KIND, vendor.name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def start_sidecar(
    programs: dict[str, Path], control_plane: ControlPlane, supervisor: Supervisor, authority: Authority, claims: Claims
) -> Callable[[Path], tuple[Process, int]]:
    """Starts the sidecar on a CSI socket, and returns it with its port. It has no flag to listen on loopback alone."""
    api, namespace = control_plane.api, claims.namespace
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _SIDECAR, "namespace": namespace}}
    api.create(account)
    _grant(api, _SIDECAR, namespace, _OF_SIDECAR)
    pem = authority.issue("csi-snapshot-metadata", "csi-bridge", file="metadata")

    def start(socket: Path) -> tuple[Process, int]:
        port, http = free_ports(2)
        command = [
            programs[_SIDECAR],
            f"--kubeconfig={control_plane.service_account_kubeconfig(namespace, _SIDECAR)}",
            f"--csi-address={socket}",
            f"--tls-cert={pem.cert}",
            f"--tls-key={pem.key}",
            f"--port={port}",
            f"--http-endpoint=127.0.0.1:{http}",
        ]
        name = f"{_SIDECAR}-{socket.parent.name}"
        return supervisor.start(name, command, ready=lambda: listens_on(http), timeout_s=60.0), port

    return start


def test_the_sidecar_gives_the_same_blocks_and_the_same_errors_with_and_without_a_bridge(
    start_sidecar: Callable[[Path], tuple[Process, int]],
    lister: Lister,
    tunnel: Tunnel,
    vendor: RunningDriver,
    claims: Claims,
) -> None:
    api, namespace = claims.api, claims.namespace
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

    for name in ("first", "second", "of-files"):
        api.delete("VolumeSnapshot", name, namespace=namespace)
        api.wait_gone("VolumeSnapshot", name, namespace=namespace, timeout_s=_LIMIT_S)
    for name in ("data", "files"):
        claims.let_go(name)


def _is_established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions", [])
    return any((it["type"], it["status"]) == ("Established", "True") for it in conditions)


_DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "snapshotmetadataservices.cbt.storage.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "cbt.storage.k8s.io",
        "names": {"kind": _KIND, "plural": "snapshotmetadataservices", "singular": "snapshotmetadataservice"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""The kind as far as these programs need it. The project publishes the whole."""

_SNAPSHOTS = "snapshot.storage.k8s.io"

_OF_CLIENT = [
    {"apiGroups": [_SNAPSHOTS], "resources": ["volumesnapshots", "volumesnapshotcontents"], "verbs": ["get"]},
    {"apiGroups": ["cbt.storage.k8s.io"], "resources": ["snapshotmetadataservices"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
]

_OF_SIDECAR = [
    {"apiGroups": ["cbt.storage.k8s.io"], "resources": ["snapshotmetadataservices"], "verbs": ["get"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    {
        "apiGroups": [_SNAPSHOTS],
        "resources": ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"],
        "verbs": ["get"],
    },
]


def _grant(api: KubeApi, account: str, namespace: str, rules: list[Object]) -> None:
    name = f"{account}-{namespace}"
    group = "rbac.authorization.k8s.io"
    api.create({"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
    api.create(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
    )
