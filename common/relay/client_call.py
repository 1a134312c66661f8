"""A client call: one RPC to the vendor's driver, its messages and its end."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol, Self

from common.relay.errors import (
    MalformedField,
    MessageCompressed,
    MessageTooLarge,
    VendorAnswerInvalid,
    VendorAnswerTooLarge,
    VendorConnectionError,
    VendorStreamRefused,
)
from common.relay.framing import Deframer
from common.relay.hpack import Header
from common.relay.metadata import is_grpc, status_of
from common.status import Status

_PAUSES_S = (0.0, 0.01, 0.03, 0.1, 0.3)
"""The pauses before the attempts of a call that the driver did not begin. It may be restarting, or it has not noticed
yet that other streams have ended."""


class Opener(Protocol):
    """Gives a call its stream."""

    path: str
    max_message_bytes: int

    async def open(self, call: "ClientCall") -> "Stream":
        """Send the call's request, and return its stream."""


class Stream(Protocol):
    """The connection of a call that has a stream."""

    def consumed(self, call: "ClientCall", flow_bytes: int) -> None:
        """Let the driver send as many bytes again."""

    def cancel(self, call: "ClientCall") -> None:
        """Cancel the call."""

    async def believe(self, status: Status) -> None:
        """Raise `VendorStatusDoubtful` if a status is not the vendor's own."""


