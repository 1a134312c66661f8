"""A client call: one RPC to the vendor's driver, from its request to the driver's own status.

Nothing here waits: a call tells its receiver, at once. A coroutine uses `common.relay.awaited_call`.

Rules:

* The receiver hears of the end once: `answered` or `ended` with the vendor's status, or `failed`. After `cancel` it
  hears no more.
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

from common.relay.connection import RETURN_BYTES, Stream
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
from common.relay.frames import ErrorCode, error_name
from common.relay.framing import PREFIX_BYTES, Deframer
from common.relay.hpack import Header
from common.relay.metadata import CONTENT_TYPE, is_grpc, status_of
from common.status import Status

if TYPE_CHECKING:
    from common.relay.awaited_call import AwaitedCall
    from common.relay.client_connection import ClientConnection

log = logging.getLogger("csi_bridge.relay")

_BUG = "a bug in CSI Bridge: the end of a call of %s was not handled"

_PAUSES_S = (0.0, 0.01, 0.03, 0.1, 0.3)
"""The pauses before the attempts of a call that the driver did not begin. It may be restarting, or it has not noticed
yet that other streams have ended."""

_OPENINGS = 3
"""A driver may close the connection just before a call begins, but not three times in a row."""


class UnaryReceiver:
    """Takes the end of a call whose answer has one message. A subclass says what becomes of it."""

    __slots__ = ()

    def answered(self, status: Status, message: bytes | None) -> None:
        """The call is over, with the vendor's status, unchanged, and with the message if the status is OK."""
        raise NotImplementedError

    def failed(self, error: VendorConnectionError) -> None:
        """The call has no status of the vendor's, or is OK without exactly one message."""
        raise NotImplementedError


class Opener(Protocol):
    """Gives a call its stream."""

    path: str
    max_message_bytes: int

    def open(self, call: "ClientCall") -> None:
        """Send the call's request, now or later. Calls `call.fail` if that is impossible."""


