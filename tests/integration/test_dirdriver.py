"""The example driver, where csi-sanity does not look: repeated node calls, data, and what a `kill -9` leaves."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2 as pb
from tests.kit.leftovers import clear
from tests.kit.needs import needs_loops, needs_mounts
from tests.kit.running_driver import MIB, Running, block, ended, refused, size, write

GIB = 1024 * MIB


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory with a path short enough for sockets; what a failed test left mounted there is taken away."""
    with tempfile.TemporaryDirectory(prefix="dir-") as name, contextlib.ExitStack() as stack:
        path = Path(name).resolve()
        stack.callback(clear, path)
        yield path


@pytest.fixture
def driver(root: Path) -> Iterator[Running]:
    driver = Running(root, example=True)
    yield driver.start()
    driver.stop()


@pytest.fixture
def pod(root: Path) -> Path:
    """A directory where a CO puts staging and target paths."""
    path = root / "pod"
    path.mkdir()
    return path


def test_a_volume_is_a_directory_and_the_same_request_again_gets_the_same_volume(driver: Running) -> None:
    volume = driver.create("one")

    assert driver.create("one") == volume
    assert volume.capacity_bytes == MIB
    assert dict(volume.volume_context) == {"dirdriver/layout": "directory"}
    assert volume.accessible_topology[0].segments == {"topology.dirdriver.csi/node": "n1"}
    assert driver.volumes() == driver.on_disk() == [volume.volume_id]
    assert (driver.state / "volumes" / volume.volume_id / "data").is_dir()


def test_volumes_take_capacity_until_none_is_left(driver: Running) -> None:
    driver.create("large", capacity_range=size(99 * GIB))
    assert driver.call("GetCapacity").available_capacity == GIB
    with refused("RESOURCE_EXHAUSTED"):
        driver.create("another", capacity_range=size(2 * GIB))


def test_an_id_that_climbs_out_of_the_directory_names_no_volume(driver: Running) -> None:
    driver.call("DeleteVolume", volume_id="../volumes")
    driver.call("DeleteVolume", volume_id="..")
    assert driver.on_disk() == []


def _data(driver: Running, volume: pb.Volume) -> Path:
    return driver.state / "volumes" / volume.volume_id / "data"


