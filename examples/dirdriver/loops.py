"""A loop device: an image as a block device. What is attached is asked of the kernel, never remembered."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from examples.dirdriver.commands import run
from examples.dirdriver.mounts import require_mount_right

SYSFS = Path("/sys/block")

DETACH_WAIT_S = 2.0
"""How long a detached device may stay: the kernel lets go of it when the last program that has it open closes it."""


def devices(image: Path, *, sysfs: Path = SYSFS) -> Iterator[tuple[Path, bool]]:
    """The devices that an image is attached to, and whether each is read-only."""
    for loop in sysfs.glob("loop[0-9]*/loop/backing_file"):
        try:
            backing = os.fsdecode(loop.read_bytes()).removesuffix("\n")
            readonly = (loop.parent.parent / "ro").read_text().strip() == "1"
        except OSError:
            continue  # detached while we looked
        if backing == str(image):
            yield Path("/dev") / loop.parent.parent.name, readonly


def find(image: Path, *, readonly: bool = False) -> Path | None:
    """The device of an image, if it is attached that way."""
    return next((device for device, is_readonly in devices(image) if is_readonly == readonly), None)


def attach(image: Path, *, readonly: bool = False) -> Path:
    """The device of an image; attaches it if it is not yet.

    Raises:
        CsiError: FAILED_PRECONDITION without the right to, INTERNAL if it fails.
    """
    if (device := find(image, readonly=readonly)) is not None:
        return device
    require_mount_right("attach a loop device")
    options = ("--read-only",) if readonly else ()
    return Path(run("losetup", "--find", "--show", *options, str(image)).strip())


def refresh(device: Path) -> None:
    """Let a device take its grown image's size."""
    require_mount_right("grow a loop device")
    run("losetup", "--set-capacity", str(device))


def detach(image: Path, *, readonly: bool) -> None:
    """Detach the image's devices of one kind. No error if there is none."""
    for device, is_readonly in list(devices(image)):
        if is_readonly == readonly:
            run("losetup", "--detach", str(device))
    deadline = time.monotonic() + DETACH_WAIT_S
    while find(image, readonly=readonly) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
