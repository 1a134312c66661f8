"""The sockets in a kubelet's plugin registry, and their changes.

Rules (kubernetes pkg/kubelet/pluginmanager/pluginwatcher):

* A socket counts anywhere below the directory, unless its name or a directory on the way starts with a dot. No file is
  opened; a file that is no socket is reported and left alone.
* Each result comes from reading the whole directory. The kernel tells when to read (inotify(7)). A slow regular reading
  catches changes that it does not tell, and a directory that was removed and made again.
* A file that cannot be read now still exists. Otherwise a process out of descriptors, or a disk error, would deregister
  every driver of the node. The last known state counts until a reading succeeds, and that is retried soon.
"""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import stat
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.sockets import FileId, file_id

log = logging.getLogger("csi_bridge.edge.registrar")

_SETTLE_S = 0.1
"""Changes are collected for this time."""

_LOOK_ANYWAY_S = 30.0
"""The interval of the regular reading."""

_WATCHED = 0x100 | 0x200 | 0x40 | 0x80 | 0x4 | 0x400 | 0x800 | 0x1000000
"""IN_CREATE, IN_DELETE, IN_MOVED_FROM, IN_MOVED_TO, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF, IN_ONLYDIR."""

_EVENTS_BYTES = 65_536

BROKEN_S = 1.0
"""The interval while watching or a reading fails: that of the kubelet's reconciler."""

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors that prove that there is no socket and no directory."""

_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Look:
    """The entries of the directory.

    Attributes:
        sockets: the identity of each socket's file; another file at a path is another socket.
        others: entries that are no sockets, in words, by path.
        unread: entries that could not be read, in words, by path; `sockets` has the sockets last seen there.
    """

    sockets: dict[Path, FileId] = field(default_factory=dict)
    others: dict[Path, str] = field(default_factory=dict)
    unread: dict[Path, str] = field(default_factory=dict)

    def keep(self, before: "Look", place: Path, error: OSError) -> None:
        """Take over an earlier result for a place and everything below it, because it cannot be read now."""
        for path, file in before.sockets.items():
            if path.is_relative_to(place):
                self.sockets.setdefault(path, file)
        why = error.strerror or error
        self.unread[place] = f"cannot be read: {why}; the sockets that were seen there still count"


_NOTHING_SEEN = Look()


def look(directory: Path, before: Look = _NOTHING_SEEN, watch: Callable[[Path], None] = lambda _: None) -> Look:
    # `watch` is called with each directory before it is read.
    found = Look()
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        try:
            watch(here)
            with os.scandir(here) as entries:
                for entry in entries:
                    _sort(entry, found, waiting, before)
        except OSError as error:
            if error.errno not in _GONE:
                found.keep(before, here, error)
    return found


def _sort(entry: os.DirEntry[str], found: Look, waiting: list[Path], before: Look) -> None:
    if entry.name.startswith("."):
        return
    path = Path(entry.path)
    if entry.is_dir(follow_symlinks=False):
        waiting.append(path)
        if path.suffix == ".sock":
            found.others[path] = "is a directory; it is looked through for sockets"
        return
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno not in _GONE:
            found.keep(before, path, error)
        elif entry.is_symlink():  # else it was just removed
            found.others[path] = f"is a symbolic link to nothing usable: {error.strerror or error}"
        return
    if not stat.S_ISSOCK(mode):
        found.others[path] = f"is {_KINDS.get(stat.S_IFMT(mode), 'no socket')}, not a socket"
    elif (identity := file_id(str(path))) is not None:
        found.sockets[path] = identity


_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a link to a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


async def looks(directory: Path) -> AsyncGenerator[Look, None]:
    """Yield the directory's entries now and after each change, for ever. Makes the directory when it is missing."""
    trouble, found = "", Look()
    while True:
        try:
            await asyncio.to_thread(directory.mkdir, mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            async with contextlib.aclosing(_watched(directory, found)) as watched:
                async for found in watched:
                    trouble = ""
                    yield found
        except (OSError, _NoWatch) as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("%s cannot be watched: %s; it is looked at each second instead", directory, trouble)
            found = await asyncio.to_thread(look, directory, found)
            yield found
            await asyncio.sleep(BROKEN_S)


async def _watched(directory: Path, found: Look) -> AsyncGenerator[Look, None]:
    """Yield results after the last one, until another directory has taken the watched one's path."""
    news = asyncio.Event()
    with _held(directory) as held, _told(news) as watch:
        while _is_still(directory, held):
            news.clear()  # before the directory is read, so that no change is missed
            found = await asyncio.to_thread(look, directory, found, watch)
            yield found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BROKEN_S if found.unread else _LOOK_ANYWAY_S):
                    await news.wait()
                    await asyncio.sleep(_SETTLE_S)


class _NoWatch(Exception):
    """The kernel does not watch a directory."""


@contextlib.contextmanager
def _told(news: asyncio.Event) -> Iterator[Callable[[Path], None]]:
    """Set `news` at each change in a watched directory. Yields the function that watches one; it may raise OSError."""
    libc, loop = ctypes.CDLL(None, use_errno=True), asyncio.get_running_loop()
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise _NoWatch(f"{os.strerror(ctypes.get_errno())} (the limit is fs.inotify.max_user_instances)")

    def watch(directory: Path) -> None:
        if libc.inotify_add_watch(descriptor, os.fsencode(directory), _WATCHED) < 0:
            number = ctypes.get_errno()
            if number in _GONE | {errno.EACCES}:
                raise OSError(number, os.strerror(number), str(directory))
            limit = " (the limit is fs.inotify.max_user_watches)" if number == errno.ENOSPC else ""
            raise _NoWatch(f"{os.strerror(number)}{limit}")

    def on_events() -> None:
        os.read(descriptor, _EVENTS_BYTES)
        news.set()

    loop.add_reader(descriptor, on_events)
    try:
        yield watch
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[int]:
    # While it is open, no other directory gets its inode number.
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield held
    finally:
        os.close(held)


def _is_still(directory: Path, held: int) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(held))
