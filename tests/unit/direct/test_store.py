"""The store of direct volumes: names, modes and whole files, whoever else writes there."""

import ctypes
import errno
import json
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.direct.mount_info import mount_info
from edge.direct.store import DirectVolumeStore, key_of
from edge.volume_errors import Uncertain

ALL = json.loads((Path(__file__).parent / "mount_info_vectors.json").read_text(encoding="utf-8"))
VECTORS = [vector for vector in ALL if vector["mount_info"]["volume_type"] == "directvol"]
PATH = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount"
EXT4 = mount_info("/dev/sdf", "ext4", (), {})
XFS = mount_info("/dev/sdg", "xfs", (), {})
IN_CREATE_OR_MOVED_TO = 0x100 | 0x80


@pytest.fixture
def store(tmp_path: Path) -> DirectVolumeStore:
    return DirectVolumeStore(tmp_path / "kata" / "direct-volumes")


def put(store: DirectVolumeStore, info: bytes = EXT4, path: str = PATH, *, live: bool = False) -> Path:
    store.add(path, info, is_live=lambda _: live)
    return store.root / key_of(path)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["volume_path"])
def test_a_volume_has_the_name_and_the_file_of_katas_package(store: DirectVolumeStore, vector: dict[str, Any]) -> None:
    given = vector["mount_info"]
    info = mount_info(given["device"], given["fstype"], given["options"], given["metadata"])
    put(store, info, vector["volume_path"])
    [place] = store.root.iterdir()
    assert place.name == vector["dir"]
    assert {entry.name: entry.read_text("utf-8") for entry in place.iterdir()} == {
        "mountInfo.json": vector["file_utf8"]
    }
    assert store.device(vector["volume_path"]) == given["device"]


def test_only_the_owner_reads_a_volume_whatever_the_umask(store: DirectVolumeStore) -> None:
    before = os.umask(0)
    try:
        place = put(store)
    finally:
        os.umask(before)
    assert [mode(store.root.parent), mode(store.root), mode(place)] == [0o700] * 3
    assert mode(place / "mountInfo.json") == 0o600


def test_a_path_of_189_bytes_is_kept(store: DirectVolumeStore) -> None:
    longest = "/" + "x" * 184 + "é" * 2
    put(store, path=longest)
    assert store.device(longest) == "/dev/sdf"


def test_the_path_is_taken_as_it_is(store: DirectVolumeStore) -> None:
    put(store, path="/a/./b/")
    assert store.volume_paths() == ["/a/./b/"]
    assert store.device("/a/b") is None


def test_the_same_mount_info_again_changes_nothing(store: DirectVolumeStore) -> None:
    place = put(store)
    before = (place / "mountInfo.json").stat()
    put(store, live=True)
    assert (place / "mountInfo.json").stat() == before


def test_another_mount_info_is_refused_while_a_sandbox_runs(store: DirectVolumeStore) -> None:
    place = put(store)
    (place / "sandbox-1").touch()
    with pytest.raises(Uncertain, match=f"sandbox sandbox-1 uses direct volume {PATH} with another mount info; stop"):
        put(store, XFS, live=True)
    assert store.device(PATH) == "/dev/sdf"


def test_another_mount_info_replaces_that_of_a_dead_sandbox(store: DirectVolumeStore) -> None:
    place = put(store)
    (place / "sandbox-1").touch()
    put(store, XFS)
    assert store.device(PATH) == "/dev/sdg"
    assert store.sandbox_ids(PATH) == ["sandbox-1"]


def test_every_name_beside_the_file_is_a_sandbox(store: DirectVolumeStore) -> None:
    place = put(store)
    (place / "b").touch()
    (place / "a").touch()
    assert store.sandbox_ids(PATH) == ["a", "b"]
    assert store.sandbox_ids("/other") == []


def test_a_removed_volume_leaves_its_siblings_and_a_second_removal_finds_nothing(store: DirectVolumeStore) -> None:
    place = put(store)
    (place / "sandbox-1").touch()
    other = put(store, XFS, "/other")
    assert store.remove(PATH)
    assert not store.remove(PATH)
    assert list(store.root.iterdir()) == [other]