def test_a_snapshot_outlives_its_volume_and_is_restored(driver: Running) -> None:
    volume = driver.create("one")
    write(_data(driver, volume) / "file", "before")
    snapshot = driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot
    write(_data(driver, volume) / "file", "after")
    assert driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot == snapshot
    driver.call("DeleteVolume", volume_id=volume.volume_id)

    source = {"snapshot": {"snapshot_id": snapshot.snapshot_id}}
    restored = driver.create("two", volume_content_source=source, capacity_range=size(2 * MIB))

    assert (_data(driver, restored) / "file").read_text() == "before"
    assert restored.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    (entry,) = driver.call("ListSnapshots", source_volume_id=volume.volume_id).entries
    assert (entry.snapshot, snapshot.ready_to_use) == (snapshot, True)
    driver.call("DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
    assert not driver.call("ListSnapshots").entries


@needs_mounts
def test_a_pod_writes_into_a_published_volume_and_all_calls_may_be_repeated(driver: Running, pod: Path) -> None:
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    for _ in range(2):
        driver.stage(volume, staged)
    for _ in range(2):
        driver.publish(volume, staged, target)
    write(target / "file", "hello")
    assert (_data(driver, volume) / "file").read_text() == "hello"
    with refused("FAILED_PRECONDITION", "mounted"):
        driver.call("DeleteVolume", volume_id=volume.volume_id)
    with refused("FAILED_PRECONDITION", "published"):
        driver.unstage(volume, staged)

    for _ in range(2):
        driver.unpublish(volume, target)
    for _ in range(2):
        driver.unstage(volume, staged)
    assert not target.exists()
    assert not list(staged.iterdir())
    driver.call("DeleteVolume", volume_id=volume.volume_id)


@needs_mounts
def test_a_read_only_publication_takes_no_writes_and_is_not_the_same_as_a_writable_one(
    driver: Running, pod: Path
) -> None:
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    driver.stage(volume, staged)
    driver.publish(volume, staged, target, readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (target / "file").touch()
    with refused("ALREADY_EXISTS"):
        driver.publish(volume, staged, target)


@needs_mounts
def test_nothing_is_published_that_is_not_staged_nor_where_something_else_is_mounted(
    driver: Running, pod: Path
) -> None:
    one, two = driver.create("one"), driver.create("two")
    with refused("FAILED_PRECONDITION", "not staged"):
        driver.publish(one, pod / "staged", pod / "target")
    driver.stage(one, pod / "staged")
    driver.publish(one, pod / "staged", pod / "target")
    driver.stage(two, pod / "other")
    with refused("FAILED_PRECONDITION", "something else"):
        driver.publish(two, pod / "other", pod / "target")
    driver.unpublish(two, pod / "target")
    write(pod / "target" / "file", "still published")
    assert (_data(driver, one) / "file").exists()


@needs_loops
def test_a_block_volume_is_a_device_that_grows_while_it_is_published(driver: Running, pod: Path) -> None:
    volume, staged, target = driver.create("one", block()), pod / "staged", pod / "target"
    driver.stage(volume, staged, block())
    for _ in range(2):
        driver.publish(volume, staged, target, block())
    assert target.is_block_device()
    with target.open("r+b") as device:
        device.write(b"hello")
    answer = driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(2 * MIB))
    assert answer.node_expansion_required
    driver.call("NodeExpandVolume", volume_id=volume.volume_id, volume_path=str(target))
    with target.open("rb") as device:
        assert device.seek(0, 2) == 2 * MIB
    snapshot = driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot
    assert (driver.state / "snapshots" / snapshot.snapshot_id / "image").read_bytes()[:5] == b"hello"

    driver.publish(volume, staged, pod / "read-only", block(), readonly=True)
    with pytest.raises(OSError, match="not permitted"):
        (pod / "read-only").write_bytes(b"never")
    with refused("FAILED_PRECONDITION"):
        driver.unstage(volume, staged)
    for path in (target, pod / "read-only"):
        driver.unpublish(volume, path)
        assert not path.exists()
    with refused("FAILED_PRECONDITION", "attached"):
        driver.call("DeleteVolume", volume_id=volume.volume_id)
    driver.unstage(volume, staged)
    driver.call("DeleteVolume", volume_id=volume.volume_id)


@needs_mounts
def test_below_a_directory_that_is_mounted_at_two_paths_a_volume_is_unstaged(
    driver: Running, root: Path, pod: Path
) -> None:
    """As /var/lib of a host that binds it from elsewhere: each mount below it shows up at both paths."""
    twin = root / "twin"
    twin.mkdir()
    for words in (["--bind", pod, pod], ["--make-shared", pod], ["--bind", pod, twin]):
        subprocess.run(["mount", *map(str, words)], check=True)
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    driver.stage(volume, staged)
    driver.publish(volume, staged, target)
    with refused("FAILED_PRECONDITION", "published"):
        driver.unstage(volume, staged)
    driver.unpublish(volume, target)
    driver.unstage(volume, staged)
    driver.call("DeleteVolume", volume_id=volume.volume_id)


@needs_mounts
def test_after_kill_9_the_driver_finds_volumes_and_mounts_again(driver: Running, pod: Path) -> None:
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    driver.stage(volume, staged)
    driver.publish(volume, staged, target)
    driver.kill()
    driver.start()
    assert driver.create("one") == volume
    driver.publish(volume, staged, target)
    driver.unpublish(volume, target)
    driver.unstage(volume, staged)
    assert not target.exists()


def test_a_volume_that_was_half_made_is_removed_at_the_next_start(driver: Running) -> None:
    driver.stop()
    half = driver.state / "unfinished" / "vol-1" / "data"
    half.mkdir(parents=True)
    driver.start()
    assert driver.volumes() == driver.on_disk("unfinished") == []


def test_two_drivers_do_not_share_a_state_directory(driver: Running, root: Path) -> None:
    second = Running(root, node="n2", state=driver.state, example=True)
    assert "--state-dir" in ended(second)


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--node-id", "a b"], "--node-id"), (["--endpoint", "x"], "--endpoint")],
)
def test_a_flag_that_cannot_work_is_refused_with_its_name(root: Path, flags: list[str], named: str) -> None:
    assert named in ended(Running(root, *flags, example=True))
