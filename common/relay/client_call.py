"""A client call: one RPC to the vendor's driver, from its request to the driver's own status.

A `ClientCall` waits for nothing: it tells its receiver, at once. An `AwaitedCall` is the receiver for a coroutine.

Rules:

* The receiver hears of the end once: `answered` with the vendor's status, or `failed`. After `cancel` it hears no more.
* A call that the driver did not begin is opened again, a few times.
* A call may wait for a connection, a stream, or its next attempt. So its permission is asked for each time when its
  request is about to leave, and not before (`may_begin`).
* A part of a message goes back to the stream's window at once, because the message may be larger than the window. A
  whole message goes back when the receiver has used it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from common.relay.connection import RETURN_BYTES, Http2Stream
from common.relay.errors import (
    MessageAboveLimit,
    MessageCompressed,
    VendorAnswerTooLarge,
    VendorConnectionError,
)
from common.relay.frames import PREFIX_BYTES, ErrorCode, error_name
from common.relay.hpack import Header
from common.relay.metadata import CONTENT_TYPE, is_grpc, status_of
from common.status import Status

if TYPE_CHECKING:
    from common.relay.client_connection import ClientConnection

log = logging.getLogger("csi_bridge.relay")

_OK = Status(0)

# The pauses before the attempts of a call that the driver did not begin. It may be restarting, or it has not noticed
# yet that other streams have ended.
_PAUSES_S = (0.0, 0.01, 0.03, 0.1, 0.3)


class AnswerReceiver:
    """Takes the answer of a call. A subclass says what becomes of it."""

    __slots__ = ()

    def answered(self, status: Status, message: bytes | None) -> None:
        """The call is over, with the vendor's status, unchanged, and the message if the status is OK."""
        raise NotImplementedError

    def failed(self, error: VendorConnectionError) -> None:
        """The call has no status of the vendor's, or is OK without exactly one message."""
        raise NotImplementedError


