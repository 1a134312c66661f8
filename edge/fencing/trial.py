"""The trial: whether this kernel keeps its word about a file system that was shut down, on a scratch image.

The unmount must change no byte, because another node may have the device by then: ext4 before Linux 6.15 or so writes
its superblock. Afterwards the file system must be mountable again.
"""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge.disk.mounts import read_table
from edge.fencing.plan import FileSystem
from edge.fencing.shutdown import sequence_of, shut_down

# The size of the image in bytes (mkfs.xfs wants 300 MB), and the command that makes it.
_MAKE: Final = {"ext4": (16 << 20, "mkfs.ext4", "-q", "-F"), "xfs": (300 << 20, "mkfs.xfs", "-q", "-f")}

_TOOL_LIMIT_S: Final = 20.0


def flaw_of(fs_type: str, directory: Path) -> str:
    """Why file systems of a type cannot be fenced here; empty if they can. Blocks for a second."""
    image = directory.resolve() / fs_type
    point = directory.resolve() / "mount"
    size, *make = _MAKE[fs_type]
    point.mkdir(parents=True, exist_ok=True)
    try:
        _unmount_if_mounted(point)  # by a trial that was killed
        with image.open("wb") as file:
            file.truncate(size)
        _run(*make, image)
        _run("mount", "-o", "loop", image, point)
        (point / "file").write_bytes(b"kept")
        (device,) = (mount.device for mount in read_table(point).mounts if mount.path == str(point))
        shut_down(FileSystem(device=device, sequence=sequence_of(device), fs_type=fs_type), str(point).__eq__)
        before = _written(image)
        _run("umount", point)
        if _written(image) != before:
            return f"this kernel writes to a {fs_type} that was shut down when it is unmounted"
        _run("mount", "-o", "loop", image, point)
        return "" if (point / "file").read_bytes() == b"kept" else f"{fs_type} loses files in a shutdown"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"a scratch image of {fs_type} cannot be shut down here: {error}"
    finally:
        _unmount_if_mounted(point)
        image.unlink(missing_ok=True)


def _unmount_if_mounted(point: Path) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        _run("umount", point)


def _run(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=_TOOL_LIMIT_S, check=False)  # noqa: S603
    if done.returncode:
        raise OSError(f"{words[0]}: {done.stderr.strip()[-200:]}")


def _written(image: Path) -> list[tuple[int, bytes]]:
    # The holes of an image were not written.
    found = []
    end = 0
    with image.open("rb") as file, suppress(OSError):  # ENXIO: only a hole is left
        while True:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            found.append((begin, os.pread(file.fileno(), end - begin, begin)))
    return found