class ClientCall(Stream):
    """One call. `Opener.open` sends it.

    Attributes:
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the request message.
        timeout_s: sent as `grpc-timeout`; the client itself sets no limit.
        to: the name of the driver that the call is for; empty for any.
        may_begin: tells whether the request may still leave; None: always.
        connection: the connection that carries it; None before.
        queue: the calls with which it waits for a connection or a stream; None if it does not.
        later: a timer or a task that it waits for; None if it does not.
        over: whether it has ended, or was cancelled.
    """

    __slots__ = ("_has_headers", "_message", "_opener", "_openings", "_receiver", "_refusals", "_unread", "connection",
                 "later", "may_begin", "method", "over", "queue", "request", "timeout_s", "to")  # fmt: skip

    def __init__(
        self,
        opener: Opener,
        receiver: "AwaitedCall | UnaryReceiver",
        method: str,
        request: bytes,
        *,
        timeout_s: float | None,
        to: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        self.stream_id = 0
        self.send_window = 0
        self.held = 0
        self.remote_ended = False
        self.deframer = None
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.to = to
        self.may_begin = may_begin
        self.connection: ClientConnection | None = None
        self.queue: dict[ClientCall, None] | None = None
        self.later: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self.over = False
        self._opener = opener
        self._receiver = receiver
        self._message: bytes | None = None
        """The answer of a unary call."""
        self._unread = False
        self._has_headers = False
        self._openings = 0
        self._refusals = 0

    # The receiver's side.

    def consumed(self) -> None:
        """Let the driver send more: the memory of all messages so far is free again."""
        self._unread = False
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
        if self.connection is not None:
            self.connection.cancel(self)

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
        self._tell_failure(error)

    def believed(self, status: Status) -> None:
        """End the call with a status that is the vendor's."""
        if self.over:
            return
        self.over = True
        receiver = self._receiver
        try:  # the receiver's mistake must not end the connection, which other calls share
            if not isinstance(receiver, UnaryReceiver):
                receiver.ended(status)
            elif status.code:
                receiver.answered(status, None)
            elif self._message is None:
                receiver.failed(VendorAnswerInvalid("answered OK without a message"))
            else:
                receiver.answered(status, self._message)
        except Exception:
            log.exception(_BUG, self.method)

    def was_reset(self, code: int) -> None:
        """End the call: the driver has reset its stream."""
        assert self.connection is not None
        self.connection.leave(self)
        if code == ErrorCode.REFUSED_STREAM:
            self.fail(VendorStreamRefused("the driver refused the call before it began (too many streams?)"))
        else:
            text = f"the driver reset the stream (HTTP/2 error {error_name(code)})"
            self.fail(VendorConnectionError(text, sent=True))

    def headers_received(self, fields: list[Header]) -> None:
        """Take response headers or trailers."""
        connection = self.connection
        assert connection is not None
        if self.remote_ended:
            connection.answered(self)
        if not self._has_headers:
            found = dict(fields)
            http_status, content_type = found.get(b":status", b""), found.get(b"content-type")
            if http_status.startswith(b"1") and not self.remote_ended:
                return
            if (http_status != b"200" or content_type != CONTENT_TYPE) and (
                why := _not_grpc(http_status, content_type)
            ):
                self._give_up(VendorAnswerInvalid(why))
                return
            self._has_headers = True
        elif not self.remote_ended:
            self._give_up(VendorAnswerInvalid("sent response headers twice"))
        if not self.remote_ended or self.over:
            return
        try:
            status = status_of(fields)
        except MalformedField as error:
            self.fail(VendorAnswerInvalid(f"sent {error}"))
            return
        if status is None:
            self.fail(VendorAnswerInvalid("sent no grpc-status"))
        elif status.code:
            connection.judge(self, status)
        elif self.deframer is not None:
            self.fail(VendorAnswerInvalid("sent OK after a message that is cut short"))
        else:
            self.believed(status)

    def data_received(self, data: bytes, start: int, stop: int) -> None:
        """Take bytes of the answer's messages: the usual message comes whole in one frame."""
        connection = self.connection
        assert connection is not None
        if self.remote_ended:
            connection.answered(self)
        if not self._has_headers:
            self._give_up(VendorAnswerInvalid("sent data before response headers"))
            return
        size = stop - start - PREFIX_BYTES
        if (self.deframer is None and size >= 0 and not data[start]
                and int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big") == size
                and size <= self._opener.max_message_bytes):  # fmt: skip
            message = data[start + PREFIX_BYTES : stop]
            if self._message is None and isinstance(self._receiver, UnaryReceiver):
                self._message = message
            else:
                self._take(message)
        else:
            self._join(data[start:stop])
        if self.remote_ended:
            self.fail(VendorAnswerInvalid("ended the answer without trailers (no grpc-status)"))
        elif not self._unread and self.held >= RETURN_BYTES and not self.over:
            connection.give_back(self)

    def _take(self, message: bytes) -> None:
        if not isinstance(self._receiver, UnaryReceiver):
            self._unread = True
            self._receiver.took(self, message)
        elif self._message is not None:
            self._give_up(VendorAnswerInvalid("answered with more than one message"))
        else:
            self._message = message

    def _join(self, part: bytes) -> None:
        """Take a part of the messages that does not hold a whole one."""
        deframer = self.deframer = self.deframer or Deframer(self._opener.max_message_bytes)
        deframer.feed(part)
        try:
            while not self.over and (message := deframer.pop()) is not None:
                self._take(message)
        except MessageTooLarge as error:
            self._give_up(VendorAnswerTooLarge(error.size_bytes, error.limit_bytes))
        except MessageCompressed:
            self._give_up(VendorAnswerInvalid("sent a compressed message, although no compression was offered"))
        if not deframer.pending_bytes:
            self.deframer = None

    def _give_up(self, error: VendorConnectionError) -> None:
        """Cancel the call because of its answer, and tell the receiver why."""
        if not self.over:
            self.cancel()
            self._tell_failure(error)

    def _tell_failure(self, error: VendorConnectionError) -> None:
        try:
            self._receiver.failed(error)
        except Exception:
            log.exception(_BUG, self.method)


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
