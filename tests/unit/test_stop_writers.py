"""Stopping writers: which mounts and processes are meant, and what comes after what. Nothing is mounted or killed."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from typing import TYPE_CHECKING

import pytest

from edge.disk.layout import Layout, handle_hash
from edge.disk.mounts import Mount, MountTable, parse
from edge.fencing.disks import block_of, is_in_use, switch_of
from edge.fencing.holders import _is_below, holders, is_of, mappers, parts_of
from edge.fencing.plan import Held
from edge.fencing.stop import RESET_AT, Ends, Stopped, stop_writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HELD = Held("d.csi", "h-1", ("pv-1",))


def test_the_mounts_of_a_volume_are_its_staging_and_its_publications(tmp_path: Path) -> None:
    ends = Ends([HELD], Layout(tmp_path))
    staging = f"{tmp_path}/plugins/kubernetes.io/csi/d.csi"
    assert ends.are_of(f"{staging}/{handle_hash('h-1')}/globalmount")
    assert ends.are_of(f"{tmp_path}/pods/any-uid/volumes/kubernetes.io~csi/pv-1/mount")


@pytest.mark.parametrize(
    "other",
    [
        "/",
        "/pods/any-uid/volumes/kubernetes.io~csi/pv-1/mount",
        "{root}/pods/any-uid/volumes/kubernetes.io~csi/pv-2/mount",
        "{root}/pods/any-uid/volumes/kubernetes.io~csi/pv-1/mount/below",
        "{root}/plugins/kubernetes.io/csi/d.csi/other/globalmount",
        "{root}/pods",
    ],
)
def test_no_other_mount_is_meant(tmp_path: Path, other: str) -> None:
    assert not Ends([HELD], Layout(tmp_path)).are_of(other.format(root=tmp_path))


@pytest.mark.parametrize(
    ("path", "is_anothers"),
    [
        ("/pods/any-uid/volumes/kubernetes.io~csi/pv-1/mount", False),
        ("/pods/any-uid/volumes/kubernetes.io~csi/pv-2/mount", True),
        ("/pods/any-uid/volume-subpaths/pv-1/web/0", False),
        ("/plugins/kubernetes.io/csi/d.csi/other/globalmount", True),
        ("/plugins/d.csi/any", False),
        ("/host/pods/any-uid/volumes/kubernetes.io~csi/pv-2/mount", True),
        ("/host/pods/any-uid/volumes/kubernetes.io~csi/pv-1/mount", False),
    ],
)
def test_a_mount_point_of_another_volume_is_told_from_a_copy_of_this_one(
    tmp_path: Path, path: str, is_anothers: bool
) -> None:
    assert Ends([HELD], Layout(tmp_path)).are_anothers(f"{tmp_path}{path}") == is_anothers


def test_a_volume_whose_names_cannot_be_paths_is_mounted_nowhere(tmp_path: Path) -> None:
    assert not Ends([Held("d.csi", "", ("..",))], Layout(tmp_path)).are_of(f"{tmp_path}/pods/a/volumes")


def test_a_process_with_an_open_file_of_the_volume_holds_it(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"):
        found = dict(holders([], [str(tmp_path)], spared=()))
    assert list(found) == [os.getpid()]
    assert found[os.getpid()].endswith("(has a file of it open)")
    assert not list(holders([], [str(tmp_path)], spared=()))


def test_a_process_that_has_mapped_a_file_of_the_volume_holds_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (tmp_path / "file").open() as file, mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ):
        found = dict(mappers([str(tmp_path)], spared=()))
    assert found[os.getpid()].endswith("(has a file of it mapped)")


def test_a_spared_process_is_not_looked_at(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"):
        assert not list(holders([], [str(tmp_path)], spared=[os.getpid()]))


def test_a_path_that_only_begins_alike_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "mount-2").mkdir()
    with (tmp_path / "mount-2" / "file").open("w"):
        assert not list(holders([], [str(tmp_path / "mount")], spared=()))


def test_a_container_sees_a_kubelets_path_below_another_root_and_no_other_path() -> None:
    point = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount"
    assert _is_below(f"/host{point}/file", [point])
    assert not _is_below("/opt/app/data/base/1", ["/data"])


def test_nothing_to_stop_is_done_after_two_looks(tmp_path: Path) -> None:
    assert stop_writers([HELD], tmp_path, stop_s=20.0, reset=tmp_path / "reset") == Stopped(is_done=True)
    assert not (tmp_path / "reset").exists()


@pytest.fixture
def never_stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Stopped, float]]]:
    """Tries to stop what cannot be stopped. Gives what was done, and the seconds by its clock."""
    over = threading.Event()

    def play(obstacle: str, root: Path, *, stop_s: float, reset: Path | None) -> tuple[Stopped, float]:
        now = itertools.count()
        if obstacle == "a look that hangs":
            monkeypatch.setattr("edge.fencing.stop.read_table", lambda _root: over.wait() and MountTable([]))
        done = stop_writers(
            [HELD],
            root,
            stop_s=stop_s,
            reset=reset,
            is_mounting=lambda: True,
            clock=lambda: float(next(now)),
            sleep=lambda _s: None,
        )
        return done, next(now)

    yield play
    over.set()


@pytest.mark.parametrize("obstacle", ["a look that hangs", "a call that may mount"])
def test_the_machine_is_reset_in_time_whatever_hangs(
    tmp_path: Path, obstacle: str, never_stopped: Callable[..., tuple[Stopped, float]]
) -> None:
    done, took_s = never_stopped(obstacle, tmp_path, stop_s=10.0, reset=tmp_path / "reset")
    assert (done.is_reset, (tmp_path / "reset").read_text()) == (True, "b")
    assert took_s <= RESET_AT * 10 + 2


@pytest.mark.parametrize(("obstacle", "is_done"), [("a look that hangs", False), ("a call that may mount", True)])
def test_without_a_reset_a_stop_ends_with_its_time(
    tmp_path: Path, obstacle: str, is_done: bool, never_stopped: Callable[..., tuple[Stopped, float]]
) -> None:
    """So that one volume keeps no other waiting. Of an open call only the driver knows the end, which is asked next."""
    done, took_s = never_stopped(obstacle, tmp_path, stop_s=20.0, reset=None)
    assert (done.is_done, done.is_late, took_s <= 21) == (is_done, True, True)


def test_a_thread_that_hung_in_a_stop_unmounts_nothing_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume may be mounted anew by then, under a new lease."""
    point = str(Layout(tmp_path).target("uid-1", "pv-1"))
    began, goes_on, unmounted = threading.Event(), threading.Event(), list[str]()

    def hang(_path: str) -> None:
        began.set()
        goes_on.wait()

    monkeypatch.setattr("edge.fencing.stop.read_table", lambda _root: MountTable([Mount("0:1", "/", point)]))
    monkeypatch.setattr("edge.fencing.stop._write_out", hang)
    monkeypatch.setattr("edge.fencing.stop._force", lambda _path: None)
    monkeypatch.setattr("edge.fencing.stop.unmount", lambda path: unmounted.append(str(path)))
    now = itertools.count()
    done = stop_writers(
        [HELD], tmp_path, stop_s=20.0, reset=None, clock=lambda: float(next(now)), sleep=lambda _s: None
    )
    assert began.is_set()
    hung = [thread for thread in threading.enumerate() if thread.name == f"unmount {point}"]
    goes_on.set()
    for thread in hung:
        thread.join()
    assert (len(hung), unmounted, done.is_done) == (1, [], False)


