"""The hub's disk is full: creates and deletes go on, and facts wait at their nodes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from common.csi import csi_pb2 as csi
from tests.kit import needs
from tests.kit.bridge import Bridge
from tests.kit.fact_teller import FactTeller, claim_fact
from tests.kit.operator import by_hand, hub_state
from tests.kit.requests import create
from tests.kit.stranger import Stranger
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.sidecar import Sidecar

_DISK = "48m"


@pytest.fixture
def disk(short_dir: Path) -> Iterator[Path]:
    """The hub's state directory, on a small disk of its own."""
    if missing := needs.root():
        pytest.skip(missing)
    directory = short_dir / "hub"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", directory]
    mount = subprocess.run(command, check=False, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"needs a machine that lets root mount: {mount.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture
def bridge(disk: Path, short_dir: Path, tmp_path: Path) -> Iterator[Bridge]:
    (tmp_path / "manifests").mkdir()
    with Bridge(short_dir, tmp_path) as bridge:
        bridge.start_hub(f"--manifests={tmp_path / 'manifests'}")
        yield bridge


@pytest.fixture
def sidecar(bridge: Bridge, short_dir: Path) -> Iterator[Sidecar]:
    """A sidecar of a driver whose nodes have storage of their own: the hub writes each name before a create."""
    with Vendor(short_dir / "v.sock") as vendor:
        bridge.start_agent("n1", vendor.socket)
        sidecar = bridge.start_proxy("vendor.test", "--placement=local").sidecar()
        wait_for(lambda: sidecar.call("CreateVolume", create("first")).ok, what="the first create")
        yield sidecar


def fill(disk: Path) -> None:
    """Write until the disk takes no byte more."""
    wait_for(
        lambda: all((disk / f"{name}.db-wal").stat().st_size >= 2 << 20 for name in ("hub", "placement", "trust")),
        what="reserve of all three databases",
    )
    hog = os.open(disk / "hog", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 20, 4096, 1):
        with contextlib.suppress(OSError):
            while os.write(hog, bytes(size)):
                pass
    os.close(hog)


def test_creates_and_deletes_go_on_when_the_hubs_disk_is_full(bridge: Bridge, sidecar: Sidecar, disk: Path) -> None:
    fill(disk)
    for number in range(20):
        outcome = sidecar.call("CreateVolume", create(f"v{number}"))
        assert outcome.ok, outcome.refusal
        assert sidecar.call("DeleteVolume", csi.DeleteVolumeRequest(volume_id=f"id-of-v{number}")).ok


def test_an_operator_denies_a_node_when_the_hubs_disk_is_full(bridge: Bridge, disk: Path) -> None:
    fill(disk)
    told = by_hand("deny", "n1", f"--hub=unix://{bridge.hub.uds}")
    assert (told.returncode, told.stderr) == (0, "")


def test_facts_wait_at_their_nodes_when_the_hubs_disk_is_full_and_the_hub_says_so(
    bridge: Bridge, sidecar: Sidecar, disk: Path
) -> None:
    fill(disk)
    with Stranger(bridge.hub.address) as stranger:
        teller = FactTeller(stranger, "n2")
        teller.send(claim_fact("c1", padding=1_000))
        wait_for(
            lambda: any("cannot store the facts" in problem for problem in hub_state(bridge.hub.uds)["problems"]),
            what="problem with facts",
        )
        assert sidecar.call("CreateVolume", create("beside")).ok


def test_creates_go_on_after_a_restart_on_a_full_disk(bridge: Bridge, sidecar: Sidecar, disk: Path) -> None:
    fill(disk)
    bridge.hub.stop()
    bridge.hub.start()
    wait_for(lambda: sidecar.call("CreateVolume", create("again")).ok, what="create after the restart")
