"""The hub's disk is full: it refuses creates, forgets no volume, and still shuts out a stolen node."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.objects.topology import NODE_SEGMENT
from common.status import Code
from tests.kit.bridge import Bridge
from tests.kit.operator import by_hand, hub_state, node_state
from tests.kit.requests import create, create_at, delete
from tests.kit.sidecar import Sidecar
from tests.kit.small_disk import fill, make_room, small_disk
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


@pytest.fixture
def disk(short_dir: Path) -> Iterator[Path]:
    """The hub's state directory, on a small disk of its own."""
    with small_disk(short_dir / "hub", "size=48m") as directory:
        yield directory


@pytest.fixture
def bridge(disk: Path, short_dir: Path, tmp_path: Path) -> Iterator[Bridge]:
    (tmp_path / "manifests").mkdir()
    with Bridge(short_dir, tmp_path) as bridge:
        bridge.start_hub(f"--manifests={tmp_path / 'manifests'}")
        yield bridge


@pytest.fixture
def vendor(short_dir: Path) -> Iterator[Vendor]:
    with Vendor(short_dir / "v.sock") as vendor:
        yield vendor


@pytest.fixture
def sidecar(bridge: Bridge, vendor: Vendor) -> Sidecar:
    """A sidecar of a driver whose nodes have storage of their own: the hub writes each name before a create."""
    bridge.start_agent("n1", vendor.socket)
    sidecar = bridge.start_proxy("vendor.test", "--placement=local").sidecar()
    wait_for(lambda: sidecar.call("CreateVolume", create("first")).ok, what="the first create")
    return sidecar


def test_a_create_is_refused_before_it_is_sent_while_the_hub_cannot_record_it(
    sidecar: Sidecar, vendor: Vendor, disk: Path
) -> None:
    fill(disk)
    code, why = sidecar.call("CreateVolume", create("refused")).refusal
    assert (code, "make room on the disk" in why) == (Code.UNAVAILABLE, True)
    assert [call.request.name for call in vendor.calls("CreateVolume")] == ["first"]
    make_room(disk)
    assert sidecar.call("CreateVolume", create("refused")).ok


def test_no_volume_is_forgotten_whose_success_cannot_be_recorded(
    bridge: Bridge, sidecar: Sidecar, vendor: Vendor, short_dir: Path, disk: Path
) -> None:
    gate = vendor.hold("CreateVolume")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(sidecar.call, "CreateVolume", create("made"))
        vendor.wait_for_call("CreateVolume", 2)
        fill(disk)
        gate.set()
        assert made.result().refusal[0] == Code.UNAVAILABLE
    bridge.hub.kill()
    make_room(disk)
    bridge.hub.start()
    with Vendor(short_dir / "other.sock") as other:
        bridge.start_agent("n2", other.socket)
        bridge.wait_routed(sidecar)
        at_n2 = create_at("made", {NODE_SEGMENT: "n2"})
        wait_for(lambda: sidecar.call("CreateVolume", at_n2).ok, what="the retry, which n1 answers")
        assert other.calls("CreateVolume") == []
    assert sidecar.call("DeleteVolume", delete("made")).ok


@pytest.mark.slow
def test_a_denial_counts_at_once_when_the_hubs_disk_is_full(bridge: Bridge, sidecar: Sidecar, disk: Path) -> None:
    fill(disk)
    told = by_hand("deny", "n1", f"--hub=unix://{bridge.hub.uds}")
    assert (told.returncode, "is denied, and not yet durably" in told.stderr) == (1, True)
    assert hub_state(bridge.hub.uds)["trouble"]
    wait_for(lambda: not node_state(bridge.hub.uds, "n1")["connected"], what="the end of the link of n1")
    make_room(disk)
    wait_for(lambda: not hub_state(bridge.hub.uds)["trouble"], what="the denial's writing")
    bridge.hub.kill()
    bridge.hub.start()
    assert "n1 " in by_hand("denials", f"--hub=unix://{bridge.hub.uds}").stdout


def test_a_hub_that_stops_on_a_full_disk_has_all_volumes_when_there_is_room(
    bridge: Bridge, sidecar: Sidecar, disk: Path
) -> None:
    fill(disk)
    bridge.hub.stop()
    make_room(disk)
    bridge.hub.start()
    wait_for(lambda: sidecar.call("DeleteVolume", delete("first")).ok, what="deletion after the restart")
