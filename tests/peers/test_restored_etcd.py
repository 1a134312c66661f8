"""A cluster whose etcd is restored from a backup: the hub notices, by the nodes' marks, and loses no volume."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Bridge
from tests.kit.deployed import hub_roles
from tests.kit.operator import by_hand, hub_state
from tests.kit.peers import manifests
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.testdriver import start_on_each
from tests.kit.processes import Supervisor
from tests.kit.requests import create
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

_DRIVER = "dirdriver.csi"
_NODES = ("n1", "n2")
_LIMIT_S = 60.0


@pytest.fixture
def plane(short_dir: Path, peer: Callable[[str], Path]) -> Iterator[ControlPlane]:
    """A control plane of the test's own: its etcd goes back in time."""
    directory = short_dir / "plane"
    directory.mkdir()
    plane = ControlPlane(directory, peer=peer)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def asked(name: str) -> csi.CreateVolumeRequest:
    """A create that each of the nodes could take."""
    terms = [csi.Topology(segments={f"topology.{_DRIVER}/node": node}) for node in _NODES]
    mount = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    wanted = csi.TopologyRequirement(requisite=terms, preferred=terms)
    request: csi.CreateVolumeRequest = create(name, accessibility_requirements=wanted, volume_capabilities=[mount])
    return request


def stop(plane: ControlPlane) -> None:
    for process in (plane.controller_manager, plane.api_server, plane.etcd):
        process.stop()


def start(plane: ControlPlane) -> None:
    plane.etcd.start()
    plane.api_server.start()
    plane.api_server.wait_until(plane.ready, what="being ready", timeout_s=_LIMIT_S)
    plane.controller_manager.start()


def test_the_hub_refuses_creates_after_a_restore_until_trust_and_an_audit_finds_what_was_made_since_the_backup(
    plane: ControlPlane, short_dir: Path, tmp_path: Path, supervisor: Supervisor
) -> None:
    plane.apply(hub_roles())
    kubeconfig = plane.service_account_kubeconfig("csi-bridge", HUB)
    vendors = start_on_each(_NODES, supervisor, short_dir, name=_DRIVER, flags=("--no-attach",))
    with Bridge(short_dir, tmp_path) as bridge:
        hub = bridge.start_hub(f"--kubeconfig={kubeconfig}", "--audit-grace=0s")
        for node, vendor in vendors.items():
            bridge.start_agent(node, vendor.socket)
        proxy = bridge.start_proxy(_DRIVER, "--placement=local")
        sidecar = proxy.sidecar()

        def created(name: str) -> str:
            made = wait_for(
                lambda: it if (it := sidecar.call("CreateVolume", asked(name))).ok else None,
                what=name,
                timeout_s=_LIMIT_S,
                instead=bridge.log_tails,
            )
            handle: str = made.answer.volume.volume_id
            return handle

        def make(name: str) -> str:
            handle = created(name)
            plane.api.create(manifests.persistent_volume(f"pv-{name}", driver=_DRIVER, handle=handle))
            return handle

        def is_refused(name: str) -> bool:
            refusal = sidecar.call("CreateVolume", asked(name))
            assert not refusal.ok
            return "csi-bridge trust" in refusal.message

        def lost() -> list[str]:
            return [it for it in hub_state(hub.uds)["lost"] if "knows a later state of the hub's records" in it]

        kept = make("before")
        etcd, backup = plane.directory / "etcd", plane.directory / "backup"
        hub.stop()
        stop(plane)
        shutil.copytree(etcd, backup)
        start(plane)
        hub.start()
        since = make("since")

        hub.stop()
        stop(plane)
        shutil.rmtree(etcd)
        backup.rename(etcd)
        start(plane)
        hub.start()
        wait_for(lost, what="loss", timeout_s=_LIMIT_S, instead=lambda: hub_state(hub.uds))
        # The proxy driver dials the new hub in its own time, and says until then that it has no link.
        wait_for(lambda: is_refused("new"), what="refusal", timeout_s=_LIMIT_S, instead=bridge.log_tails)

        assert "settled: " in by_hand("trust", f"--hub=unix://{hub.uds}").stdout
        make("new")

        def orphans() -> list[str]:
            told = json.loads(by_hand("audit", f"--hub=unix://{hub.uds}", "-o", "json").stdout)
            return [it["id"] for it in told["leaks"] if it["leak"] == "orphan"]

        wait_for(lambda: orphans() == [since], what="orphan", timeout_s=_LIMIT_S, instead=orphans)
        assert created("before") == kept
        proxy.hang_up()
