"""The losses: the parts of its records that the hub has lost, until an operator says that all of it is back.

Rules:

* While a loss stands, "the only node that runs the driver" may be one of several: the hub refuses a call that names no
  node.
* The losses outlive the hub, in a file beside the database: one line each, with time and subject.
* The file always exists, always has the same size, and is overwritten in place. That needs no room, so it works on the
  full disk that made the database's writes fail. Each line that is not blank is a loss, also in a damaged file.
* A later form of the file begins with the line `version N`. The first form has no such line.
"""

import logging
import os
import re
import threading
import time
from pathlib import Path

from common.errors import NewerState, timestamp

log = logging.getLogger("csi_bridge.hub.losses")

_FILE_BYTES = 4_096
"""One block of a disk."""

_LISTED_BYTES = 3_000
"""New losses are listed up to this size. The rest of the file is room for one more line of each kind."""

_AND_MORE = "more was lost than is listed here"

_WHAT_BYTES = 400
"""The length of one loss. The first loss stands in the message of every call that the hub refuses for it."""

_VERSION = 1
_VERSION_LINE = re.compile(r"version (\d{1,9})")


class Losses:
    """The losses of one database. Any thread may use them.

    Attributes:
        recorded: those on the disk, the oldest first.
        doubt: a loss that may have happened, in words; empty: none.
        file_found: whether the file existed: a hub has run here before.
    """

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one.

        Raises:
            OSError: it cannot be read.
            SettingsError: a newer hub wrote it.
        """
        self._path = path
        self._lock = threading.Lock()
        self._at_risk = ""
        self.file_found = path.exists()
        self.doubt = ""
        self.recorded = self._read() if self.file_found else ()

    @property
    def standing(self) -> tuple[str, ...]:
        """Those for which the hub refuses calls."""
        return (*self.recorded, self.doubt) if self.doubt else self.recorded

    def put_in_doubt(self, what: str) -> None:
        """Note a loss that may have happened, until this hub knows; an empty text: it knows."""
        self.doubt = what

    def add(self, what: str) -> bool:
        """Add a loss. Returns False if it is listed already."""
        with self._lock:
            if self._is_listed(what):
                return False
            if sum(len(line.encode()) for line in self.recorded) > _LISTED_BYTES:
                what = _AND_MORE
                if self._is_listed(what):
                    return False
            line = _line(what)
            log.error("%s; calls that name no node are refused from now on", line)
            self.recorded = (*self.recorded, line)
            self._try_to_save()
            return True

    def put_at_risk(self, what: str) -> None:
        """Note a loss that happens if the hub ends now; an empty text: nothing is at risk any more."""
        with self._lock:
            if bool(what) is not bool(self._at_risk):
                self._at_risk = _line(what) if what else ""
                self._try_to_save()

    def clear(self) -> tuple[str, ...]:
        """Remove all losses, because an operator says that nothing is missing. Returns them.

        Raises:
            OSError: the file cannot be written. The losses stand.
        """
        with self._lock:
            cleared = self.standing
            self._save(())
            self.recorded, self.doubt = (), ""
            return cleared

    def create(self) -> None:
        """Write the file, which reserves the room that it will need. Raises OSError if it cannot be written."""
        self._save(self.recorded)

    def _read(self) -> tuple[str, ...]:
        try:
            lines = tuple(filter(None, self._path.read_bytes().decode().split("\n")))
        except UnicodeDecodeError:
            lines = ("\0",)
        if lines and (found := _VERSION_LINE.fullmatch(lines[0])) and int(found[1]) > _VERSION:
            raise NewerState(self._path, "hub", int(found[1]), _VERSION)
        return lines if all(map(str.isprintable, lines)) else (_line(f"{self._path} was damaged"),)

    def _is_listed(self, what: str) -> bool:
        return any(_tells(line, what) for line in self.recorded)

    def _try_to_save(self) -> None:
        try:
            self._save(self.recorded)
        except OSError as error:
            log.error("cannot write %s; a restarted hub will not know of the loss: %s", self._path, error)  # noqa: TRY400  # the sentence says it all

    def _save(self, standing: tuple[str, ...]) -> None:
        lines = filter(None, (*standing, self._at_risk))
        content = "".join(f"{line}\n" for line in lines).encode()[:_FILE_BYTES]
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.pwrite(descriptor, content.ljust(_FILE_BYTES, b"\n"), 0) < _FILE_BYTES:
                raise OSError("no room")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _line(what: str) -> str:
    return f"{timestamp(time.time())} {_short(what)}"


def _tells(line: str, what: str) -> bool:
    """Whether a line tells of this loss, at any time."""
    return line.partition(" ")[2] == _short(what)


def _short(what: str) -> str:
    printable = "".join(char if char.isprintable() else "?" for char in what)
    return printable.encode()[:_WHAT_BYTES].decode(errors="ignore")
