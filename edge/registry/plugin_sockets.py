"""The sockets in a kubelet's plugin registry, and their changes.

Rules (kubernetes pkg/kubelet/pluginmanager/pluginwatcher):

* A socket counts anywhere below the directory, unless its name or a directory on the way starts with a dot. No file is
  opened; a file that is no socket is reported and left alone.
* Each result comes from reading the whole directory. A file watcher tells when to read. A slow regular reading catches
  changes that a watcher misses, and a directory that was removed and made again.
* A file that cannot be read now still exists. Otherwise a process out of descriptors, or a disk error, would deregister
  every driver of the node. The last known state counts until a reading succeeds, and that is retried soon.
"""

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from watchfiles import Change, awatch

from common.sockets import FileId, file_id

log = logging.getLogger("csi_bridge.edge.registrar")

_SETTLE_MS = 100
"""Changes are collected for this time. The watcher's thread wakes as often; at 100 ms it uses 0.1 % of a core."""

_LOOK_ANYWAY_MS = 30_000
"""The interval of the regular reading."""

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


def look(directory: Path, before: Look = _NOTHING_SEEN) -> Look:
    found = Look()
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        try:
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
        except (OSError, RuntimeError) as error:  # watchfiles raises RuntimeError for errors such as too many watches
            if str(error) != trouble:
                trouble = str(error)
                log.warning("%s cannot be watched: %s; it is looked at each second instead", directory, trouble)
            found = await asyncio.to_thread(look, directory, found)
            yield found
            await asyncio.sleep(BROKEN_S)


async def _watched(directory: Path, found: Look) -> AsyncGenerator[Look, None]:
    """Yield results after the last one, until another directory has taken the watched one's path."""
    with _held(directory) as held:
        changes = awatch(
            directory,
            watch_filter=_matters,
            debounce=_SETTLE_MS,
            step=_SETTLE_MS,
            rust_timeout=_LOOK_ANYWAY_MS,
            yield_on_timeout=True,
        )
        news: asyncio.Future[set[tuple[Change, str]]] | None = None
        try:
            while True:
                if news is None or news.done():
                    news = asyncio.ensure_future(anext(changes))
                    await asyncio.sleep(0)  # runs it to its first wait: the watch is set now, so no change is missed
                if not _is_still(directory, held):
                    return
                found = await asyncio.to_thread(look, directory, found)
                yield found
                await asyncio.wait([news], timeout=BROKEN_S if found.unread else None)
                if news.done():
                    news.result()
        finally:
            if news is not None:
                news.cancel()
                await asyncio.gather(news, return_exceptions=True)
            await changes.aclose()


def _matters(_change: Change, _path: str) -> bool:
    # watchfiles' default filter skips names such as `__pycache__`.
    return True


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