def test_an_empty_store_has_no_volumes(store: DirectVolumeStore) -> None:
    assert (store.volume_paths(), store.device(PATH), store.remove(PATH)) == ([], None, False)
    store.sweep()


def test_the_volumes_are_listed_by_their_paths_and_other_entries_skipped(store: DirectVolumeStore) -> None:
    put(store, path="/b")
    put(store, path="/a")
    for name in ("L2E", "readme", ".new-1", "YQ==", "L2F="):  # L2E without padding, no base64, "a", not canonical
        (store.root / name).mkdir()
    assert store.volume_paths() == ["/a", "/b"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", f"direct volume {PATH}: the mount info cannot be used: it is not JSON"),
        (b" " * 65_537, "it is larger than 65536 bytes"),
    ],
    ids=["broken", "large"],
)
def test_a_file_that_cannot_be_read_is_told_with_its_volume_and_is_replaced(
    store: DirectVolumeStore, content: bytes, why: str
) -> None:
    (put(store) / "mountInfo.json").write_bytes(content)
    with pytest.raises(Uncertain, match=why):
        store.device(PATH)
    put(store)
    assert store.device(PATH) == "/dev/sdf"


def test_a_link_in_the_place_of_the_file_is_not_followed(store: DirectVolumeStore, tmp_path: Path) -> None:
    file = put(store) / "mountInfo.json"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Uncertain, match="cannot read the mount info of"):
        store.device(PATH)


def test_a_directory_of_others_in_the_place_of_a_file_is_told(store: DirectVolumeStore) -> None:
    store.root.mkdir(parents=True)
    (store.root / key_of(PATH)).touch()
    with pytest.raises(Uncertain, match=f"cannot write the mount info of {PATH} below"):
        put(store)
    assert [entry.name for entry in store.root.iterdir()] == [key_of(PATH)]


def test_a_directory_without_a_file_gets_one(store: DirectVolumeStore) -> None:
    (store.root / key_of(PATH)).mkdir(parents=True)
    assert store.device(PATH) is None
    put(store)
    assert store.device(PATH) == "/dev/sdf"


def test_a_volume_that_cannot_be_written_is_not_taken_for_one_that_a_guest_may_use(
    store: DirectVolumeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edge.direct.store.os.write", full)
    with pytest.raises(Uncertain, match="No space left on device"):
        put(store)
    assert store.volume_paths() == []


def test_what_a_killed_process_left_is_swept(store: DirectVolumeStore) -> None:
    place = put(store)
    (store.root / ".new-0123").touch()
    store.sweep()
    assert list(store.root.iterdir()) == [place]


def test_two_hundred_writers_at_once_make_no_other_entry_and_no_part_of_a_file(store: DirectVolumeStore) -> None:
    place = put(store)
    with watched(place) as names, ThreadPoolExecutor(16) as pool:
        done = [pool.submit(put, store, (EXT4, XFS)[number % 2]) for number in range(200)]
        while not all(one.done() for one in done):
            assert store.device(PATH) in ("/dev/sdf", "/dev/sdg")
        for one in done:
            one.result()
        assert names() == {"mountInfo.json"}
    assert list(store.root.iterdir()) == [place]


@contextmanager
def watched(folder: Path) -> Iterator[Callable[[], set[str]]]:
    """Watch a directory (inotify): yields a function that returns the names of the entries that have appeared."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.inotify_init1(os.O_NONBLOCK)

    def names() -> set[str]:
        found, events = set(), os.read(file, 1 << 20)
        while events:
            _, mask, _, size = struct.unpack_from("iIII", events)
            assert mask & IN_CREATE_OR_MOVED_TO  # an overflow would hide names
            found.add(events[16 : 16 + size].rstrip(b"\0").decode())
            events = events[16 + size :]
        return found

    try:
        assert libc.inotify_add_watch(file, os.fsencode(folder), IN_CREATE_OR_MOVED_TO) > 0
        yield names
    finally:
        os.close(file)