def test_another_directory_of_the_same_nfs_server_is_another_part() -> None:
    line = "36 35 0:50 / /data rw - nfs4 server:/export/{} rw"
    one, other = (parse(line.format(name))[0] for name in ("a", "b"))
    (part,) = parts_of([one])
    assert (is_of(one, part), is_of(other, part)) == (True, False)


def test_a_device_without_a_switch_is_not_deleted() -> None:
    assert switch_of("0:0", []) is None


def test_a_device_that_is_no_block_device_is_in_no_use() -> None:
    assert not is_in_use("0:0")


def test_the_source_of_a_mount_counts_only_if_it_is_a_block_device_and_the_mount_has_none() -> None:
    assert [block_of(*it) for it in (("8:1", "/dev/sda1"), ("0:50", "server:/a"), ("0:5", "/dev/null"))] == [
        "8:1",
        "0:50",
        "0:5",
    ]


def test_what_was_done_is_told_in_words() -> None:
    many = {pid: f"process {pid} 'web'" for pid in range(1, 6)}
    assert str(Stopped()) == "killed no process, unmounted 0 mounts"
    assert str(
        Stopped(killed=many, unmounted=["/a"], cut=["/sys/x"], is_late=True, is_reset=True, remains="a device in use")
    ) == (
        "killed process 1 'web', process 2 'web', process 3 'web', and 2 more, unmounted 1 mounts, deleted /sys/x, and "
        "could not stop everything in time (a device in use), so it asked for a reset of the machine"
    )
