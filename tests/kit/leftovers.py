"""Leftovers: mounts and loop devices below a directory of the tests, which outlive every process."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
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
    return [device for device, file in loop_devices() if file.is_relative_to(directory)]


def loop_devices() -> Iterator[tuple[Path, Path]]:
    """Yield each loop device that is attached, and the file that it has."""
    # Not by a pattern with folders: tests look often, and a machine may have a hundred of them.
    for block in Path("/sys/block").glob("loop*"):
        with suppress(OSError):  # it is not attached
            yield Path("/dev", block.name), Path((block / "loop/backing_file").read_text().strip())
