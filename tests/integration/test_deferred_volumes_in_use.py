"""Volumes that a guest uses: their usage as the runtime tells it, and their growth, with a fake shim."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deferring_node import DeferringNode, asking
from tests.kit.edge_node import pod, volume
from tests.kit.fake_shim import FakeShim
from tests.kit.guest import SANDBOX, folder, mount_info
from tests.kit.needs import needs_loops, needs_xfs
from tests.kit.waiting import wait_for

pytestmark = needs_loops

MIB = 1 << 20
USAGE = {"usage": [{"available": 900, "total": 1000, "used": 100, "unit": 1}], "volume_condition": {"message": "OK"}}


@pytest.fixture
def node(short_dir: Path, tmp_path: Path) -> Iterator[DeferringNode]:
    with DeferringNode(short_dir, tmp_path) as node:
        node.start("--volume-stats-interval=1s")
        yield node


def shown(node: DeferringNode) -> tuple[Any, Any]:
    (found,) = node.volumes("data")
    return found["size_bytes"], found["used_bytes"]


@pytest.mark.slow
def test_the_usage_is_the_guests_where_it_can_tell_and_the_volume_is_taken_back_only_when_the_guest_has_ended(
    node: DeferringNode,
) -> None:
    target = node.add("data")
    wait_for(lambda: shown(node) == (32 * MIB, None), what="the device's size", instead=node.tell)
    with node.guest("data"), FakeShim(node.run_dir / "vc/sbs", SANDBOX) as shim:
        shim.usage = {mount_info(node.run_dir, target)["device"]: USAGE}
        wait_for(lambda: shown(node) == (1000, 100), what="the guest's usage", instead=node.tell)
    with node.guest("data"):
        wait_for(lambda: shown(node) == (32 * MIB, None), what="the device's size", instead=node.tell)
    assert node.driver.calls("NodeGetVolumeStats") == []
    with node.guest("data"), FakeShim(node.run_dir / "vc/sbs", SANDBOX):
        node.put("data", phase="Succeeded")
        why = f"sandbox {SANDBOX} still uses"
        wait_for(lambda: why in node.volumes("data")[0]["error"], what="the reason", instead=node.tell)
        assert mount_info(node.run_dir, target)
        assert node.driver.calls("NodeUnpublishVolume") == []
    node.wait_clean()


def put(node: DeferringNode, size_mib: int, *, name: str = "data", phase: str = "Running") -> None:
    """Write the objects of a claim that had 32 MiB, with a PersistentVolume of this size."""
    objects = volume("data", node.handles["data"], size=f"{size_mib}Mi")
    objects[1]["status"] = {"capacity": {"storage": "32Mi"}}
    node.write(*objects, asking(name, "data", phase=phase), file="data")


@pytest.mark.slow
def test_a_volume_that_grows_under_its_guest_has_its_file_system_grown_when_it_is_published_next(
    node: DeferringNode,
) -> None:
    node.handles["data"] = node.make_volume("data", size_bytes=32 * MIB, block=True)
    put(node, 32)
    node.wait_published("data")
    with node.guest("data") as inside:
        (inside / "file").write_text("written before")
        node.grow("data", 96 * MIB)
        put(node, 96)
        wait_for(lambda: "FileSystemResizeRequired" in node.events(), what="the event", instead=node.tell)
        assert os.statvfs(inside).f_blocks * os.statvfs(inside).f_frsize < 40 * MIB
    node.agent.kill()
    node.restart_agent()
    put(node, 96, phase="Succeeded")
    node.wait_clean()
    put(node, 96, name="again")
    node.wait_published("again")
    with node.guest("again") as inside:
        assert (inside / "file").read_text() == "written before"
        assert os.statvfs(inside).f_blocks * os.statvfs(inside).f_frsize > 80 * MIB
    assert "FileSystemResizeSuccessful" in node.events()


@pytest.mark.slow
@needs_xfs
def test_the_claim_of_an_xfs_volume_reads_as_resized_only_when_a_guest_has_grown_it(node: DeferringNode) -> None:
    def place(size_mib: int, name: str = "data", phase: str = "Running") -> None:
        objects = volume("data", node.handles["data"], size=f"{size_mib}Mi", source={"fsType": "xfs"})
        objects[1]["status"] = {"capacity": {"storage": "320Mi"}}
        node.write(*objects, asking(name, "data", phase=phase), file="data")

    node.handles["data"] = node.make_volume("data", size_bytes=320 * MIB, block=True)
    place(320)
    node.wait_published("data")
    place(320, phase="Succeeded")
    node.wait_clean()
    node.grow("data", 384 * MIB)
    place(384, "again")
    node.wait_published("again")
    wait_for(lambda: "FileSystemResizeRequired" in node.events(), what="the event", instead=node.tell)
    assert "FileSystemResizeSuccessful" not in node.events()
    with node.guest("again") as inside:
        before = os.statvfs(inside).f_blocks
        subprocess.run(["xfs_growfs", inside], check=True, capture_output=True)
        assert os.statvfs(inside).f_blocks > before
    place(384, "again", phase="Succeeded")
    node.wait_clean()
    place(384, "third")
    node.wait_published("third")
    wait_for(lambda: "FileSystemResizeSuccessful" in node.events(), what="the event", instead=node.tell)


@pytest.mark.slow
def test_a_volume_of_which_its_driver_tells_the_runtime_is_left_to_the_guest(node: DeferringNode) -> None:
    """The test writes the mount info in place of such a driver, while the real one works on NodePublishVolume."""
    handle = node.make_volume("data")
    (node.driver.state / "faults").write_text("NodePublishVolume=delay:5s\nNodeGetVolumeStats=error:UNIMPLEMENTED:no\n")
    node.write(*volume("data", handle), pod("data", "data", securityContext={"fsGroup": 4321}), file="data")
    wait_for(
        lambda: [each["state"] for each in node.volumes("data")] == ["publishing"], what="the call", instead=node.tell
    )
    place = folder(node.run_dir, node.target("data"))
    place.mkdir(parents=True)
    (place / "mountInfo.json").write_text('{"volume-type":"directvol","device":"/dev/null","fstype":"ext4"}')
    (target,) = node.wait_published("data")
    (found,) = node.volumes("data")
    assert found["runtime"] == "by its driver"
    assert target.stat().st_gid != 4321
    (place / SANDBOX).touch()
    with FakeShim(node.run_dir / "vc/sbs", SANDBOX) as shim:
        shim.usage = {"/dev/null": USAGE}
        wait_for(lambda: shown(node) == (1000, 100), what="the guest's usage", instead=node.tell)
    node.remove("data")
    node.wait_clean()
    assert not place.exists()