class ClientCall(Http2Stream):
    """One call, which its opener sends."""

    receiver: AnswerReceiver  # set it before the call is opened
    # Takes each message of an answer that may have any number of them, and so none for `answered`. Call `consumed` when
    # their memory is free again. None: the answer has one message.
    took: Callable[[bytes], None] | None = None
    connection: "ClientConnection | None" = None  # the one that carries it
    queue: "dict[ClientCall, None] | None" = None  # the calls with which it waits for a connection or a stream
    later: asyncio.TimerHandle | None = None  # the timer of its next attempt
    over = False  # whether it has ended, or was cancelled
    _message: bytes | None = None  # the answer without `took`
    _is_unread = False  # whether the receiver has not used its last message yet
    _has_headers = False
    _attempts = 0

    def __init__(
        self,
        opener: "Callable[[ClientCall], None]",
        method: str,
        request: bytes,
        *,
        timeout_s: float | None,
        driver: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        self.opener = opener  # sends the call's request, now or later, or calls `fail`
        self.method = method  # the path, e.g. `/csi.v1.Controller/CreateVolume`
        self.request = request
        self.timeout_s = timeout_s  # sent as `grpc-timeout`; the client itself sets no limit
        self.driver = driver  # the name of the driver that the call is for; empty for any
        self.may_begin = may_begin  # tells whether the request may still leave; None: always

    # The receiver's side.

    def consumed(self) -> None:
        """Let the driver send more: the memory of all messages so far is free again."""
        self._is_unread = False
        if not self.over and self.connection is not None:
            self.connection.give_back(self)

    def cancel(self) -> None:
        """Cancel the call with RST_STREAM (CANCEL), unless it is over."""
        if self.over:
            return
        self.over = True
        if self.queue is not None:
            self.queue.pop(self, None)
        if self.later is not None:
            self.later.cancel()
        if self.connection is not None and self.connection.streams.get(self.stream_id) is self:
            self.connection.leave(self)
            self.connection.flush()

    # The connection's side.

    def fail(self, error: VendorConnectionError) -> None:
        """End the call without a status of the vendor's."""
        if self.over:
            return
        self.cancel()
        try:  # the receiver's mistake must not end the connection, which other calls share
            self.receiver.failed(error)
        except Exception:
            log.exception("a bug in CSI Bridge: the end of a call of %s was not handled", self.method)

    def again(self, error: VendorConnectionError) -> None:
        """Open the call once more, because the driver did not begin it. After a few times, fail with the error."""
        if self._has_headers or self._attempts == len(_PAUSES_S):
            self.fail(error)
        elif not self.over:
            self.connection = None
            self.remote_ended = False
            self.later = asyncio.get_running_loop().call_later(_PAUSES_S[self._attempts], self.opener, self)
            self._attempts += 1

    def believed(self, status: Status) -> None:
        """End the call with a status that is the vendor's."""
        if self.over:
            return
        message = None if status.code else self._message
        if message is None and not status.code and self.took is None:
            self._invalid("answered OK without a message")
            return
        self.over = True
        try:  # as in `fail`
            self.receiver.answered(status, message)
        except Exception:
            log.exception("a bug in CSI Bridge: the end of a call of %s was not handled", self.method)

    def was_reset(self, code: int) -> None:
        assert self.connection is not None
        self.remote_ended = True
        self.connection.drop_outgoing(self.stream_id)
        self.connection.leave(self)
        if code == ErrorCode.REFUSED_STREAM:  # so it is safe to send it again (RFC 9113, 8.7)
            text = "the driver refused the call before it began (too many streams?)"
            self.again(VendorConnectionError(text, sent=True))
        else:
            self._invalid(f"reset the stream (HTTP/2 error {error_name(code)})")

    def headers_received(self, fields: list[Header]) -> None:
        connection = self.connection
        assert connection is not None
        if self.remote_ended:
            del connection.streams[self.stream_id]
            if connection.outgoing or connection.queue or connection.retired:
                connection.leave(self)
        found = dict(fields)
        if not self._has_headers:
            http_status = found.get(b":status", b"")
            content_type = found.get(b"content-type")
            if http_status.startswith(b"1") and not self.remote_ended:
                return
            if (http_status != b"200" or content_type != CONTENT_TYPE) and (
                why := _not_grpc(http_status, content_type)
            ):
                self._invalid(why)
                return
            self._has_headers = True
        elif not self.remote_ended:
            self._invalid("sent response headers twice")
        if not self.remote_ended:
            return
        try:
            is_ok = found.get(b"grpc-status") == b"0" and not found.get(b"grpc-message")
            status = _OK if is_ok else status_of(found)
        except ValueError as error:
            self._invalid(f"sent {error}")
            return
        if status is None:
            self._invalid("sent no grpc-status")
        elif status.code:
            connection.judge(self, status)
        elif self.buffer:
            self._invalid("sent OK after a message that is cut short")
        else:
            self.believed(status)

    def data_received(self, data: bytes, start: int, stop: int) -> None:
        """Take bytes of the answer's messages: the usual message comes whole in one frame."""
        connection = self.connection
        assert connection is not None
        if not self._has_headers:
            self._invalid("sent data before response headers")
            return
        size = stop - start - PREFIX_BYTES
        if (not self.buffer and size >= 0 and not data[start]
                and int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big") == size
                and size <= connection.max_message_bytes):  # fmt: skip
            message = data[start + PREFIX_BYTES : stop]
            if self._message is None and self.took is None:
                self._message = message
            else:
                self._take(message)
        else:
            self._join(data[start:stop])
        if self.remote_ended:
            self._invalid("ended the answer without trailers (no grpc-status)")
        elif not self._is_unread and self.held >= RETURN_BYTES and not self.over:
            connection.give_back(self)

    def _take(self, message: bytes) -> None:
        if self.took is not None:
            self._is_unread = True
            self.took(message)
        elif self._message is None:
            self._message = message
        else:
            self._invalid("answered with more than one message")

    def _join(self, part: bytes) -> None:
        assert self.connection is not None
        limit_bytes = self.connection.max_message_bytes
        try:
            for message in self.join(part, limit_bytes):
                self._take(message)
                if self.over:
                    return
        except MessageAboveLimit as error:
            self.fail(VendorAnswerTooLarge(error.size_bytes, limit_bytes))
        except MessageCompressed:
            self._invalid("sent a compressed message, although no compression was offered")

    def _invalid(self, why: str) -> None:
        self.fail(VendorConnectionError(f"the driver {why}", sent=True))


def _not_grpc(http_status: bytes, content_type: bytes | None) -> str:
    if http_status != b"200":
        return f"answered with HTTP status {http_status[:20].decode('ascii', 'replace')}"
    if is_grpc(content_type):
        return ""
    shown = (
        "no content-type" if content_type is None else f"content-type {content_type[:60].decode('ascii', 'replace')}"
    )
    return f"answered with {shown}, not application/grpc"


class AwaitedCall(AnswerReceiver):
    """A call for a coroutine: iterate over it for the answer's messages, then read `status`. Or await `unary`.

    It starts when the first message is awaited. To stop early, call `cancel`. Cancelling the task that awaits a message
    cancels the call as well (RST_STREAM CANCEL).
    """

    def __init__(self, call: ClientCall) -> None:
        call.receiver = self
        call.took = self._took
        self._call: ClientCall | None = call  # None at its end: the two would keep each other, with the answer
        self._has_started = False
        self._messages: deque[bytes] = deque()
        self._end: Status | VendorConnectionError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def status(self) -> Status:
        """The vendor's status, unchanged; known once the messages are exhausted."""
        if self._messages or not isinstance(self._end, Status):
            raise RuntimeError("the status was read before the answer's messages were")
        return self._end

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next message; the iteration ends with the driver's status.

        Raises VendorConnectionError: the call has no status of the vendor.
        """
        while not self._messages:
            if isinstance(self._end, Status):
                raise StopAsyncIteration
            if self._end is not None:
                raise self._end
            await self._news()
        message = self._messages.popleft()
        if not self._messages and self._call is not None:
            self._call.consumed()
        return message

    async def unary(self) -> tuple[Status, bytes | None]:
        """The whole answer of a call that has one message: the status, and the message if the status is OK.

        Raises VendorConnectionError: the call has no status of the vendor's, or is OK without exactly one message.
        """
        if self._call is not None:
            self._call.took = None
        message = await anext(self, None)
        return self.status, message

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        if self._call is not None and not self._has_started:
            self._has_started = True
            self._call.opener(self._call)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._waiter = None

    def cancel(self) -> None:
        """Cancel the call, unless it is over. Messages that were not read are dropped."""
        self._messages.clear()
        if self._call is not None:
            # Not `cancel` of the call: a coroutine that awaits a message must wake, and gets this error.
            self._call.fail(VendorConnectionError("CSI Bridge cancelled the call", sent=True))

    # The call's side.

    def _took(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake()

    def answered(self, status: Status, message: bytes | None) -> None:
        if message is not None:
            self._messages.append(message)
        self._end = status
        self._call = None
        self._wake()

    def failed(self, error: VendorConnectionError) -> None:
        self._end = error
        self._call = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
