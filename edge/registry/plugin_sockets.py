"""The sockets in a kubelet's plugin registry, and their changes.

Rules (kubernetes pkg/kubelet/pluginmanager/pluginwatcher):

* A socket counts anywhere below the directory, unless its name or a directory on the way starts with a dot. No file is
  opened; a file that is no socket does not count.
* The whole directory is read twice a second. That costs less than a file watcher's thread, finds a directory that was
  removed and made again, and needs no inotify watches, of which a machine may have too few.
* A file that cannot be read now still exists. Otherwise a process out of descriptors, or a disk error, would deregister
  every driver of the node. The last known state counts until a reading succeeds, and that is retried soon.
"""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from common.net.sockets import FileId, file_id

log = logging.getLogger("csi_bridge.edge.registrar")

LOOK_S = 0.5  # the kubelet's reconciler looks once a second

# Errors that prove that there is no socket and no directory.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Look:
    """The entries of the directory."""

    # The identity of each socket's file; another file at a path is another socket.
    sockets: dict[Path, FileId] = field(default_factory=dict)
    # Entries that could not be read, in words, by path; `sockets` has the sockets last seen there.
    unread: dict[Path, str] = field(default_factory=dict)

    def keep_earlier(self, before: "Look", place: Path, error: OSError) -> None:
        """Take over an earlier result for a place and everything below it, because it cannot be read now."""
        for path, file in before.sockets.items():
            if path.is_relative_to(place):
                self.sockets.setdefault(path, file)
        why = error.strerror or error
        self.unread[place] = f"cannot be read: {why}; the sockets that were seen there still count"


def look(directory: Path, before: Look) -> Look:
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
                found.keep_earlier(before, here, error)
    return found


def _sort(entry: os.DirEntry[str], found: Look, waiting: list[Path], before: Look) -> None:
    if entry.name.startswith("."):
        return
    path = Path(entry.path)
    if entry.is_dir(follow_symlinks=False):
        waiting.append(path)
        return
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno not in _GONE:
            found.keep_earlier(before, path, error)
        return
    if stat.S_ISSOCK(mode) and (identity := file_id(str(path))) is not None:
        found.sockets[path] = identity


async def looks(directory: Path) -> AsyncGenerator[Look, None]:
    """Yield the directory's entries now and after each change, for ever. Makes the directory when it is missing."""
    trouble = ""
    last = None
    while True:
        try:
            await asyncio.to_thread(directory.mkdir, mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            trouble = ""
        except OSError as error:
            if str(error) != trouble:
                log.warning("%s cannot be made: %s; this is tried again", directory, error)
            trouble = str(error)
        found = await asyncio.to_thread(look, directory, last or Look())
        if found != last:
            yield found
        last = found
        await asyncio.sleep(LOOK_S)
