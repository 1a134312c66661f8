"""An atomic file: readers, and the process after a crash, find the old content or the new one, never a part of it."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Ends the name of a file while it is being written. A fixed name: a crash leaves one, which the next write removes.
NEW = ".new"

Stamp = tuple[int, int, int] | None  # a file's inode, modification time and size; None while it is missing

_FULL_BYTES, _FULL_FILES = 1 << 20, 10  # with less, a database cannot be written


def room_of(directory: Path) -> tuple[int, int | None]:
    """The bytes that are free where a directory is, and the number of files; None: they have no limit."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


def why_full(directory: Path, free_bytes: int, free_files: int | None) -> str:
    """A sentence if no process can go on with so much room for its files; else empty."""
    if free_bytes >= _FULL_BYTES and (free_files is None or free_files >= _FULL_FILES):
        return ""
    # No exact numbers: a problem that lasts has one text.
    return f"the disk of {directory} is full: it has less than 1 MiB, or room for fewer than 10 files; make room"


def stamp_of(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def replace_file(
    path: Path,
    content: bytes,
    *,
    durable: bool,
    mode: int | None = None,
    folder: int | None = None,
    reached: Callable[[], None] = lambda: None,
) -> None:
    """Make or replace a file as a whole. OSError: it cannot be written, and the old content stays.

    `durable`: it also survives a power cut (fsync of the file and its directory), which may else empty it. The mode
    counts regardless of the umask. `folder` is a descriptor of the file's directory; of `path` only the name is used
    then. `reached` is called between the write and the rename.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
        new = path.name + NEW
        try:
            _write(folder, new, content, durable=durable, mode=mode)
            reached()
            os.rename(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise
        if durable:
            sync_directory(Path(), folder=folder)


def sync_directory(path: Path, *, folder: int | None = None) -> None:
    """Wait until the disk has a directory's entries; its path may be relative to the descriptor `folder`."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY, folder=folder) as directory:
        os.fsync(directory)


@contextlib.contextmanager
def opened(path: Path | str, flags: int, mode: int = 0o777, *, folder: int | None = None) -> Iterator[int]:
    """Hold a file open by its descriptor; its path may be relative to the descriptor `folder`."""
    file = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def unused(path: Path) -> Path:
    """The path, or one with a number if it is taken."""
    others = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return path if not path.exists() else next(other for other in others if not other.exists())


def _write(folder: int, name: str, content: bytes, *, durable: bool, mode: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666 if mode is None else mode, dir_fd=folder), "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
