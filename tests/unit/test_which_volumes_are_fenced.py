"""Which volumes can be fenced, by the kernel's tables alone; and the watchdog's times."""

import os
import struct
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge.disk.mounts import MountTable, parse
from edge.fencing import fenced_volumes as module
from edge.fencing import shutdown, watchdog
from edge.fencing.fenced_volumes import NotFenceable, OwnPaths, file_system_of
from edge.fencing.plan import FileSystem, HeldVolume
from edge.fencing.shutdown import shut_down
from edge.fencing.watchdog import Watchdog

HELD = HeldVolume(driver="d.csi", handle="h", boot="b", pvs=("pv-1",))
STAGING = (
    "/r/plugins/kubernetes.io/csi/d.csi/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123/globalmount"
)
TARGET = "/r/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount"


def found(*lines: str) -> str:
    """The device of the volume's file system, or why it is kept."""
    table = MountTable(parse("\n".join(lines)))
    try:
        return getattr(file_system_of(table, OwnPaths(HELD, module.Path("/r"))), "device", "none")
    except NotFenceable as error:
        return str(error)


def line(path: str, *, device: str = "8:1", fs: str = "ext4", own: str = "rw", more: str = "rw") -> str:
    return f"30 20 {device} / {path} {own},relatime shared:1 - {fs} /dev/sdb1 {more}"


@pytest.fixture(autouse=True)
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("devices", "journals"):
        (tmp_path / name).mkdir()
    (tmp_path / "devices/8:1").mkdir()
    (tmp_path / "journals/8:1-8").touch()
    (tmp_path / "swaps").write_text("Filename Type Size\n")
    monkeypatch.setattr(module, "_DEVICES", tmp_path / "devices")
    monkeypatch.setattr(module, "_JOURNALS", tmp_path / "journals")
    monkeypatch.setattr(module, "_SWAPS", tmp_path / "swaps")
    return tmp_path


def test_the_volumes_own_ext4_or_xfs_can_be_fenced() -> None:
    assert found(line(STAGING), line(TARGET)) == "8:1"
    assert found(line(TARGET, fs="xfs")) == "8:1"
    assert found(line("/r/pods/uid-1/volumes/kubernetes.io~csi/pv-10/mount")) == "none"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([line(TARGET, fs="nfs4", device="0:50")], "its file system is nfs4"),
        ([line(TARGET, fs="fuse.sshfs", device="0:50")], "its file system is fuse.sshfs"),
        ([line(TARGET), line("/data")], "is mounted at /data as well"),
        ([line("/"), line(TARGET)], "is mounted at / as well"),
        ([line(STAGING), line(TARGET, device="8:2")], "several file systems"),
        ([line(TARGET, own="ro")], "only to be read"),
        ([line(TARGET, more="rw,nobarrier")], "mounted with nobarrier"),
        ([line(TARGET, more="rw,dax=always")], "mounted with dax=always"),
        ([line(TARGET, fs="xfs", more="rw,logdev=/dev/sdc")], "mounted with logdev=/dev/sdc"),
        ([line(TARGET, device="7:0")], "its device is a loop device"),
    ],
)
def test_any_other_is_kept(lines: list[str], why: str) -> None:
    assert why in found(*lines)


def test_an_ext4_with_its_journal_elsewhere_a_swap_file_or_dax_is_kept(kernel: Path) -> None:
    (kernel / "swaps").write_text(f"Filename Type Size\n{TARGET}/swap file 1\n")
    assert "a swap file is in use" in found(line("/", device="9:1"), line(TARGET))
    (kernel / "swaps").write_text("Filename Type Size\n/swap file 1\n/dev/sdb2 partition 2\n")
    assert found(line("/", device="9:1"), line(TARGET)) == "8:1"
    (kernel / "devices/8:1/queue").mkdir()
    (kernel / "devices/8:1/queue/dax").write_text("1\n")
    assert "DAX" in found(line(TARGET))
    (kernel / "devices/8:1/queue/dax").write_text("0\n")
    (kernel / "journals/8:1-8").unlink()
    assert "no journal of its own" in found(line(TARGET))


@pytest.mark.parametrize(
    ("line", "takes_files", "is_held", "why"),
    [
        (line(STAGING), False, True, ""),
        ("", False, False, ""),
        (line("/data"), False, True, "is mounted at /data, which is not the volume's"),
        (line(STAGING), True, True, "still takes new files"),
        ("", False, True, "no mount of it can be reached"),
    ],
)
def test_a_volume_counts_as_fenced_only_if_the_kernel_refuses_files_in_it_or_has_it_no_more(
    monkeypatch: pytest.MonkeyPatch, line: str, takes_files: bool, is_held: bool, why: str
) -> None:
    monkeypatch.setattr(shutdown, "_is_there", lambda _: True)
    monkeypatch.setattr(shutdown, "has_holders", lambda _: is_held)
    monkeypatch.setattr(shutdown, "_mounts", lambda pid, _: parse(line) if pid == "self" else [])
    monkeypatch.setattr(shutdown, "_opened", lambda *_: os.open("/", os.O_PATH))
    monkeypatch.setattr(shutdown, "_refuses_files", lambda _: not takes_files)
    monkeypatch.setattr(shutdown, "fcntl", SimpleNamespace(ioctl=lambda *_: 0))
    disk = FileSystem(device="8:1", sequence="7", fs_type="ext4")
    with pytest.raises(OSError, match=why) if why else nullcontext():
        shut_down(disk, OwnPaths(HELD, module.Path("/r")).have)


@pytest.mark.parametrize(("time_s", "longest_s", "end"), [(60, 0, 60), (29, 0, None), (60, 30, 30), (30, 60, 30)])
def test_a_watchdogs_time_is_the_one_read_back_and_never_longer_than_the_hub_counts_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_s: int, longest_s: int, end: int | None
) -> None:
    def ioctl(_descriptor: int, request: int, argument: bytes) -> bytes:
        return argument if request == 0xC0045706 else struct.pack("i", time_s)

    monkeypatch.setattr(watchdog, "fcntl", SimpleNamespace(ioctl=ioctl))
    (tmp_path / "watchdog").touch()
    device = Watchdog(tmp_path / "watchdog")
    if end is None:
        with pytest.raises(OSError, match="its time is 29 s; set it to 30 s"):
            device.pet(longest_s)
        assert (tmp_path / "watchdog").read_text() == "V"
        return
    device.pet(longest_s)
    assert (device.time_s, device.is_open) == (end, True)
    device.pet()
    device.close(stops=True)
    assert (tmp_path / "watchdog").read_bytes() == b"\0V"
