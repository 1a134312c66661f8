"""The store of direct volumes: Kata's directory, in which a runtime looks up each mount of a container.

    <root>/<key>/mountInfo.json     written here, or by a driver that knows Kata
    <root>/<key>/<sandbox id>       an empty file of the Go runtime: the sandbox that uses the volume
    <root>/.new-<random>            a mountInfo.json while it is being written

Rules:

* The key is the padded URL-safe base64 of the volume path. The runtimes compare the path as it is in the container's
  OCI mounts: they clean nothing and resolve no link. So the callers pass the target's path without symbolic links.
* A volume's directory holds nothing else: the Go runtime takes any other file for a sandbox's id.
* A file appears as a whole. A directory without one is being made or removed: no container starts meanwhile, and the
  guard at its target holds no data (`edge.direct.hand_over`).
* Every method blocks for a moment only: the directory is in memory (/run).

Source: Kata Containers, src/runtime/pkg/direct-volume/utils.go.
"""

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from common.store.files import opened
from edge.direct.mount_info import broken, device_of
from edge.volume_errors import Uncertain, as_uncertain

# The directory below /run that both runtimes read. It is compiled into them.
KATA_ROOT = "kata-containers/shared/direct-volumes"

MOUNT_INFO = "mountInfo.json"

# Limit for reading a mountInfo.json. An ordinary one has 200 bytes.
LARGEST_BYTES = 65_536

# Begins the name of a file that is no volume's yet. No key has a dot.
_NEW = ".new-"

_DIR_MODE = 0o700
_FILE_MODE = 0o600


def key_of(volume_path: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(volume_path)).decode("ascii")


class DirectVolumeStore:
    """The direct volumes of this node. Drivers may keep theirs in the same directory. Each failure is `Uncertain`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, volume_path: str, info: bytes, *, is_live: Callable[[str], bool]) -> None:
        """Tell the runtimes how to mount a volume. A file with the same bytes stays as it is.

        A sandbox that runs (`is_live`) gets no other mount info. After an error the old state stays.
        """
        with as_uncertain(f"write the mount info of {volume_path} below {self.root}"):
            with suppress(Uncertain):  # too large to be read: it is replaced
                if self._read(volume_path) == info:
                    return
            for sandbox_id in self.sandbox_ids(volume_path):
                if is_live(sandbox_id):
                    raise Uncertain(
                        f"sandbox {sandbox_id} uses direct volume {volume_path} with another mount info; stop its pod "
                        f"first"
                    )
            self._write(self._dir(volume_path), info)

    def device(self, volume_path: str) -> str | None:
        """Return the device of a volume's mount info; None without one."""
        with as_uncertain(f"read the mount info of {volume_path} below {self.root}"):
            try:
                raw = self._read(volume_path)
                return None if raw is None else device_of(raw)
            except Uncertain as error:
                raise Uncertain(f"direct volume {volume_path}: {error}") from None

    def remove(self, volume_path: str) -> bool:
        place = self._dir(volume_path)
        with as_uncertain(f"remove the direct volume {volume_path} below {self.root}"):
            try:
                names = os.listdir(place)  # noqa: PTH208  # only the names
            except FileNotFoundError:
                return False
            for name in names:
                (place / name).unlink(missing_ok=True)
            place.rmdir()
        return True

    def sandbox_ids(self, volume_path: str) -> list[str]:
        """Return the ids of the sandboxes that use a volume, sorted. Some of these sandboxes may be dead.

        runtime-rs writes no ids (Kata 4.1.0), so an empty list does not mean that the volume is unused.
        """
        with as_uncertain(f"read the sandboxes of {volume_path} below {self.root}"):
            try:
                names = os.listdir(self._dir(volume_path))  # noqa: PTH208  # only the names
            except FileNotFoundError:
                return []
        return sorted(name for name in names if name != MOUNT_INFO)

    def volume_paths(self) -> list[str]:
        """Return the paths of all volumes that have a directory, sorted. Other entries are skipped."""
        with as_uncertain(f"read {self.root}"):
            try:
                names = os.listdir(self.root)  # noqa: PTH208  # only the names
            except FileNotFoundError:
                return []
        return sorted(path for path in map(_path_of, names) if path)

    def sweep(self) -> None:
        """Remove what a process left when it was killed amid a change. Call it once, when the agent starts."""
        with as_uncertain(f"clean {self.root}"):
            for left in self.root.glob(f"{_NEW}*"):
                left.unlink()

    def _dir(self, volume_path: str) -> Path:
        return self.root / key_of(volume_path)

    def _read(self, volume_path: str) -> bytes | None:
        try:
            # O_NONBLOCK: opening a FIFO would otherwise wait for a writer for ever.
            with opened(self._dir(volume_path) / MOUNT_INFO, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
                content = os.read(file, LARGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(content) > LARGEST_BYTES:
            raise broken(f"it is larger than {LARGEST_BYTES} bytes")
        return content

    def _write(self, place: Path, content: bytes) -> None:
        _make_dirs(self.root)
        new = self.root / f"{_NEW}{secrets.token_hex(8)}"
        try:
            with opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE) as file:
                os.write(file, content)
            _make_dirs(place)  # last: a volume with a directory counts as told, also if /run is full now
            new.rename(place / MOUNT_INFO)
        finally:
            new.unlink(missing_ok=True)


def _make_dirs(path: Path) -> None:
    if not path.is_dir():
        _make_dirs(path.parent)
        path.mkdir(_DIR_MODE, exist_ok=True)


def _path_of(key: str) -> str:
    try:
        path = os.fsdecode(base64.b64decode(key, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return ""
    return path if path.startswith("/") and key_of(path) == key else ""
