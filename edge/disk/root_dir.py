"""Makes and removes entries below a root directory, and follows no symbolic link on the way.

Rules:

* Only the root's own path may contain symbolic links. A link below it is refused, because it may lead anywhere.
* A path is opened directory by directory, and the open directory is used. So a directory that another program replaces
  meanwhile leads nowhere else.
* A removal takes one empty directory or one file, never a tree.
* The last component of a path is neither opened nor stat'ed, except by `read_file` and `held`: a dead mount there
  would hang. So the caller first checks the mount table for a mount at the path. Only a device that was bound there may
  be held (`BlockDevices.map`).
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.store.files import NEW, opened, replace_file

# The kubelet's modes (its umask is 022). They are set explicitly, so the agent's umask has no effect.
DIR_MODE = 0o750
FILE_MODE = 0o644

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Kind = Literal["dir", "file", "link", "other"]

# Texts for errors with a special meaning here. O_NOFOLLOW with O_DIRECTORY turns a link into ENOTDIR (open(2)).
_WORDS = {
    errno.ENOTDIR: "something there, or on the way, is not a directory (a symbolic link is not followed)",
    errno.ELOOP: "it is a symbolic link, which is not followed",
    errno.EBUSY: "something is mounted there",
    errno.ENOTEMPTY: "it is not empty",
}


class RootDirError(OSError):
    """The file system refused. `str()` tells the action, the path and the reason."""

    def __init__(self, error: OSError, what: str, path: Path) -> None:
        why = _WORDS.get(error.errno or 0) or error.strerror or str(error)
        super().__init__(error.errno, f"cannot {what} {path}: {why}")

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, slots=True)
class RootDir:
    """Makes, reads and removes entries below one directory. Its methods raise RootDirError."""

    path: Path
    durable: bool = False  # a written file survives a power cut (`--durability=full`)

    def make_dir(self, path: Path) -> None:
        with _named_errors("make the directory", path):
            self.path.mkdir(DIR_MODE, parents=True, exist_ok=True)
            folder = self._open(self.path)
            try:
                *parents, last = self._parts(path)
                for name in parents:
                    _make(folder, name)
                    folder = _step(folder, name)
                _make(folder, last)
                # A link of this name would have let `_make` pass as an existing directory does.
                if self._names(folder).get(last) == "link":
                    raise OSError(errno.ELOOP, "it is a link")
            finally:
                os.close(folder)

    def names(self, path: Path) -> dict[str, Kind]:
        with _named_errors("read", path):
            try:
                with self._folder(path) as folder:
                    return self._names(folder)
            except (FileNotFoundError, NotADirectoryError):
                return {}

    def has(self, path: Path) -> bool:
        """Whether there is such an entry, from its parent's list: the entry itself is not opened."""
        return path.name in self.names(path.parent)

    def read_file(self, path: Path, limit: int) -> bytes:
        """Return an ordinary file of at most `limit` bytes. Raises FileNotFoundError or RootDirError."""
        with _named_errors("read", path), self.parent(path) as folder:
            # O_NONBLOCK: opening a FIFO would otherwise wait for a writer for ever.
            with opened(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, folder=folder) as file:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise OSError(errno.EINVAL, "it is not an ordinary file")
                content = os.read(file, limit + 1)
            if len(content) > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit} bytes")
            return content

    def write_file(self, path: Path, content: bytes, *, reached: Callable[[], None] = lambda: None) -> None:
        """Make or replace a file atomically. `reached` is called after the content is written and before the rename."""
        with _named_errors("write", path), self.parent(path) as folder:
            replace_file(path, content, durable=self.durable, mode=FILE_MODE, folder=folder, reached=reached)

    def touch(self, path: Path, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with (
            _named_errors("make", path),
            self.parent(path) as folder,
            suppress(FileExistsError),
            opened(path.name, flags, mode, folder=folder) as file,
        ):
            os.fchmod(file, mode)

    def link(self, path: Path, target: str) -> None:
        """Make a symbolic link; it replaces a file or link of that name."""
        with _named_errors("make the link", path), self.parent(path) as folder:
            if _read_link(folder, path.name) == target:
                return
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            os.symlink(target, path.name, dir_fd=folder)

    def drop_link(self, path: Path) -> bool:
        """Remove a symbolic link; any other entry stays. Returns whether there was one."""
        if self._kind(path) != "link":
            return False
        self.remove_file(path)
        return True

    def remove_file(self, path: Path) -> None:
        """Remove a file or a link, if it exists, and the temporary file of an interrupted write."""
        with _named_errors("remove the file", path), suppress(FileNotFoundError), self.parent(path) as folder:
            for name in (path.name + NEW, path.name):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    def remove_dir(self, path: Path) -> None:
        with _named_errors("remove the directory", path), suppress(FileNotFoundError), self.parent(path) as folder:
            os.rmdir(path.name, dir_fd=folder)

    def remove(self, path: Path) -> None:
        try:
            self.remove_dir(path)
        except RootDirError as error:
            if error.errno != errno.ENOTDIR:
                raise
            self.remove_file(path)

    def parent(self, path: Path) -> AbstractContextManager[int]:
        """Hold the directory of a path open, for use as `dir_fd` or below /proc/self/fd. No link can lead it away."""
        return self._folder(path.parent)

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        folder = self._open(path)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def held(self, path: Path) -> Iterator[Path]:
        """Hold a file open, and yield a path that leads to it even if another one takes its place."""
        with _named_errors("open", path), self.parent(path) as folder:
            file = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            with _named_errors("open", path):
                if stat.S_ISLNK(os.fstat(file).st_mode):
                    raise OSError(errno.ELOOP, "it is a link")
            yield Path(f"/proc/self/fd/{file}")
        finally:
            os.close(file)

    def _kind(self, path: Path) -> Kind | None:
        with _named_errors("look for", path), suppress(FileNotFoundError), self.parent(path) as folder:
            return self._names(folder).get(path.name)
        return None

    def _parts(self, path: Path) -> tuple[str, ...]:
        parts = path.relative_to(self.path).parts
        if not parts or ".." in parts:
            raise OSError(errno.EINVAL, f"it does not lie below {self.path}")
        return parts

    def _open(self, path: Path) -> int:
        folder = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in self._parts(path) if path != self.path else ():
                folder = _step(folder, name)
        except BaseException:
            os.close(folder)
            raise
        return folder

    @staticmethod
    def _names(folder: int) -> dict[str, Kind]:
        with opened(".", os.O_RDONLY | os.O_DIRECTORY, folder=folder) as readable, os.scandir(readable) as entries:
            return {entry.name: _kind(entry) for entry in entries}


@contextmanager
def _named_errors(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, RootDirError):
        raise
    except (OSError, ValueError) as error:
        raise RootDirError(error if isinstance(error, OSError) else OSError(str(error)), what, path) from error


def _step(folder: int, name: str) -> int:
    # `folder` is closed on success.
    below = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return below


def _make(folder: int, name: str) -> None:
    try:
        os.mkdir(name, DIR_MODE, dir_fd=folder)
    except FileExistsError:
        return
    os.chmod(name, DIR_MODE, dir_fd=folder)


def _read_link(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT}:
            return None
        raise


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "dir"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
