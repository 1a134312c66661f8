"""What is made and removed below a root directory, and what never is."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.disk.root_dir import RootDir, RootDirError


@pytest.fixture
def root(tmp_path: Path) -> RootDir:
    return RootDir(tmp_path / "root")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_missing_directories_are_made_with_the_kubelets_mode_whatever_the_umask(root: RootDir) -> None:
    before = os.umask(0o077)
    try:
        root.make_dir(root.path / "pods/u1/volumes")
    finally:
        os.umask(before)
    assert [mode(root.path / part) for part in ("pods", "pods/u1", "pods/u1/volumes")] == [0o750] * 3


def test_a_directory_that_is_there_keeps_its_mode(root: RootDir) -> None:
    root.make_dir(root.path / "pods/u1")
    (root.path / "pods/u1").chmod(0o700)
    root.make_dir(root.path / "pods/u1")
    assert mode(root.path / "pods/u1") == 0o700


def test_a_link_on_the_way_is_not_followed(root: RootDir, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "dir").mkdir(parents=True)
    (outside / "file").touch()
    root.make_dir(root.path / "pods")
    (root.path / "pods/u1").symlink_to(outside)
    with pytest.raises(RootDirError, match="symbolic link is not followed"):
        root.remove_dir(root.path / "pods/u1/dir")
    with pytest.raises(RootDirError, match="symbolic link is not followed"):
        root.remove_file(root.path / "pods/u1/file")
    with pytest.raises(RootDirError, match="symbolic link is not followed"):
        root.make_dir(root.path / "pods/u1/new/dir")
    assert sorted(path.name for path in outside.iterdir()) == ["dir", "file"]


def test_only_a_link_is_dropped(root: RootDir, tmp_path: Path) -> None:
    root.make_dir(root.path / "a/dir")
    (root.path / "a/file").touch()
    (root.path / "a/link").symlink_to(tmp_path)
    names = ("dir", "file", "link", "missing", "missing/entry")
    assert [root.drop_link(root.path / "a" / name) for name in names] == [False, False, True, False, False]
    assert root.names(root.path / "a") == {"dir": "dir", "file": "file"}


def test_a_held_file_is_the_same_though_another_one_takes_its_place(root: RootDir, tmp_path: Path) -> None:
    root.make_dir(root.path / "a")
    (root.path / "a/file").write_text("first")
    (tmp_path / "other").write_text("other")
    with root.held(root.path / "a/file") as held:
        (root.path / "a/file").unlink()
        (root.path / "a/file").symlink_to(tmp_path / "other")
        assert held.read_text() == "first"
    with pytest.raises(RootDirError, match="symbolic link"), root.held(root.path / "a/file"):
        pass


def test_removing_a_link_leaves_what_it_leads_to(root: RootDir, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    root.make_dir(root.path / "a")
    (root.path / "a/link").symlink_to(tmp_path / "data")
    root.remove(root.path / "a/link")
    assert (tmp_path / "data").exists()
    assert root.names(root.path / "a") == {}


def test_a_directory_that_is_not_empty_stays(root: RootDir) -> None:
    root.make_dir(root.path / "a/b")
    with pytest.raises(RootDirError, match=r"cannot remove the directory .*/a: it is not empty"):
        root.remove_dir(root.path / "a")


def test_what_is_not_there_is_removed_already(root: RootDir) -> None:
    root.make_dir(root.path / "a")
    root.remove(root.path / "a/b")
    root.remove_dir(root.path / "x/y")
    root.remove_file(root.path / "x/y")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "."])
def test_nothing_outside_the_root_is_touched(root: RootDir, path: str) -> None:
    root.make_dir(root.path / "a")
    with pytest.raises(RootDirError):
        root.remove_dir(root.path / path)


def test_a_file_is_replaced_at_once_and_a_failed_write_leaves_the_old_one(root: RootDir) -> None:
    root.make_dir(root.path / "a")
    file = root.path / "a/vol_data.json"
    root.write_file(file, b"old")

    def fail() -> None:
        assert file.read_bytes() == b"old"
        raise OSError("disk full")

    with pytest.raises(RootDirError, match=r"cannot write .*vol_data\.json: disk full"):
        root.write_file(file, b"new", reached=fail)
    assert file.read_bytes() == b"old"
    assert root.names(root.path / "a") == {"vol_data.json": "file"}
    root.write_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert mode(file) == 0o644


def test_a_durable_file_reads_the_same(tmp_path: Path) -> None:
    root = RootDir(tmp_path, durable=True)
    root.write_file(tmp_path / "f", b"x")
    assert root.read_file(tmp_path / "f", 10) == b"x"


def test_what_a_crash_left_of_a_write_goes_with_the_file(root: RootDir) -> None:
    root.make_dir(root.path / "a")
    (root.path / "a/f.new").touch()
    root.write_file(root.path / "a/f", b"x")
    (root.path / "a/f.new").touch()
    root.remove_file(root.path / "a/f")
    root.remove_dir(root.path / "a")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not an ordinary file"),
        (lambda path: path.symlink_to("/etc/passwd"), "symbolic link"),
        (lambda path: path.write_bytes(b"x" * 11), "larger than 10 bytes"),
    ],
    ids=["a fifo, which keeps nobody waiting", "a link", "too large"],
)
def test_what_is_no_file_or_too_large_is_not_read(root: RootDir, make: Callable[[Path], object], why: str) -> None:
    root.make_dir(root.path / "a")
    make(root.path / "a/f")
    with pytest.raises(RootDirError, match=why):
        root.read_file(root.path / "a/f", 10)


def test_a_link_is_made_anew_where_it_leads_elsewhere(root: RootDir) -> None:
    root.make_dir(root.path / "a")
    root.link(root.path / "a/l", "/dev/one")
    root.link(root.path / "a/l", "/dev/two")
    assert (root.path / "a/l").readlink() == Path("/dev/two")