class ClientCall:
    """One call: iterate over it for the answer's messages, then read `status`. Or await `unary`.

    It starts when the first message is awaited. To stop early, call `cancel`. Cancelling the task that awaits a message
    cancels the call as well (RST_STREAM CANCEL).

    Attributes:
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the request message.
        timeout_s: sent as `grpc-timeout`; the client itself sets no limit.
        to: the name of the driver that the call is for; empty for any.
        stream_id: the id of the HTTP/2 stream, 0 before there is one.
    """

    def __init__(self, opener: Opener, method: str, request: bytes, timeout_s: float | None, to: str = "") -> None:
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.to = to
        self.stream_id = 0
        self._opener = opener
        self._stream: Stream | None = None
        self._deframer = Deframer(opener.max_message_bytes)
        self._messages: deque[bytes] = deque()
        self._unread_flow_bytes = 0
        self._has_headers = False
        self._refusals = 0
        self._ended = False
        self._received: Status | None = None
        self._status: Status | None = None
        self._error: VendorConnectionError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def status(self) -> Status:
        """The vendor's status, unchanged; known once the messages are exhausted."""
        if self._status is None:
            raise RuntimeError(f"{self.method}: the status was read before the answer's messages were")
        return self._status

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The messages of the answer."""
        return self

    async def __anext__(self) -> bytes:
        """The next message; the iteration ends with the driver's status.

        Raises:
            VendorConnectionError: the call has no status of the vendor.
        """
        if (message := await self._next()) is None:
            raise StopAsyncIteration
        return message

    async def unary(self) -> tuple[Status, bytes | None]:
        """The whole answer of a call that has one message: the status, and the message if the status is OK.

        Raises:
            VendorConnectionError: the call has no status of the vendor's, or is OK without exactly one message.
        """
        first = await self._next()
        if first is not None and await self._next() is not None:
            self.cancel()
            raise VendorAnswerInvalid(self._opener.path, "answered with more than one message")
        if not self.status.ok:
            return self.status, None
        if first is None:
            raise VendorAnswerInvalid(self._opener.path, "answered OK without a message")
        return self.status, first

    def cancel(self) -> None:
        """Cancel the call with RST_STREAM (CANCEL), unless it is over."""
        if not self._ended or isinstance(self._error, VendorStreamRefused):
            if self._stream is not None:
                self._stream.cancel(self)
            self._ended = False
            self.fail(VendorConnectionError(self._opener.path, "CSI Bridge cancelled the call", sent=True))
        self._messages.clear()

    async def __aenter__(self) -> Self:
        """A block that cancels the call at its end, if it is still running."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Cancel the call if it is still running."""
        self.cancel()

    # The reader's side.

    async def _next(self) -> bytes | None:
        if self._stream is None and self._error is None:
            self._stream = await self._opener.open(self)
        while True:
            if self._messages:
                return self._take()
            if self._error is not None:
                await self._begin_again(self._error)
            if self._ended:
                await self._conclude()
                return None
            await self._wait()

    async def _begin_again(self, error: VendorConnectionError) -> None:
        """Send the call again if the driver refused to begin it; raise any other error."""
        if not isinstance(error, VendorStreamRefused) or self._has_headers or self._refusals == len(_PAUSES_S):
            raise error
        await asyncio.sleep(_PAUSES_S[self._refusals])
        self._refusals += 1
        if self._error is not error:
            raise self._error or error
        self._ended, self._error = False, None
        self._stream = await self._opener.open(self)

    def _take(self) -> bytes:
        message = self._messages.popleft()
        if not self._messages and self._stream is not None and not self._ended:
            self._stream.consumed(self, self._unread_flow_bytes)
            self._unread_flow_bytes = 0
        return message

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._waiter = None

    async def _conclude(self) -> None:
        if self._status is None and self._received is not None and self._stream is not None:
            await self._stream.believe(self._received)
            self._status = self._received

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The connection's side. Each returns at once.

    def fail(self, error: VendorConnectionError) -> None:
        """End the call without a status."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake()

    def headers_received(self, headers: list[Header], *, ended: bool) -> None:
        """Take response headers or trailers (`ended`)."""
        if not self._has_headers:
            fields = dict(headers)
            status = fields.get(b":status", b"")
            if status.startswith(b"1") and not ended:
                return
            if why := _not_grpc(status, fields.get(b"content-type")):
                self._give_up(VendorAnswerInvalid(self._opener.path, why))
                return
            self._has_headers = True
        elif not ended:
            self._give_up(VendorAnswerInvalid(self._opener.path, "sent response headers twice"))
        if ended:
            self._trailers_received(headers)

    def data_received(self, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        """Take bytes of the answer's messages."""
        if self._ended:
            return
        if not self._has_headers:
            self._give_up(VendorAnswerInvalid(self._opener.path, "sent data before response headers"))
            return
        try:
            self._deframe(data)
        except MessageTooLarge as error:
            self._give_up(VendorAnswerTooLarge(self._opener.path, error.size_bytes, error.limit_bytes))
        except MessageCompressed:
            self._give_up(
                VendorAnswerInvalid(self._opener.path, "sent a compressed message, although no compression was offered")
            )
        if ended:
            self.fail(VendorAnswerInvalid(self._opener.path, "ended the answer without trailers (no grpc-status)"))
        elif not self._ended:
            self._account(flow_bytes)

    def _deframe(self, data: memoryview) -> None:
        self._deframer.feed(data)
        had_messages = bool(self._messages)
        while (message := self._deframer.pop()) is not None:
            self._messages.append(message)
        if self._messages and not had_messages:
            self._wake()

    def _account(self, flow_bytes: int) -> None:
        """Give parts of a message back to the window at once: the message may be larger than the window."""
        if self._messages:
            self._unread_flow_bytes += flow_bytes
        elif self._stream is not None:
            self._stream.consumed(self, flow_bytes)

    def _trailers_received(self, headers: list[Header]) -> None:
        if self._ended:
            return
        try:
            status = status_of(headers)
        except MalformedField as error:
            self.fail(VendorAnswerInvalid(self._opener.path, f"sent {error}"))
            return
        if status is None:
            self.fail(VendorAnswerInvalid(self._opener.path, "sent no grpc-status"))
        elif status.ok and self._deframer.pending_bytes:
            self.fail(VendorAnswerInvalid(self._opener.path, "sent OK after a message that is cut short"))
        else:
            self._ended = True
            self._received = status
            self._wake()

    def _give_up(self, error: VendorConnectionError) -> None:
        if not self._ended and self._stream is not None:
            self._stream.cancel(self)
        self.fail(error)


def _not_grpc(http_status: bytes, content_type: bytes | None) -> str | None:
    """The reason why response headers are not gRPC's, or None if they are."""
    if http_status != b"200":
        return f"answered with HTTP status {http_status[:20].decode('ascii', 'replace')}"
    if not is_grpc(content_type):
        shown = (
            "no content-type"
            if content_type is None
            else f"content-type {content_type[:60].decode('ascii', 'replace')}"
        )
        return f"answered with {shown}, not application/grpc"
    return None
