"""The mount table and the loop devices, as the kernel's files tell of them."""

import os
from pathlib import Path

import pytest

from examples.dirdriver import loops, mounts
from examples.dirdriver.mounts import parse_mountinfo

MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
91 22 254:0 /state/volumes/vol-1/data /pods/with\\040space/mount ro,noexec shared:3 - ext4 /dev/vda rw
92 22 0:6 /loop3 /pods/block rw - devtmpfs none rw
93 22 7:3 / /pods/back\\134slash rw,relatime - xfs /dev/loop3 rw,nouuid
"""


def test_each_line_of_mountinfo_is_a_mount() -> None:
    root, bound, block, device = parse_mountinfo(MOUNTINFO)

    assert root.path == "/"
    assert (bound.path, bound.root) == ("/pods/with space/mount", "/state/volumes/vol-1/data")
    assert bound.options == {"ro", "noexec"}
    assert (block.root, block.source) == ("/loop3", "none")
    assert (device.path, device.source) == ("/pods/back\\slash", "/dev/loop3")


@pytest.mark.parametrize("odd", ["\r", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_line_ends_where_the_kernel_ends_it_whatever_a_path_or_a_source_holds(odd: str) -> None:
    (found,) = parse_mountinfo(f"94 22 0:50 / /media/a{odd}b rw,relatime - vfat /dev/disk{odd}1 rw\n")
    assert (found.path, found.source) == (f"/media/a{odd}b", f"/dev/disk{odd}1")


def test_a_mount_point_with_a_carriage_return_in_its_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path.resolve() / "a\rb"
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    mounts.MOUNTINFO.write_bytes(b"94 22 0:50 / %b rw - vfat /dev/sdb1 rw\n" % os.fsencode(place))
    found = mounts.mounted_at(place)
    assert found is not None
    assert found.path == str(place)


def loop(sysfs: Path, name: str, backing: str, *, readonly: bool) -> None:
    folder = sysfs / name / "loop"
    folder.mkdir(parents=True)
    (folder / "backing_file").write_text(backing + "\n")
    (folder.parent / "ro").write_text(f"{int(readonly)}\n")


def test_the_devices_of_an_image_are_found_with_their_kind(tmp_path: Path) -> None:
    loop(tmp_path, "loop0", "/state/volumes/a/image", readonly=False)
    loop(tmp_path, "loop1", "/state/volumes/b/image", readonly=False)
    loop(tmp_path, "loop12", "/state/volumes/a/image", readonly=True)
    (tmp_path / "loop2").mkdir()  # free

    found = set(loops.devices(Path("/state/volumes/a/image"), sysfs=tmp_path))

    assert found == {(Path("/dev/loop0"), False), (Path("/dev/loop12"), True)}


def test_the_device_of_an_image_with_a_carriage_return_in_its_path_is_found(tmp_path: Path) -> None:
    loop(tmp_path, "loop0", "/state/a\r/image\n", readonly=False)
    assert list(loops.devices(Path("/state/a\r/image\n"), sysfs=tmp_path)) == [(Path("/dev/loop0"), False)]
