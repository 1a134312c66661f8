"""Leftovers: mounts and loop devices below a directory of the tests, which outlive every process."""

import subprocess
from pathlib import Path


def clear(directory: Path) -> None:
    """Unmount everything below a directory, the last mount first, and detach the loop devices of files below it."""
    for point in reversed(mounts_below(directory)):
        subprocess.run(["umount", "--no-canonicalize", "--lazy", point], check=False, capture_output=True)
    for device in loops_below(directory):
        subprocess.run(["losetup", "--detach", str(device)], check=False, capture_output=True)


def mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if Path(point).is_relative_to(directory)]


def loops_below(directory: Path) -> list[Path]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = Path(file.read_text().strip())
        except OSError:
            continue  # it is being detached
        if backing.is_relative_to(directory):
            found.append(Path("/dev") / file.parts[-3])
    return found
