"""Loop devices: images as block devices. The kernel's list in /sys/block says which images are attached."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from examples.dirdriver.commands import run
from examples.dirdriver.mounts import require_mount_right

SYSFS = Path("/sys/block")

DETACH_WAIT_S = 2.0
"""The time that `detach` waits for the kernel, which keeps a device until the last program has closed it."""


def devices(image: Path) -> Iterator[tuple[Path, bool]]:
    """The devices of an image, and whether each is read-only."""
    for loop in SYSFS.glob("loop[0-9]*/loop/backing_file"):
        try:
            backing = os.fsdecode(loop.read_bytes()).removesuffix("\n")
            readonly = (loop.parent.parent / "ro").read_text().strip() == "1"
        except OSError:
            continue  # detached meanwhile
        if backing == str(image):
            yield Path("/dev") / loop.parent.parent.name, readonly


def find(image: Path, *, readonly: bool = False) -> Path | None:
    return next((device for device, is_readonly in devices(image) if is_readonly == readonly), None)


def attach(image: Path, *, readonly: bool = False) -> Path:
    if (device := find(image, readonly=readonly)) is not None:
        return device
    require_mount_right("attach a loop device")
    options = ("--read-only",) if readonly else ()
    return Path(run("losetup", "--find", "--show", *options, str(image)).strip())


def refresh(device: Path) -> None:
    require_mount_right("grow a loop device")
    run("losetup", "--set-capacity", str(device))


def detach(image: Path, *, readonly: bool) -> None:
    """Detach the image's devices of one kind. OK if there is none."""
    for device, is_readonly in list(devices(image)):
        if is_readonly == readonly:
            run("losetup", "--detach", str(device))
    deadline = time.monotonic() + DETACH_WAIT_S
    while find(image, readonly=readonly) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
