"""A server call: one RPC of a sidecar, and who answers it.

A `Callee` answers a call. One that has the answer soon needs no task: it is the hot path. `in_task` makes a callee of a
coroutine.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from common.relay.errors import PeerGone
from common.relay.pump import Taken
from common.status import Code, Status

if TYPE_CHECKING:
    from common.relay.server_connection import ServerConnection


class CancelReason(StrEnum):
    """The reason why the server cancelled a call."""

    CALLER_CANCELLED = "the caller cancelled the call"
    CALLER_LOST = "the caller's connection ended"
    DEADLINE = "the caller's deadline passed"
    CLOSING = "the server is closing"


class Callee(Protocol):
    """Answers one call: any number of `ServerCall.put`, then one `finish` or `fail`."""

    def cancelled(self) -> None:
        """The call needs no answer any more (`ServerCall.cancelled_by`). Finish it now or soon."""


def _ignored(_taken: bool) -> None:  # noqa: FBT001  # as `Taken`
    """Nobody asks whether an answer was taken."""


class ServerCall:
    """One call: a request message in, any number of messages out, then a status.

    Attributes:
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the whole request message.
        timeout_s: the caller's limit, counted from the arrival of the headers, or None.
        cancelled_by: the reason why the server cancelled the call, or None. After DEADLINE and CLOSING the callee may
            still `finish` with a status of its own.
        finished: whether the call has its status.
        callee: answers the call; None once it is finished, so that no cycle of references keeps its messages.
    """

    __slots__ = (
        "_writer",
        "callee",
        "cancelled_by",
        "finished",
        "headers_sent",
        "method",
        "request",
        "stream_id",
        "timeout_s",
    )

    def __init__(
        self, writer: "ServerConnection", stream_id: int, *, method: str, request: bytes, timeout_s: float | None
    ) -> None:
        self._writer = writer
        self.stream_id = stream_id
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.headers_sent = False
        self.finished = False
        self.cancelled_by: CancelReason | None = None
        self.callee: Callee | None = None

    @property
    def gone(self) -> bool:
        """Whether the caller has cancelled the call or is disconnected."""
        return self.cancelled_by in (CancelReason.CALLER_CANCELLED, CancelReason.CALLER_LOST)

    def put(self, message: bytes, taken: Taken = _ignored) -> None:
        """Send one message of the answer.

        Args:
            message: the message.
            taken: called once, perhaps now: with True when the caller's socket has taken the message, or with False
                when the caller has left first.
        """
        if self.finished or self.gone:
            taken(False)  # noqa: FBT003
        else:
            self._writer.send_message(self, message, taken)

    async def send(self, message: bytes) -> None:
        """Send one message of the answer. Returns when the socket has taken it: a slow caller slows the sender.

        If it is cancelled, the rest of the message still leaves before a status.

        Raises:
            PeerGone: the caller cancelled, or its connection ended.
            RuntimeError: the call is finished (the callee's mistake).
        """
        if self.finished:
            raise RuntimeError(f"{self.method}: a message was sent after the status")
        wait = _Wait()
        self.put(message, wait)
        if not await wait.taken():
            raise PeerGone

    def finish(self, status: Status, taken: Taken = _ignored) -> None:
        """End the call with a status. Only the first end counts.

        Args:
            status: the status.
            taken: called once, perhaps now: with True when the caller's socket has taken every message and the status,
                else with False.
        """
        if self.finished:
            taken(False)  # noqa: FBT003
            return
        self.finished, self.callee = True, None
        self._writer.send_status(self, status, taken)

    def fail(self, error: BaseException | None) -> None:
        """End the call with the server's status for an error; without one, for the reason of its cancellation."""
        if self.gone:  # nobody gets the status, and it is no fault
            self.finish(Status(Code.CANCELLED, str(self.cancelled_by)))
        elif not self.finished:
            self.finish(self._writer.status_for(self, error))


class _Wait:
    """Waits for the end of a message (`pump.Taken`). It has no future if the message leaves at once."""

    __slots__ = ("_taken", "_waiter")

    def __init__(self) -> None:
        self._taken: bool | None = None
        self._waiter: asyncio.Future[bool] | None = None

    def __call__(self, taken: bool) -> None:  # noqa: FBT001
        self._taken = taken
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(taken)

    async def taken(self) -> bool:
        if self._taken is not None:
            return self._taken
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter


class _InTask:
    """A callee that runs a coroutine."""

    __slots__ = ("_call", "_task")

    def __init__(self, call: ServerCall, handler: Callable[[ServerCall], Awaitable[None]]) -> None:
        self._call = call
        self._task = asyncio.get_running_loop().create_task(_run(handler, call), name=call.method)
        self._task.add_done_callback(self._over)

    def cancelled(self) -> None:
        self._task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._call.fail(asyncio.CancelledError() if task.cancelled() else task.exception())


async def _run(handler: Callable[[ServerCall], Awaitable[None]], call: ServerCall) -> None:
    await handler(call)


def in_task(handler: Callable[[ServerCall], Awaitable[None]]) -> Callable[[ServerCall], Callee]:
    """A handler whose calls a task answers each. The task is cancelled with its call."""
    return lambda call: _InTask(call, handler)
