"""The leak audit of a real hub, agents and drivers: one leak of each kind, and nothing else."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.edge_node import DRIVER, EdgeNode, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.operator import by_hand
from tests.kit.requests import create
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

pytestmark = needs_mounts


class Site:
    """A node n1 that mounts, a node n2 with a create in doubt, and a node n3 that is away.

    Attributes:
        kept: a volume with a PersistentVolume and a pod.
        lost: a volume that a person made at the vendor, and that nobody refers to.
        busy: a volume that is still mounted, and whose pod is gone.
    """

    def __init__(self, node: EdgeNode) -> None:
        self.node = node  # n1, with the hub
        self.kept, self.lost, self.busy = (node.make_volume(name) for name in ("kept", "lost", "busy"))
        self.pinned = ""  # the same, made through a pinned proxy driver

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return by_hand("audit", f"--hub=unix://{self.node.bridge.hub.uds}", *argv)

    def audit(self, *argv: str) -> dict[str, Any]:
        done = self.run("-o", "json", *argv)
        assert done.returncode == 0, done.stderr
        state: dict[str, Any] = json.loads(done.stdout)
        return state

    def found(self) -> set[tuple[str, str, str, str]]:
        """Leak, driver, id and node of each leak."""
        leaks = self.audit()["leaks"]
        return {(it["leak"], it["driver"], it["id"], ",".join(it["nodes"])) for it in leaks}


@pytest.fixture
def site(short_dir: Path, tmp_path: Path) -> Iterator[Site]:
    with (
        EdgeNode(short_dir, tmp_path) as node,
        Vendor(short_dir / "v2.sock") as second,
        Vendor(short_dir / "v3.sock") as third,
    ):
        node.start(hub_flags=("--audit-grace=0s",))
        site = Site(node)
        node.write(*volume("kept", site.kept), pod("web", "kept"), file="kept")
        node.write(*volume("busy", site.busy), pod("gone", "busy"), file="busy")
        node.write(*volume("vanished", "vol-vanished"), file="vanished")
        node.wait_published("web")
        node.wait_published("gone")
        _make_pinned(site)
        _make_stray(site)
        for number, vendor in ((2, second), (3, third)):
            vendor.identity.node_id = f"id-of-n{number}"
            node.bridge.start_agent(f"n{number}", vendor.socket)
        second.refuse("CreateVolume", Code.UNAVAILABLE, "busy")
        proxy = node.bridge.start_proxy("vendor.test", node="n2").sidecar()
        wait_for(lambda: proxy.call("CreateVolume", create("pvc-9")).refusal[1] == "busy", what="create in doubt")
        wait_for(lambda: "n3" in {it["node"] for it in site.audit()["unasked"]}, what="report of n3")
        node.bridge.members[-2].kill()
        yield site


def _make_pinned(site: Site) -> None:
    proxy = site.node.bridge.start_proxy(DRIVER, "--placement=pinned").sidecar()
    site.node.bridge.wait_routed(proxy)
    capability = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    made = proxy.call("CreateVolume", create("pvc-pinned", volume_capabilities=[capability]))
    assert made.ok, made
    site.pinned = made.answer.volume.volume_id


def _make_stray(site: Site) -> None:
    site.node.driver.set_faults("NodeUnpublishVolume=error:UNAVAILABLE:the array is busy")
    site.node.write(*volume("busy", site.busy), file="busy")


@pytest.mark.slow
def test_an_audit_finds_one_leak_of_each_kind_and_deletes_an_orphan_after_a_yes(site: Site) -> None:
    expected = {
        ("orphan", DRIVER, site.lost, "n1"),
        ("orphan", DRIVER, site.pinned, "n1"),
        ("ghost", DRIVER, "vol-vanished", "n1"),
        ("stray", DRIVER, site.busy, "n1"),
        ("doubt", "vendor.test", "pvc-9", "n2"),
    }
    seen: list[object] = []

    def look() -> bool:
        seen[:] = [site.found()]
        return seen[0] == expected

    wait_for(look, what="leaks", timeout_s=60.0, instead=lambda: f"{seen}\n{site.run().stdout}")
    state = site.audit()
    away = [it["why"] for it in state["unasked"] if (it["node"], it["things"]) == ("n3", "volume")]
    assert away
    assert away[0].startswith("edge node n3 is offline since")
    by_id = {leak["id"]: leak for leak in state["leaks"]}
    assert by_id["vol-vanished"]["size_bytes"] == 16 << 20
    assert "the array is busy" in by_id[site.busy]["about"]
    assert by_id["pvc-9"]["since"]
    told = site.run().stdout
    assert f"csi-bridge audit --driver {DRIVER} --delete {site.lost}" in told
    assert "Not asked:" in told

    refused = site.run("--delete", site.lost)
    assert (refused.returncode, "a script passes --yes" in refused.stderr) == (1, True)
    kept = site.run("--delete", site.kept, "--yes")
    assert kept.returncode == 1
    assert f"PersistentVolume pv-kept of claim default/kept names volume {site.kept}" in kept.stderr
    ghost = site.run("--delete", "vol-vanished", "--yes")
    assert (ghost.returncode, "it is a ghost" in ghost.stderr) == (1, True)
    for orphan in (site.lost, site.pinned):
        done = site.run("--delete", orphan, "--yes")
        assert done.returncode == 0, done.stderr
    assert site.found() == {leak for leak in expected if leak[0] != "orphan"}
    site.node.driver.set_faults()
    wait_for(lambda: ("stray", DRIVER, site.busy, "n1") not in site.found(), what="end of the stray", timeout_s=150.0)
