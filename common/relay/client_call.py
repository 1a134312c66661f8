"""A client call: one RPC to the vendor's driver, from its request to the driver's own status.

Nothing here waits: a call tells its receiver, at once. A coroutine uses `common.relay.awaited_call`.

Rules:

* The receiver hears of the end once: `ended` with the vendor's status, or `failed`. After `cancel` it hears no more.
* A call that the driver refused to begin is sent again, a few times.
* A call may wait for a connection, a stream, or its next attempt. So its permission is asked for each time when its
  request is about to leave, and not before (`may_begin`).
* A part of a message goes back to the stream's window at once, because the message may be larger than the window. A
  whole message goes back when the receiver has used it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from common.relay.errors import (
    MalformedField,
    MessageCompressed,
    MessageTooLarge,
    VendorAnswerInvalid,
    VendorAnswerTooLarge,
    VendorConnectionError,
    VendorStreamRefused,
    VendorUnreachable,
)
from common.relay.framing import Deframer
from common.relay.hpack import Header
from common.relay.metadata import CONTENT_TYPE, is_grpc, status_of
from common.status import Status

if TYPE_CHECKING:
    from common.relay.client_connection import ClientConnection

log = logging.getLogger("csi_bridge.relay")

_PAUSES_S = (0.0, 0.01, 0.03, 0.1, 0.3)
"""The pauses before the attempts of a call that the driver did not begin. It may be restarting, or it has not noticed
yet that other streams have ended."""

_OPENINGS = 3
"""A driver may close the connection just before a call begins, but not three times in a row."""


class CallReceiver(Protocol):
    """Takes what comes of one call, at once: no method waits."""

    def took(self, call: "ClientCall", message: bytes) -> None:
        """A whole message of the answer came. Call `call.consumed()` when its memory is free again."""

    def ended(self, status: Status) -> None:
        """The call is over, with the vendor's status, unchanged."""

    def failed(self, error: VendorConnectionError) -> None:
        """The call is over without a status of the vendor's."""


class Opener(Protocol):
    """Gives a call its stream."""

    path: str
    max_message_bytes: int

    def open(self, call: "ClientCall") -> None:
        """Send the call's request, now or later. Calls `call.fail` if that is impossible."""


