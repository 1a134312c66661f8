"""The sockets of drivers: one `Driver` object for each socket in use, under whichever path it was found."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.net.sockets import UNSERVED, FileId, file_id, knock
from common.observe.tasks import Tasks
from common.parsers import LONGEST_SOCKET_PATH_BYTES
from edge.calls.drivers import Driver
from edge.settings import AgentSettings


@dataclass(eq=False)
class SharedSocket:
    """One driver socket and its users. Without users it is given up."""

    driver: Driver
    names: set[str] = field(default_factory=set)  # the names of the drivers that are known to be there
    # For each registration socket or path that led an observer here, the time at which it was lost, or None.
    finders: dict[str, float | None] = field(default_factory=dict)
    asking: int = 0  # the number of registrations that are calling the driver now
    _watching: asyncio.Task[object] | None = None
    _deserted: frozenset[FileId] = frozenset()

    @property
    def wanted(self) -> bool:
        return self.driver.named or bool(self.names) or bool(self.finders)

    @property
    def was_only_found(self) -> bool:
        return bool(self.finders) and not self.driver.named and not self.names

    @property
    def is_deserted(self) -> bool:
        """Whether the driver has moved to another socket and left this file. A new file here is a driver again."""
        return bool(self._deserted) and file_id(str(self.driver.socket)) in self._deserted

    def mark_if_deserted(self) -> None:
        """Stop calling this socket if nothing listens on it: the driver now serves the same services on another one."""
        file = file_id(str(self.driver.socket))
        if knock(self.driver.socket) in UNSERVED:
            # Also without a file it stays deserted: the killed driver's may be removed later.
            self._deserted = frozenset({file, None})

    def watch(self, tasks: Tasks) -> None:
        if self._watching is None:
            self._watching = tasks.start(self.driver.watch(), name=f"driver at {self.driver.socket}")

    def leave(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


class DriverSockets:
    """All driver sockets of this node."""

    def __init__(self, settings: AgentSettings, heard: Callable[[SharedSocket], None]) -> None:
        self._settings = settings
        self._heard = heard
        self._shared: dict[str, SharedSocket] = {}
        self._left: list[Driver] = []

    def __iter__(self) -> Iterator[SharedSocket]:
        return iter(list(self._shared.values()))

    @property
    def drivers(self) -> list[Driver]:
        return [shared.driver for shared in self if shared.wanted and not shared.is_deserted]

    def shared(self, socket: Path) -> SharedSocket:
        identity = _identity(socket)
        if identity not in self._shared:
            limit = self._settings.max_message_bytes
            changed = functools.partial(self._changed, identity)
            driver = Driver(socket, self._settings.node, max_message_bytes=limit, changed=changed)
            self._shared[identity] = SharedSocket(driver)
        return self._shared[identity]

    def find(self, socket: Path) -> SharedSocket | None:
        return self._shared.get(_identity(socket))

    @contextlib.contextmanager
    def asking(self, socket: Path) -> Iterator[SharedSocket]:
        """Yield a socket, which stays while a registration calls its driver."""
        shared = self.shared(socket)
        shared.asking += 1
        try:
            yield shared
        finally:
            shared.asking -= 1
            self.tidy()

    def tidy(self) -> None:
        for identity, shared in list(self._shared.items()):
            if not shared.wanted and not shared.asking:
                del self._shared[identity]
                shared.leave()
                self._left.append(shared.driver)

    def watch(self, tasks: Tasks) -> None:
        for shared in self:
            if shared.wanted:
                shared.watch(tasks)

    async def close_left(self) -> None:
        while self._left:
            await self._left.pop().close()

    async def close(self) -> None:
        self._left += [shared.driver for shared in self]
        await self.close_left()

    # ---- seen without registering ------------------------------------------------------------------------------------

    def found(self, finder: str, socket: Path) -> bool:
        """Note that a finder leads to a socket. Returns whether that is news: it did not, or had lost it."""
        shared = self.shared(socket)
        # None: this finder leads here now. It is a time if the finder was lost, or never led here.
        if shared.finders.get(finder, 0.0) is None:
            return False
        shared.finders[finder] = None
        return True

    def lost(self, finder: str, now: float) -> bool:
        """Note when a finder lost its sockets. Returns whether it had any."""
        # None: found, and not lost. A finder that a socket does not have counts as lost.
        seen = [shared for shared in self if shared.finders.get(finder, 0.0) is None]
        for shared in seen:
            shared.finders[finder] = now
        return bool(seen)

    def forget(self, before: float) -> bool:
        over = [(shared, finder) for shared, finder, since in self._lost() if since <= before]
        for shared, finder in over:
            del shared.finders[finder]
        return bool(over)

    def lost_at(self) -> Iterator[float]:
        return (since for _, _, since in self._lost())

    def _lost(self) -> Iterator[tuple[SharedSocket, str, float]]:
        for shared in self:
            yield from ((shared, finder, since) for finder, since in shared.finders.items() if since is not None)

    def _changed(self, identity: str) -> None:
        if (shared := self._shared.get(identity)) is not None:
            self._heard(shared)


def _identity(socket: Path) -> str:
    # One identity for all paths of a socket: a kubelet's directory often has two names.
    return os.path.realpath(socket)


def fits(socket: str) -> bool:
    return socket.startswith("/") and "\0" not in socket and len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH_BYTES
