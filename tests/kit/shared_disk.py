"""A disk that two nodes reach, as of a SAN: an image, and a loop device of each node on it."""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_MAKE = {"ext4": ("64M", "mkfs.ext4", "-q", "-F"), "xfs": ("300M", "mkfs.xfs", "-q", "-f")}


class SharedDisk:
    """The disk.

    Attributes:
        fs_type: ext4 or xfs.
        devices: by node, its loop device.
    """

    def __init__(self, image: Path, fs_type: str) -> None:
        """Make it, with an empty file system."""
        size, *make = _MAKE[fs_type]
        self.fs_type, self._image, self.devices = fs_type, image, dict[str, str]()
        subprocess.run(["truncate", "--size", size, str(image)], check=True)
        subprocess.run([*make, str(image)], check=True)

    def attach(self, node: str) -> str:
        """Give a node its device; it keeps the one that it has."""
        if node not in self.devices:
            words = ["losetup", "--find", "--show", str(self._image)]
            self.devices[node] = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        return self.devices[node]

    def detach(self, node: str) -> None:
        """Take a node's device away."""
        if (device := self.devices.pop(node, None)) is not None:
            subprocess.run(["losetup", "--detach", device], check=True)

    def hash(self) -> str:
        """The hash of all that was ever written to it."""
        seen = hashlib.sha256()
        with self._image.open("rb") as file:
            for begin, end in _written(file.fileno()):
                seen.update(f"{begin} ".encode() + os.pread(file.fileno(), end - begin, begin))
        return seen.hexdigest()


def _written(descriptor: int) -> Sequence[tuple[int, int]]:
    found, end, size = [], 0, os.fstat(descriptor).st_size
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        found.append((begin, end))
    return found


class HangingStorage:
    """A file system for the image of a disk. While it is frozen, each write to the disk hangs.

    Attributes:
        directory: for the image.
    """

    def __init__(self, directory: Path) -> None:
        """Make and mount it below a directory."""
        image, self.directory = directory / "storage", directory / "mounted"
        self.directory.mkdir()
        subprocess.run(["truncate", "--size", "256M", str(image)], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        subprocess.run(["mount", "--options", "loop", str(image), str(self.directory)], check=True)
        self._is_frozen = False

    def freeze(self) -> None:
        """From now on, writes hang."""
        subprocess.run(["fsfreeze", "--freeze", str(self.directory)], check=True)
        self._is_frozen = True

    def thaw(self) -> None:
        """Let them go on, if they hang."""
        if self._is_frozen:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.directory)], check=True)
            self._is_frozen = False

    def close(self) -> None:
        """Unmount it."""
        self.thaw()
        subprocess.run(["umount", str(self.directory)], check=True)
