"""The doctor's check of the watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.doctor.finding import Level
from cli.doctor.watchdog import check_watchdog

if TYPE_CHECKING:
    from pathlib import Path


def test_another_holder_and_a_short_time_are_wrong(tmp_path: Path) -> None:
    process, device = tmp_path / "7", tmp_path / "devices/watchdog0"
    (process / "fd").mkdir(parents=True)
    device.mkdir(parents=True)
    (process / "comm").write_text("systemd\n")
    (device / "timeout").write_text("60\n")
    assert check_watchdog(proc=tmp_path, devices=tmp_path / "devices").level is Level.OK
    (device / "timeout").write_text("15\n")
    assert "time is 15 s" in check_watchdog(proc=tmp_path, devices=tmp_path / "devices").what
    (process / "fd/3").symlink_to("/dev/watchdog0")
    assert "process 7 'systemd' holds" in check_watchdog(proc=tmp_path, devices=tmp_path / "devices").what
    (process / "comm").write_text("csi-bridge\n")
    assert "time is 15 s" in check_watchdog(proc=tmp_path, devices=tmp_path / "devices").what
    (device / "timeout").unlink()
    assert check_watchdog(proc=tmp_path, devices=tmp_path / "devices").level is Level.WARNING
