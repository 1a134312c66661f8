"""A server call: one RPC of a sidecar, and who answers it.

A `Callee` answers a call. One that has the answer soon needs no task: it is the hot path. `in_task` makes a callee of a
coroutine.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from common.relay.connection import Stream, Taken
from common.relay.errors import PeerGone
from common.relay.frames import DATA, END_HEADERS, END_STREAM, HEADERS, pack_head
from common.relay.framing import PREFIX_BYTES, pack_prefix
from common.relay.hpack import Header
from common.relay.metadata import OK_BLOCK, RESPONSE_BLOCK, trailer_block
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
    """Answers one call: with `ServerCall.answer`, or with any number of `put`, then one `finish` or `fail`."""

    def cancelled(self) -> None:
        """The call needs no answer any more (`ServerCall.cancelled_by`). Finish it now or soon."""


def _ignored(_taken: bool) -> None:  # noqa: FBT001  # as `Taken`
    """Nobody asks whether an answer was taken."""


class ServerCall(Stream):
    """One call: a request message in, any number of messages out, then a status.

    Attributes:
        connection: the caller's connection.
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the whole request message.
        timeout_s: the caller's limit, counted from the arrival of the headers, or None.
        deadline: when it ends, in the loop's clock, or None.
        is_whole: whether a request message that came in pieces is whole.
        headers_sent: whether the answer has begun.
        cancelled_by: the reason why the server cancelled the call, or None. After DEADLINE and CLOSING the callee may
            still `finish` with a status of its own.
        gone: whether the caller has cancelled the call or is disconnected.
        finished: whether the call has its status.
        callee: answers the call; None once it is finished, so that no cycle of references keeps its messages.
    """

    __slots__ = ("callee", "cancelled_by", "connection", "deadline", "finished", "gone", "headers_sent", "is_whole",
                 "method", "request", "timeout_s")  # fmt: skip

    def __init__(self, connection: "ServerConnection", stream_id: int) -> None:
        """A call of which no field of its headers has been read."""
        self.connection = connection
        self.stream_id = stream_id
        self.send_window = connection.peer_window
        self.held = 0
        self.remote_ended = False
        self.deframer = None
        self.method = ""
        self.request = b""
        self.timeout_s: float | None = None
        self.deadline: float | None = None
        self.is_whole = False
        self.headers_sent = False
        self.cancelled_by: CancelReason | None = None
        self.gone = False
        self.finished = False
        self.callee: Callee | None = None

    # The callee's side.

    def answer(self, status: Status, message: bytes | None, taken: Taken = _ignored) -> None:
        """End the call with its one message, if there is one, and the status: the hot path.

        Args:
            status: the status.
            message: the message; None without success.
            taken: as for `finish`.
        """
        connection = self.connection
        size = 0 if message is None else len(message) + PREFIX_BYTES
        if (message is None or status.code or status.message or self.finished or self.headers_sent
                or self.cancelled_by is not None or not connection.can_send(self, size)):  # fmt: skip
            if message is not None:
                self.put(message)
            self.finish(status, taken)
            return
        self.finished, self.callee = True, None
        self.send_window -= size
        connection.send_window -= size
        connection.out += (
            pack_head(len(RESPONSE_BLOCK) << 8 | HEADERS, END_HEADERS, self.stream_id), RESPONSE_BLOCK,
            pack_head(size << 8 | DATA, 0, self.stream_id), pack_prefix(0, len(message)), message,
            pack_head(len(OK_BLOCK) << 8 | HEADERS, END_HEADERS | END_STREAM, self.stream_id), OK_BLOCK,
        )  # fmt: skip
        connection.flush()
        connection.over(self)
        taken(True)  # noqa: FBT003

    def put(self, message: bytes, taken: Taken = _ignored) -> None:
        """Send one message of the answer, at the end of the loop's turn. The first one is sent after the headers.

        Args:
            message: the message.
            taken: called once, perhaps now: with True when the caller's socket has taken the message, or with False
                when the caller has left first.
        """
        if self.finished or self.gone:
            taken(False)  # noqa: FBT003
            return
        if not self.headers_sent:
            self.headers_sent = True
            self.connection.send_headers(self.stream_id, RESPONSE_BLOCK, end=False)
        self.connection.send_message(self, message, taken=taken)
        self.connection.flush_soon()

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
        connection = self.connection
        outgoing = connection.outgoing.get(self.stream_id)
        if self.gone or not connection.open or (outgoing is not None and self.cancelled_by is CancelReason.DEADLINE):
            if outgoing is not None:
                connection.cut(self)
            connection.over(self)
            taken(False)  # noqa: FBT003
            return
        block = trailer_block(status, connection.message_limit_bytes)
        if outgoing is not None:

            def left(whole: bool) -> None:  # noqa: FBT001  # as `Taken`
                connection.over(self)
                taken(whole)

            outgoing.trailers = block, left
            return
        connection.send_headers(self.stream_id, block if self.headers_sent else RESPONSE_BLOCK + block, end=True)
        connection.flush()
        connection.over(self)
        taken(True)  # noqa: FBT003

    def fail(self, error: BaseException | None) -> None:
        """End the call with the server's status for an error; without one, for the reason of its cancellation."""
        if self.gone:  # nobody gets the status, and it is no fault
            self.finish(Status(Code.CANCELLED, str(self.cancelled_by)))
        elif not self.finished:
            self.finish(self.connection.status_for(self, error))

    def cancel(self, reason: CancelReason) -> None:
        """Let the callee end the call, unless it is over or the caller is gone already."""
        if self.gone:
            return
        self.cancelled_by = reason
        self.gone = reason in (CancelReason.CALLER_CANCELLED, CancelReason.CALLER_LOST)
        if not self.finished and self.callee is not None:
            self.callee.cancelled()
        elif reason is CancelReason.DEADLINE and self.stream_id in self.connection.outgoing:
            self.connection.cut(self)

    # The connection's side.

    def headers_received(self, _fields: list[Header]) -> None:
        """A request's trailers have no meaning, but the end that they may bring."""
        if self.remote_ended:
            self.connection.request_ended(self)

    def data_received(self, data: bytes, start: int, stop: int) -> None:
        """Take the request message: the usual one comes whole in one frame, with the end of the stream."""
        size = stop - start - PREFIX_BYTES
        if (self.remote_ended and self.deframer is None and size >= 0 and not data[start]
                and int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big") == size
                and size <= self.connection.settings.max_message_bytes):  # fmt: skip
            self.request = data[start + PREFIX_BYTES : stop]
            self.connection.dispatch(self)
        else:
            self.connection.join_request(self, data[start:stop])

    def was_reset(self, _code: int) -> None:
        """The caller does not want the answer any more."""
        self.connection.drop_outgoing(self.stream_id)
        self.cancel(CancelReason.CALLER_CANCELLED)


class _Wait:
    """Waits for the end of a message (`connection.Taken`). It has no future if the message leaves at once."""

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
