"""fsGroup, as the kubelet applies it."""

import asyncio
import os
import subprocess
import threading
from pathlib import Path

import pytest

from edge.disk import ownership
from edge.disk.root_dir import RootDir
from tests.kit import needs

needs_root = needs.skip_without(needs.root())  # only it gives files to any group
pytestmark = needs_root

GID = 2000


def tree(root: Path) -> Path:
    (root / "dir/deep").mkdir(parents=True)
    for name, mode in (("plain", 0o600), ("dir/script", 0o4711), ("dir/deep/readonly", 0o444)):
        (root / name).touch()
        (root / name).chmod(mode)
    for name in (".", "dir", "dir/deep"):
        (root / name).chmod(0o700)
    return root


def look(path: Path) -> tuple[int, str]:
    found = path.lstat()
    return found.st_gid, oct(found.st_mode & 0o7777)


async def test_every_entry_gets_the_group_and_the_modes(tmp_path: Path) -> None:
    root = tree(tmp_path / "v")
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False)
    assert look(root) == look(root / "dir") == look(root / "dir/deep") == (GID, "0o2770")
    assert look(root / "plain") == (GID, "0o660")
    assert look(root / "dir/script") == (GID, "0o4771")
    assert look(root / "dir/deep/readonly") == (GID, "0o664")


async def test_a_directory_that_another_pod_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "v")
    (root / "short-lived").mkdir()
    usual = os.lstat

    def remove_after(name: str, *, dir_fd: int) -> os.stat_result:
        found = usual(name, dir_fd=dir_fd)
        if name == "short-lived":
            (root / name).rmdir()
        return found

    monkeypatch.setattr(ownership.os, "lstat", remove_after)
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False)
    monkeypatch.undo()
    assert look(root) == look(root / "dir/deep") == (GID, "0o2770")


async def test_a_symbolic_link_is_given_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(0o600)
    (tmp_path / "dir").mkdir(0o700)
    root = tree(tmp_path / "v")
    (root / "link").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path / "dir")
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False)
    assert (root / "link").lstat().st_gid == GID
    assert look(outside) == (os.getegid(), "0o600")
    assert look(tmp_path / "dir") == (os.getegid(), "0o700")


async def test_a_root_that_matches_is_left_alone_on_root_mismatch(tmp_path: Path) -> None:
    root = tree(tmp_path / "v")
    os.chown(root, -1, GID)
    root.chmod(0o2775)
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=True)
    assert look(root / "plain")[0] != GID
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False)
    assert look(root / "plain") == (GID, "0o660")


@pytest.mark.parametrize(("gid", "mode"), [(GID + 1, 0o2770), (GID, 0o770), (GID, 0o2750), (GID, 0o2760)])
async def test_a_root_that_differs_is_given_on_root_mismatch(tmp_path: Path, gid: int, mode: int) -> None:
    root = tree(tmp_path / "v")
    os.chown(root, -1, gid)
    root.chmod(mode)
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=True)
    assert look(root / "plain") == (GID, "0o660")
    assert look(root)[0] == GID


async def test_a_volume_that_is_one_file_is_given_too(tmp_path: Path) -> None:
    (tmp_path / "v").touch(0o600)
    await ownership.give(tmp_path / "v", GID, within=RootDir(tmp_path), on_root_mismatch=False)
    assert look(tmp_path / "v") == (GID, "0o660")


async def test_a_volume_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await ownership.give(tmp_path / "v", GID, within=RootDir(tmp_path), on_root_mismatch=False)


def test_a_tree_deeper_than_the_descriptors_of_a_process_is_walked(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    before = len(list(Path("/proc/self/fd").iterdir()))
    walk = ownership.Walk(tmp_path, GID, RootDir(tmp_path.parent))
    walk.run()
    assert walk.entries == 1201
    assert os.fstat(folder).st_gid == GID
    os.close(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # shutil.rmtree needs a descriptor per level


async def test_a_directory_moved_away_meanwhile_is_an_error_and_nothing_outside_is_given(tmp_path: Path) -> None:
    root = tree(tmp_path / "v")
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "elsewhere/other").touch()

    class Moving(ownership.Walk):
        def _change(self, folder: int, name: str, entry: os.stat_result) -> None:
            if name == "readonly":
                (root / "dir/deep").rename(tmp_path / "elsewhere/deep")
            super()._change(folder, name, entry)

    with pytest.raises(OSError, match="moved away"):
        Moving(root, GID, RootDir(tmp_path)).run()
    assert look(tmp_path / "elsewhere")[0] != GID
    assert look(tmp_path / "elsewhere/other")[0] != GID


async def test_whoever_waits_long_is_told_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(ownership.Walk, "run", lambda _: gate.wait(30))
    monkeypatch.setattr(ownership, "FIRST_WORD_S", 0.01)
    monkeypatch.setattr(ownership, "NEXT_WORD_S", 0.01)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            gate.set()

    root = tmp_path / "pods/u1/volumes/kubernetes.io~csi/pv1/mount"
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False, tell=tell)
    assert told[0].startswith("giving u1/volumes/kubernetes.io~csi/pv1/mount to the pod's fsGroup takes long")
    assert told[1] == "still giving u1/volumes/kubernetes.io~csi/pv1/mount to the pod's fsGroup: 0 entries so far"


async def test_cancelling_stops_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "v")
    entered, gate = threading.Event(), threading.Event()
    walks: list[ownership.Walk] = []

    class Held(ownership.Walk):
        def run(self) -> None:
            walks.append(self)
            entered.set()
            gate.wait(30)
            super().run()

    monkeypatch.setattr(ownership, "Walk", Held)
    task = asyncio.create_task(ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False))
    await asyncio.to_thread(entered.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert walks[0].stop.is_set()
    assert look(root)[0] != GID


async def test_an_entry_that_refuses_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "v")
    chown = os.chown

    def refuse(path: str, *args: int, **kwargs: object) -> None:
        if path == "plain":
            raise PermissionError(1, "Operation not permitted")
        chown(path, *args, **kwargs)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(os, "chown", refuse)
    await ownership.give(root, GID, within=RootDir(tmp_path), on_root_mismatch=False)
    assert look(root) == (GID, "0o2770")
