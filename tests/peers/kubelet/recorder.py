"""A recorder: stands before a driver's socket, forwards every call as bytes, and notes it with the tree round it.

It is made of the bridge's own two gRPC ends, so a status is the driver's own. It runs in a thread of its own: a script
in another thread waits for calls, marks moments, and may hold a method's calls back.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from common.csi.methods import METHODS
from common.net.sockets import listen_unix
from common.relay.client import Channel
from common.relay.errors import VendorConnectionError
from common.relay.server import Server, ServerCall, ServerSettings, in_task
from common.status import Code, Origin, Status, code_name
from tests.kit.waiting import wait_for
from tests.peers.kubelet.tree import Tree

_MAX_MESSAGE_BYTES = 4 << 20
_PATIENCE_S = 30.0
_ACTS = frozenset(
    {"NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeExpandVolume"}
)
"""Methods that change something: the tree is looked at before and after each."""


@dataclass
class Call:
    """One call."""

    method: str  # e.g. `NodeStageVolume`.
    request: Message  # as it came
    timeout_s: float | None  # what the caller gave it
    before: Tree | None  # the tree when it came; None for a method that changes nothing
    began: float  # seconds since the epoch
    ended: float | None = None  # the same; None while it runs
    status: str = ""  # the code's name, or `GIVEN UP` if the caller did not wait for the answer
    message: str = ""  # the driver's words
    after: Tree | None = None  # the tree at the answer


@dataclass
class Mark:
    """A moment of the script: what it did or saw, and the tree then, if it wants that in the record."""

    text: str
    at: float
    tree: Tree | None = None


@dataclass
class Recording:
    events: list[Call | Mark] = field(default_factory=list)

    def calls(self, method: str, status: str | None = None) -> list[Call]:
        """The ended calls of a method, those with a status if one is given."""
        return [
            event
            for event in list(self.events)
            if isinstance(event, Call) and event.method == method and event.status and status in {None, event.status}
        ]

    def begun(self, method: str) -> list[Call]:
        return [event for event in list(self.events) if isinstance(event, Call) and event.method == method]

    def under_way(self) -> list[Call]:
        return [event for event in list(self.events) if isinstance(event, Call) and not event.status]


_HANGING_S = 5.0  # a call that has not ended by then is one that hangs on purpose


def _failed(error: object) -> Status:
    return Status(Code.UNAVAILABLE, f"the recorder failed: {error!r}", Origin.PROXY)


class Recorder:
    """The proxy of one driver.

    Args:
        vendor: the driver's socket.
        look: takes the tree.
    """

    def __init__(self, vendor: Path, *, look: Callable[[], Tree]) -> None:
        self.recording = Recording()  # what was seen so far
        self._vendor = vendor
        self._look = look
        self._held: set[str] = set()
        self._held_answers: set[str] = set()
        self._waiting: set[str] = set()
        self._paused = False
        self._pause_after: tuple[str, str, int] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorder", daemon=True)
        self._thread.start()
        self._channel = Channel(vendor, max_message_bytes=_MAX_MESSAGE_BYTES)
        self._servers: list[Server] = []

    def listen(self, socket: Path) -> None:
        self.serve(socket, self._handle)

    def serve(self, socket: Path, handler: Callable[[ServerCall], Coroutine[Any, Any, None]]) -> Server:
        """Serve anything on a socket in the recorder's thread, until it is closed."""

        async def start() -> Server:
            server = Server(in_task(handler), ServerSettings(_MAX_MESSAGE_BYTES, _failed))
            await server.listen(listen_unix(socket, mode=0o600))
            return server

        server: Server = self.run(start())
        self._servers.append(server)
        return server

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the recorder's thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def close(self) -> None:
        """Stop serving; calls under way are cut."""
        self.let_go()
        for server in self._servers:
            self.run(server.close())
        self.run(self._channel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def mark(self, text: str, *, with_tree: bool = False) -> None:
        self.recording.events.append(Mark(text, time.time(), self._look() if with_tree else None))

    def hold(self, method: str, *, answers: bool = False) -> None:
        """Keep calls of a method from the driver, or its answers from the node, until `let_go`."""
        (self._held_answers if answers else self._held).add(method)

    def let_go(self) -> None:
        """Forward what is held, and let calls begin."""
        self._paused = False
        self._held.clear()
        self._held_answers.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A moment in which no call begins, and those under way have ended; but for those that never end."""
        self.run(self._pause())
        give_up = time.monotonic() + _HANGING_S
        try:
            while self.recording.under_way() and time.monotonic() < give_up:
                time.sleep(0.01)
            yield
        finally:
            self._paused = False

    def pause_after(self, method: str, *, status: str, times: int) -> None:
        """Let no call begin when so many calls of a method have ended, until a `paused` moment is over."""
        self._pause_after = method, status, times

    def wait_held(self, method: str) -> None:
        wait_for(lambda: method in self._waiting, what=f"{method} to hold back", timeout_s=60.0, instead=self.told)

    def wait_for(self, method: str, *, status: str | None = None, times: int = 1, timeout_s: float = 60.0) -> Call:
        """Wait until so many calls of a method have ended, counted from the start; the last of them."""
        found = wait_for(
            lambda: self.recording.calls(method, status)[times - 1 : times],
            what=f"{method} number {times} with {status or 'any status'}",
            timeout_s=timeout_s,
            instead=self.told,
        )
        return found[0]

    def wait_begun(self, method: str, *, times: int = 1, timeout_s: float = 60.0) -> None:
        wait_for(
            lambda: len(self.recording.begun(method)) >= times,
            what=f"{method} number {times}",
            timeout_s=timeout_s,
            instead=self.told,
        )

    def wait_idle(self) -> None:
        wait_for(lambda: not self.recording.under_way(), what="end of the calls under way", instead=self.told)

    def told(self) -> str:
        """The recording in a few lines, for a failure's reader."""
        return "\n".join(
            event.text if isinstance(event, Mark) else f"    {event.method}: {event.status} {event.message}"
            for event in list(self.recording.events)
        )

    async def _pause(self) -> None:
        """In the recorder's own thread: no call is just about to begin."""
        self._paused = True

    async def _handle(self, incoming: ServerCall) -> None:
        method = incoming.method.rpartition("/")[2]
        known = METHODS.get(incoming.method)
        if known is None:
            incoming.finish(Status(Code.UNIMPLEMENTED, f"{method} is no CSI method", Origin.PROXY))
            return
        while self._paused:  # noqa: ASYNC110  # it is the test's thread that ends it
            await asyncio.sleep(0.01)
        acts = method in _ACTS
        call = Call(
            method=method,
            request=known.request.FromString(incoming.request),
            timeout_s=incoming.timeout_s,
            before=self._look() if acts else None,
            began=time.time(),
        )
        self.recording.events.append(call)
        try:
            status, answer = await self._forward(method, incoming)
            await self._pass(method, self._held_answers)
            call.message = status.message
            call.after = self._look() if acts else None
            call.ended, call.status = time.time(), code_name(status.code)
            if self._pause_after == (method, call.status, len(self.recording.calls(method, call.status))):
                await self._pause()
        finally:
            if not call.status:
                # At a deadline either end's timer may be the first.
                call.ended, call.status = time.time(), "GIVEN UP"
        if answer is not None:
            await incoming.send(answer)
        incoming.finish(status)

    async def _pass(self, method: str, held: set[str]) -> None:
        """Return when calls of the method are not held back."""
        try:
            while method in held:
                self._waiting.add(method)
                await asyncio.sleep(0.01)
        finally:
            self._waiting.discard(method)

    async def _forward(self, method: str, incoming: ServerCall) -> tuple[Status, bytes | None]:
        await self._pass(method, self._held)
        outgoing = self._channel.call(incoming.method, incoming.request, timeout_s=incoming.timeout_s)
        try:
            return await outgoing.unary()
        except VendorConnectionError as error:
            return Status(Code.UNAVAILABLE, str(error), Origin.PROXY), None
        finally:
            outgoing.cancel()
