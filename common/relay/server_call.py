"""A server call: one RPC of a sidecar, and its callee.

A `Callee` answers a call. One that has the answer soon needs no task: it is the hot path. `in_task` makes a callee of a
coroutine.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from common.errors import MessageTooLarge
from common.relay.connection import Http2Stream, Taken
from common.relay.errors import MessageAboveLimit, MessageCompressed, PeerGone
from common.relay.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    PREFIX_BYTES,
    ErrorCode,
    pack_head,
    pack_prefix,
)
from common.relay.hpack import Header, encode
from common.relay.metadata import OK_BLOCK, RESPONSE_BLOCK, RESPONSE_HEADERS, trailer_block
from common.status import Code, Status

if TYPE_CHECKING:
    from common.relay.server import ServerConnection


class CancelReason(StrEnum):
    """The reason why the server cancelled a call."""

    CALLER_CANCELLED = "the caller cancelled the call"
    CALLER_LOST = "the caller's connection ended"
    DEADLINE = "the caller's deadline passed"
    CLOSING = "the server is closing"


class Callee(Protocol):
    """Answers one call: with `ServerCall.answer`, or with any number of `put`, then one `finish` or `fail`."""

    def cancel(self) -> object:
        """The call needs no answer any more (`ServerCall.cancelled_by`). Finish it now or soon."""


def _ignored(_taken: bool) -> None:  # noqa: FBT001  # as `Taken`
    """Nobody asks whether an answer was taken."""


class ServerCall(Http2Stream):
    """One call: a request message in, any number of messages out, then a status."""

    method = ""  # the path, e.g. `/csi.v1.Controller/CreateVolume`
    request = b""
    timeout_s: float | None = None  # the caller's limit, counted from the arrival of the headers
    deadline: float | None = None  # when it ends, in the loop's clock
    is_whole = False  # whether a request message that came in pieces is whole
    headers_sent = False  # whether the answer has begun
    # After DEADLINE and CLOSING the callee may still `finish` with a status of its own.
    cancelled_by: CancelReason | None = None
    gone = False  # whether the caller has cancelled the call or is disconnected
    finished = False  # whether the call has its status
    callee: Callee | None = None  # None once the call is finished, so that no cycle of references keeps its messages

    def __init__(self, connection: "ServerConnection", stream_id: int) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.send_window = connection.peer_window

    # The callee's side.

    def answer(self, status: Status, message: bytes | None, taken: Taken = _ignored) -> None:
        """End the call with its one message, None without success, and the status: the hot path. See `finish`."""
        connection = self.connection
        size = 0 if message is None else len(message) + PREFIX_BYTES
        if (message is None or status.code or status.message or self.finished or self.headers_sent
                or self.cancelled_by is not None or not connection.table_size_sent or connection.outgoing
                or connection.paused or connection.transport is None or connection.transport.is_closing()
                or size > min(self.send_window, connection.send_window, FRAME_BYTES)):  # fmt: skip
            if message is not None:
                self.put(message)
            self.finish(status, taken)
            return
        self.finished = True
        self.callee = None
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

        `taken` is called once, perhaps now: with True when the caller's socket has taken the message, or with False
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

        If it is cancelled, the rest of the message still leaves before a status. Raises PeerGone: the caller cancelled,
        or its connection ended; RuntimeError: the call is finished (the callee's mistake).
        """
        if self.finished:
            raise RuntimeError(f"{self.method}: a message was sent after the status")
        end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.put(message, lambda taken: None if end.done() else end.set_result(taken))
        if not await end:
            raise PeerGone

    def finish(self, status: Status, taken: Taken = _ignored) -> None:
        """End the call with a status. Only the first end counts.

        `taken` is called once, perhaps now: with True when the caller's socket has taken every message and the status,
        else with False.
        """
        if self.finished:
            taken(False)  # noqa: FBT003
            return
        self.finished = True
        self.callee = None
        connection = self.connection
        waits = self.stream_id in connection.outgoing
        if self.gone or not connection.open or (waits and self.cancelled_by is CancelReason.DEADLINE):
            if waits:
                self._cut()
            connection.over(self)
            taken(False)  # noqa: FBT003
            return
        block = trailer_block(status, connection.message_limit_bytes)
        if waits:

            def left(whole: bool) -> None:  # noqa: FBT001  # as `Taken`
                connection.over(self)
                taken(whole)

            self.trailers = block, left
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
            was_cut = self.cancelled_by is not None and not isinstance(error, Exception)
            self.finish(self.connection.settings.on_error(self.cancelled_by if was_cut else error))

    def cancel(self, reason: CancelReason) -> None:
        """Let the callee end the call, unless it is over or the caller is gone already."""
        if self.gone:
            return
        self.cancelled_by = reason
        self.gone = reason in (CancelReason.CALLER_CANCELLED, CancelReason.CALLER_LOST)
        if not self.finished and self.callee is not None:
            self.callee.cancel()
        elif reason is CancelReason.DEADLINE and self.stream_id in self.connection.outgoing:
            self._cut()

    def _cut(self) -> None:
        self.connection.reset(self.stream_id, ErrorCode.CANCEL)
        self.connection.drop_outgoing(self.stream_id)
        self.connection.flush()

    # The connection's side.

    def headers_received(self, _fields: list[Header]) -> None:
        """A request's trailers have no meaning, but the end that they may bring."""
        if self.remote_ended:
            self.request_ended()

    def data_received(self, data: bytes, start: int, stop: int) -> None:
        """Take the request message: the usual one comes whole in one frame, with the end of the stream."""
        size = stop - start - PREFIX_BYTES
        if (self.remote_ended and not self.buffer and not self.is_whole and size >= 0 and not data[start]
                and int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big") == size
                and size <= self.connection.settings.max_message_bytes):  # fmt: skip
            self.request = data[start + PREFIX_BYTES : stop]
            self.connection.dispatch(self)
        else:
            self._join(data[start:stop])

    def _join(self, part: bytes) -> None:
        # A part of a request that did not come in one frame. The message limit bounds it, not the window.
        self.connection.give_back(self)
        limit_bytes = self.connection.settings.max_message_bytes
        try:
            messages = list(self.join(part, limit_bytes))
        except MessageAboveLimit as error:
            too_large = MessageTooLarge(error.size_bytes, limit_bytes, "a request")
            self.answer_early(self.connection.settings.on_error(too_large))
        except MessageCompressed:
            self.refuse(Code.UNIMPLEMENTED, "compressed requests are not supported")
        else:
            if messages and not self.is_whole:
                self.request = messages.pop(0)
                self.is_whole = True
            if self.is_whole and (messages or self.buffer):
                self.refuse(Code.UNAVAILABLE, "more than one request message; client streaming is not supported")
            elif self.remote_ended:
                self.request_ended()

    def request_ended(self) -> None:
        """Hand over a request that came in pieces, if it is whole."""
        if self.is_whole:
            self.connection.dispatch(self)
        else:
            self.refuse(Code.UNAVAILABLE, "the request message is missing or cut short")

    def refuse(self, code: Code, text: str, http_status: bytes = b"200") -> None:
        """Answer a request that is none of gRPC's, without a handler."""
        self.answer_early(Status(code, text, self.connection.settings.origin), http_status)

    def answer_early(self, status: Status, http_status: bytes = b"200") -> None:
        """Answer without a handler, and let a client that is still sending stop (RFC 9113, 8.1)."""
        connection = self.connection
        block = encode([(b":status", http_status), *RESPONSE_HEADERS[1:]])
        connection.send_headers(self.stream_id, block + trailer_block(status, connection.message_limit_bytes), end=True)
        if self.remote_ended:
            del connection.streams[self.stream_id]
        else:
            connection.reset(self.stream_id, ErrorCode.NO_ERROR)

    def was_reset(self, _code: int) -> None:
        self.connection.drop_outgoing(self.stream_id)
        self.cancel(CancelReason.CALLER_CANCELLED)


def in_task(handler: Callable[[ServerCall], Coroutine[Any, Any, None]]) -> Callable[[ServerCall], Callee]:
    """A handler that answers each call in a task, which is cancelled with its call."""

    def start(call: ServerCall) -> Callee:
        task = asyncio.get_running_loop().create_task(handler(call), name=call.method)
        task.add_done_callback(lambda _: call.fail(asyncio.CancelledError() if task.cancelled() else task.exception()))
        return task

    return start
