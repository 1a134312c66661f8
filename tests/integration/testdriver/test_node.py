"""Directory volumes on a node: real bind mounts."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import Mode, Running, mount, needs_mounts, refused, write
from tests.kit import needs
from tests.kit.leftovers import loops_below, mounts_below

pytestmark = needs_mounts

INLINE = {"csi.storage.k8s.io/ephemeral": "true", "size": "2Mi"}


def test_what_a_pod_writes_is_in_the_volume_and_nothing_is_left_after_unstage(driver: Running, pod: Path) -> None:
    volume = driver.attached("a")
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")

    write(pod / "target" / "file", "hello")

    assert (driver.state / "volumes" / volume.volume_id / "data" / "file").read_text() == "hello"
    driver.unpublish(volume, pod / "target")
    driver.unstage(volume, pod / "staging")
    assert not (pod / "target").exists()
    assert mounts_below(driver.root) == []
    driver.discard(volume)


def test_each_node_call_can_be_repeated(driver: Running, pod: Path) -> None:
    volume = driver.attached("a")
    for _ in range(3):
        driver.stage(volume, pod / "staging")
    for _ in range(3):
        driver.publish(volume, pod / "staging", pod / "target")

    assert sorted(mounts_below(driver.root)) == [str(pod / "staging"), str(pod / "target")]
    for _ in range(3):
        driver.unpublish(volume, pod / "target")
    for _ in range(3):
        driver.unstage(volume, pod / "staging")
    assert mounts_below(driver.root) == []


def test_a_read_only_publication_cannot_be_written_to(driver: Running, pod: Path) -> None:
    volume = driver.attached("a", mount(Mode.SINGLE_NODE_MULTI_WRITER))
    capability = mount(Mode.SINGLE_NODE_MULTI_WRITER)
    driver.stage(volume, pod / "staging", capability)
    driver.publish(volume, pod / "staging", pod / "ro", capability, readonly=True)
    driver.publish(volume, pod / "staging", pod / "rw", capability)

    write(pod / "rw" / "file", "hello")

    assert (pod / "ro" / "file").read_text() == "hello"
    with pytest.raises(OSError, match="Read-only") as failure:
        write(pod / "ro" / "other", "no")
    assert failure.value.errno == errno.EROFS


def test_a_volume_attached_read_only_is_published_read_only(driver: Running, pod: Path) -> None:
    volume = driver.create("a")
    driver.call(
        "ControllerPublishVolume",
        volume_id=volume.volume_id,
        node_id="n1",
        volume_capability=mount(),
        readonly=True,
    )
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")

    with pytest.raises(OSError, match="Read-only"):
        write(pod / "target" / "file", "no")


def test_mount_flags_of_a_directory_are_those_of_its_bind_mount(driver: Running, pod: Path) -> None:
    capability = mount(flags=("noexec", "nosuid"))
    volume = driver.attached("a", capability)
    driver.stage(volume, pod / "staging", capability)
    driver.publish(volume, pod / "staging", pod / "target", capability)

    assert os.statvfs(pod / "target").f_flag & os.ST_NOEXEC
    assert os.statvfs(pod / "target").f_flag & os.ST_NOSUID


def test_a_second_target_is_refused_in_a_mode_for_one_writer(driver: Running, pod: Path) -> None:
    volume = driver.attached("a")
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")

    with refused("FAILED_PRECONDITION", "allows one target path"):
        driver.publish(volume, pod / "staging", pod / "other")
    with refused("ALREADY_EXISTS", "other arguments"):
        driver.publish(volume, pod / "staging", pod / "target", readonly=True)
    assert not (pod / "other").exists()


def test_the_order_of_the_spec_is_asked_for(driver: Running, pod: Path) -> None:
    volume = driver.create("a")

    with refused("FAILED_PRECONDITION", "ControllerPublishVolume comes first"):
        driver.stage(volume, pod / "staging")
    driver.call("ControllerPublishVolume", volume_id=volume.volume_id, node_id="n1", volume_capability=mount())
    with refused("FAILED_PRECONDITION", "stage it first"):
        driver.publish(volume, pod / "staging", pod / "target")
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")
    with refused("FAILED_PRECONDITION", "unpublish it first"):
        driver.unstage(volume, pod / "staging")
    driver.call("ControllerUnpublishVolume", volume_id=volume.volume_id)
    with refused("FAILED_PRECONDITION", "in use on node n1"):
        driver.call("DeleteVolume", volume_id=volume.volume_id)


def test_unpublish_of_another_volumes_target_leaves_it_alone(driver: Running, pod: Path) -> None:
    volume, other = driver.attached("a"), driver.create("b")
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")

    driver.unpublish(other, pod / "target")

    assert str(pod / "target") in mounts_below(driver.root)


def test_a_path_where_something_else_is_mounted_is_refused_and_left_alone(driver: Running, pod: Path) -> None:
    volume = driver.attached("a")
    for name in ("foreign", "staging"):
        (pod / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", pod / "foreign"], check=True)
    driver.stage(volume, pod / "staging")

    with refused("FAILED_PRECONDITION", "something else is mounted at target_path"):
        driver.publish(volume, pod / "staging", pod / "foreign", readonly=True)
    driver.unpublish(volume, pod / "foreign")
    driver.unstage(volume, pod / "staging")
    with refused("FAILED_PRECONDITION", "something else is mounted at staging_target_path"):
        driver.stage(volume, pod / "foreign")
    driver.unstage(volume, pod / "foreign")

    assert mounts_below(driver.root) == [str(pod / "foreign")]
    write(pod / "foreign" / "file", "still writable")


def test_a_target_path_below_a_link_is_found_again(driver: Running, pod: Path) -> None:
    (pod / "real").mkdir()
    (pod / "link").symlink_to("real")
    volume = driver.attached("a")
    driver.stage(volume, pod / "staging")
    for _ in range(2):
        driver.publish(volume, pod / "staging", pod / "link" / "target")

    assert mounts_below(driver.root).count(str(pod / "real" / "target")) == 1
    assert driver.call("NodeGetVolumeStats", volume_id=volume.volume_id, volume_path=str(pod / "real" / "target")).usage
    driver.unpublish(volume, pod / "link" / "target")
    assert not (pod / "real" / "target").exists()


def test_stats_count_what_is_in_the_directory(driver: Running, pod: Path) -> None:
    volume = driver.attached("a")
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")
    write(pod / "target" / "file", "x" * 10_000)

    in_bytes, inodes = driver.call(
        "NodeGetVolumeStats", volume_id=volume.volume_id, volume_path=str(pod / "target")
    ).usage

    assert (in_bytes.unit, in_bytes.total) == (pb.VolumeUsage.BYTES, volume.capacity_bytes)
    assert 10_000 <= in_bytes.used < in_bytes.total
    assert in_bytes.available == in_bytes.total - in_bytes.used
    assert (inodes.unit, inodes.used) == (pb.VolumeUsage.INODES, 2)
    with refused("NOT_FOUND"):
        driver.call("NodeGetVolumeStats", volume_id=volume.volume_id, volume_path=str(pod / "elsewhere"))


def test_without_staging_the_driver_does_it_by_itself(start: Callable[..., Running], pod: Path) -> None:
    driver = start("--no-stage", "--no-attach")
    volume = driver.create("a", mount(Mode.MULTI_NODE_MULTI_WRITER))
    capability = mount(Mode.MULTI_NODE_MULTI_WRITER)
    driver.publish(volume, None, pod / "one", capability)
    driver.publish(volume, None, pod / "two", capability)
    write(pod / "one" / "file", "hello")

    assert (pod / "two" / "file").read_text() == "hello"
    driver.unpublish(volume, pod / "one")
    assert (pod / "two" / "file").read_text() == "hello"
    driver.unpublish(volume, pod / "two")
    assert mounts_below(driver.root) == []
    driver.call("DeleteVolume", volume_id=volume.volume_id)


def test_a_publication_that_is_refused_leaves_nothing_that_the_driver_staged_for_it(
    start: Callable[..., Running], pod: Path
) -> None:
    driver = start("--no-stage", "--no-attach")
    first, second = driver.create("a"), driver.create("b")
    driver.publish(first, None, pod / "target")

    with refused("FAILED_PRECONDITION", f"volume {first.volume_id} is published at target_path"):
        driver.publish(second, None, pod / "target")

    assert len(mounts_below(driver.root)) == 2
    driver.call("DeleteVolume", volume_id=second.volume_id)


@pytest.mark.parametrize("filesystem", ["directory", "image"])
def test_an_inline_volume_lives_as_long_as_its_publication(
    start: Callable[..., Running], pod: Path, filesystem: str
) -> None:
    if filesystem == "image" and (missing := needs.program("mkfs.ext4")):
        pytest.skip(missing)
    driver = start(f"--fs={filesystem}")
    volume = pb.Volume(volume_id="csi-0123")
    for _ in range(2):
        driver.publish(volume, None, pod / "target", volume_context=INLINE)
    write(pod / "target" / "file", "hello")

    assert driver.on_disk() == ["csi-0123"]
    assert driver.volumes() == []
    for _ in range(2):
        driver.unpublish(volume, pod / "target")
    assert (driver.on_disk(), mounts_below(driver.root), loops_below(driver.root)) == ([], [], [])
    assert not (pod / "target").exists()


def test_an_inline_volume_of_a_size_that_is_none_is_refused_and_leaves_nothing(driver: Running, pod: Path) -> None:
    with refused("INVALID_ARGUMENT", "volume attribute size"):
        driver.publish(pb.Volume(volume_id="csi-1"), None, pod / "target", volume_context=INLINE | {"size": "large"})

    assert driver.on_disk() == []


def test_a_mount_that_somebody_took_away_is_told_as_inaccessible_and_mended_by_staging_again(
    driver: Running, pod: Path
) -> None:
    volume = driver.attached("a")
    driver.stage(volume, pod / "staging")
    subprocess.run(["umount", pod / "staging"], check=True)  # a reboot does the same

    [status] = driver.call("NodeGetVolumeHealth", volume_id=volume.volume_id).volume_health.health_statuses
    assert (status.status, status.reason) == (pb.INACCESSIBLE, "MountMissing")
    driver.stage(volume, pod / "staging")
    assert not driver.call("NodeGetVolumeHealth", volume_id=volume.volume_id).volume_health.health_statuses


def test_sigterm_leaves_the_pods_mounts_and_the_next_start_knows_them(driver: Running, pod: Path) -> None:
    volume = driver.attached("a")
    driver.stage(volume, pod / "staging")
    driver.publish(volume, pod / "staging", pod / "target")

    assert driver.stop() == 0

    assert len(mounts_below(driver.root)) == 2
    driver.start()
    driver.publish(volume, pod / "staging", pod / "target")
    driver.unpublish(volume, pod / "target")
    driver.unstage(volume, pod / "staging")
    assert mounts_below(driver.root) == []


@needs.skip_without(needs.program("setpriv"))
def test_without_root_everything_but_mounts_works_and_mounts_say_what_is_missing(
    start: Callable[..., Running], pod: Path
) -> None:
    driver = start(without_root=True)
    volume = driver.attached("a")
    driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id)

    with refused("FAILED_PRECONDITION", "run it as root (it needs CAP_SYS_ADMIN)"):
        driver.stage(volume, pod / "staging")
    with refused("FAILED_PRECONDITION", "run it as root (it needs CAP_SYS_ADMIN)"):
        driver.publish(pb.Volume(volume_id="csi-1"), None, pod / "target", volume_context=INLINE)

    driver.unstage(volume, pod / "staging")
    driver.discard(volume)
    assert driver.on_disk() == []


def test_a_driver_with_a_mount_group_gives_the_volumes_root_to_it(start: Callable[..., Running], pod: Path) -> None:
    driver = start("--mount-group")
    volume = driver.attached("a")
    capability = mount()
    capability.mount.volume_mount_group = "2000"

    driver.stage(volume, pod / "staging", capability)
    driver.publish(volume, pod / "staging", pod / "target", capability)

    found = (pod / "target").stat()
    assert (found.st_gid, found.st_mode & 0o2070) == (2000, 0o2070)


def test_a_mount_group_that_is_no_number_is_refused_and_leaves_nothing(
    start: Callable[..., Running], pod: Path
) -> None:
    driver = start("--mount-group")
    volume = driver.attached("a")
    capability = mount()
    capability.mount.volume_mount_group = "staff"

    with refused("INVALID_ARGUMENT"):
        driver.stage(volume, pod / "staging", capability)

    assert mounts_below(driver.root) == []
