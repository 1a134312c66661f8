"""Leftovers: mounts and loop devices below a directory of the tests' own, which outlive every process."""

from __future__ import annotations

import subprocess
from pathlib import Path


def clear(directory: Path) -> None:
    """Unmount what is mounted below a directory, and detach loop devices from files below it."""
    for point in _mounts(directory):
        subprocess.run(["umount", "--no-canonicalize", "--lazy", str(point)], check=False, capture_output=True)
    for device in loops(directory):
        subprocess.run(["losetup", "--detach", str(device)], check=False, capture_output=True)


def _mounts(directory: Path) -> list[Path]:
    """Mount points, the one mounted last first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]
    return [point for point in reversed(points) if point.is_relative_to(directory)]


def loops(directory: Path) -> list[Path]:
    """Loop devices of files below a directory."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = Path(file.read_text().strip())
        except OSError:
            continue  # it is being detached
        if backing.is_relative_to(directory):
            found.append(Path("/dev") / file.parts[-3])
    return found