class ClientCall:
    """One call. Begin it with `start`.

    Attributes:
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the request message.
        timeout_s: sent as `grpc-timeout`; the client itself sets no limit.
        to: the name of the driver that the call is for; empty for any.
        may_begin: tells whether the request may still leave; None: always.
        stream_id: the id of the HTTP/2 stream, 0 before there is one.
        connection: the connection that carries it; None before.
        queue: the calls with which it waits for a connection or a stream; None if it does not.
        later: a timer or a task that it waits for; None if it does not.
        over: whether it has ended, or was cancelled.
    """

    __slots__ = ("_deframer", "_has_headers", "_opener", "_openings", "_receiver", "_refusals", "_unread",
                 "_unread_flow_bytes", "connection", "later", "may_begin", "method", "over", "queue", "request",
                 "stream_id", "timeout_s", "to")  # fmt: skip

    def __init__(
        self,
        opener: Opener,
        receiver: CallReceiver,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None,
        to: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.to = to
        self.may_begin = may_begin
        self.stream_id = 0
        self.connection: ClientConnection | None = None
        self.queue: dict[ClientCall, None] | None = None
        self.later: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self.over = False
        self._opener = opener
        self._receiver = receiver
        self._deframer = Deframer(opener.max_message_bytes)
        self._unread = False
        self._unread_flow_bytes = 0
        self._has_headers = False
        self._openings = 0
        self._refusals = 0

    # The receiver's side.

    def start(self) -> None:
        """Send the request. If it cannot be sent, the receiver hears so before this returns."""
        self._opener.open(self)

    def consumed(self) -> None:
        """Let the driver send more: the memory of all messages so far is free again."""
        self._unread = False
        if self._unread_flow_bytes and not self.over and self.connection is not None:
            self.connection.consumed(self, self._unread_flow_bytes)
        self._unread_flow_bytes = 0

    def cancel(self) -> None:
        """Cancel the call with RST_STREAM (CANCEL), unless it is over."""
        if self.over:
            return
        self.over = True
        if self.queue is not None:
            self.queue.pop(self, None)
        if self.later is not None:
            self.later.cancel()
        if self.connection is not None:
            self.connection.cancel(self)

    def give_up(self, error: VendorConnectionError) -> None:
        """Cancel the call because of its answer, and tell the receiver why."""
        if not self.over:
            self.cancel()
            self._tell(error)

    # The connection's side.

    def open_again(self) -> None:
        """Open the call again: its connection took no more calls before any byte of this one was written."""
        self._openings += 1
        if self._openings < _OPENINGS:
            self._opener.open(self)
        else:
            self.fail(VendorUnreachable(self._opener.path, "it closes every connection before a call can begin"))

    def fail(self, error: VendorConnectionError) -> None:
        """End the call without a status; or send it again, if the driver refused to begin it."""
        if self.over:
            return
        if isinstance(error, VendorStreamRefused) and not self._has_headers and self._refusals < len(_PAUSES_S):
            pause_s = _PAUSES_S[self._refusals]
            self._refusals += 1
            self._openings = 0
            self.connection = None
            self.later = asyncio.get_running_loop().call_later(pause_s, self._opener.open, self)
            return
        self.over = True
        self._tell(error)

    def believed(self, status: Status) -> None:
        """End the call with a status that is the vendor's."""
        if not self.over:
            self.over = True
            self._tell(status)

    def headers_received(self, headers: list[Header], *, ended: bool) -> None:
        """Take response headers or trailers (`ended`)."""
        if not self._has_headers:
            fields = dict(headers)
            status = fields.get(b":status", b"")
            if status.startswith(b"1") and not ended:
                return
            content_type = fields.get(b"content-type")
            if (status != b"200" or content_type != CONTENT_TYPE) and (why := _not_grpc(status, content_type)):
                self.give_up(VendorAnswerInvalid(why))
                return
            self._has_headers = True
        elif not ended:
            self.give_up(VendorAnswerInvalid("sent response headers twice"))
        if ended:
            self._trailers_received(headers)

    def data_received(self, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        """Take bytes of the answer's messages."""
        if not self._has_headers:
            self.give_up(VendorAnswerInvalid("sent data before response headers"))
            return
        try:
            self._deframe(data)
        except MessageTooLarge as error:
            self.give_up(VendorAnswerTooLarge(error.size_bytes, error.limit_bytes))
        except MessageCompressed:
            self.give_up(VendorAnswerInvalid("sent a compressed message, although no compression was offered"))
        if ended:
            self.fail(VendorAnswerInvalid("ended the answer without trailers (no grpc-status)"))
        elif self._unread:
            self._unread_flow_bytes += flow_bytes
        elif not self.over and self.connection is not None:
            self.connection.consumed(self, flow_bytes)

    def _deframe(self, data: memoryview) -> None:
        self._deframer.feed(data)
        while not self.over and (message := self._deframer.pop()) is not None:
            self._unread = True
            self._receiver.took(self, message)

    def _trailers_received(self, headers: list[Header]) -> None:
        if self.over:
            return
        try:
            status = status_of(headers)
        except MalformedField as error:
            self.fail(VendorAnswerInvalid(f"sent {error}"))
            return
        if status is None:
            self.fail(VendorAnswerInvalid("sent no grpc-status"))
        elif not status.code and self._deframer.pending_bytes:
            self.fail(VendorAnswerInvalid("sent OK after a message that is cut short"))
        elif self.connection is not None:
            self.connection.judge(self, status)

    def _tell(self, end: Status | VendorConnectionError) -> None:
        """Tell the receiver of the end. Its mistake must not end the connection, which other calls share."""
        try:
            if isinstance(end, Status):
                self._receiver.ended(end)
            else:
                self._receiver.failed(end)
        except Exception:
            log.exception("a bug in CSI Bridge: the end of a call of %s was not handled", self.method)


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
