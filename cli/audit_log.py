"""The command `audit-log`: prints the lines of the audit log of a hub on this host.

It reads the hub's files, so that it also works while the hub is down. A line is printed as it is: it holds no control
character, and `jq` reads it.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from cli.hub_state import ask
from cli.operator_options import OperatorSettings
from cli.table import say
from cloud.trust.audit_file import NAME, paths
from common.errors import BridgeError
from common.pages.hub import HubStatus

_LOOK_S = 0.25


def run(settings: OperatorSettings, *, state_dir: Path | None, since: float | None, follow: bool) -> int:
    """Print the lines. Returns the exit code: 0, or 1 with the reason on stderr if there is no log."""
    try:
        lines = Lines(state_dir or _state_dir(settings))
        lines.read(_printer(since))
        while follow:
            time.sleep(_LOOK_S)
            lines.read(_printer(since))
    except KeyboardInterrupt:
        return 0
    except (BridgeError, OSError) as error:
        say(f"csi-bridge: {error}", err=True)
        return 1
    return 0


class Lines:
    """The lines of an audit log, each once, also while the hub writes and rotates it."""

    def __init__(self, state_dir: Path) -> None:
        """Of a hub's state directory.

        Raises:
            BridgeError: it has no audit log.
        """
        self._state_dir = state_dir
        self._file = 0
        """The inode of the file that was read last."""
        self._offset = 0
        """The end of its last whole line."""
        if not any(path.exists() for path in paths(state_dir)):
            raise BridgeError(
                f"there is no {NAME} in {state_dir} that this user can see; name the hub's --state-dir, and run this "
                f"as root or as the hub's user"
            )

    def read(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with each line that is new since the last reading, in order.

        Raises:
            OSError: a file cannot be read.
        """
        with ExitStack() as opened:
            files: dict[int, BinaryIO] = {}
            # The newest one first: a file that the hub renames meanwhile is found twice, and never missed.
            for path in paths(self._state_dir):
                try:
                    file: BinaryIO = opened.enter_context(path.open("rb"))
                except FileNotFoundError:
                    continue
                inode = os.fstat(file.fileno()).st_ino
                files.setdefault(inode, file)
                if inode == self._file:
                    break
            for inode, file in reversed(files.items()):
                self._read(inode, file, take)

    def _read(self, inode: int, file: BinaryIO, take: Callable[[bytes], None]) -> None:
        if inode != self._file:
            self._file, self._offset = inode, 0
        file.seek(self._offset)
        for line in file:
            if not line.endswith(b"\n"):  # the hub is writing it
                break
            self._offset += len(line)
            take(line)


def _printer(since: float | None) -> Callable[[bytes], None]:
    first = datetime.fromtimestamp(since, UTC).isoformat(timespec="milliseconds") if since is not None else ""

    def take(line: bytes) -> None:
        try:
            at = str(json.loads(line)["ts"])
        except (ValueError, KeyError, TypeError):  # the hub was killed while it wrote
            return
        if at >= first:
            say(line.decode().rstrip("\n"))

    return take


def _state_dir(settings: OperatorSettings) -> Path:
    """The state directory of the hub that runs here.

    Raises:
        BridgeError: no hub says it.
    """
    try:
        status = ask(settings.hub, "/status", HubStatus, timeout_s=settings.timeout_s)
        return Path(status.settings["state_dir"][0])
    except (BridgeError, LookupError) as error:
        raise BridgeError(f"{error}; for a hub that is down, name its state directory by --state-dir") from error
