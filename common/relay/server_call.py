"""A server call: one RPC that a sidecar sent us, as its handler sees it."""

from enum import StrEnum
from typing import Protocol

from common.relay.errors import PeerGone
from common.status import Status


class CancelReason(StrEnum):
    """Why the server cancelled a call's handler."""

    CALLER_CANCELLED = "the caller cancelled the call"
    CALLER_LOST = "the caller's connection ended"
    DEADLINE = "the caller's deadline passed"
    CLOSING = "the server is closing"


class AnswerWriter(Protocol):
    """What a call needs of its connection."""

    async def send_message(self, call: "ServerCall", message: bytes) -> None:
        """Send one message, after the headers if it is the first."""

    def send_status(self, call: "ServerCall", status: Status) -> bool:
        """Send the trailers; whether they were handed to an open stream."""


class ServerCall:
    """One call: a request message in, any number of messages out, then a status.

    Attributes:
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the whole request message.
        timeout_s: what the caller gave the call, counted from its headers' arrival, or None.
        cancelled_by: why the server cancelled the handler, or None. `finish` still works after DEADLINE and CLOSING: a
            handler that knows better words may use them.
        finished: whether `finish` was called.
    """

    __slots__ = (
        "_writer",
        "cancelled_by",
        "finished",
        "headers_sent",
        "method",
        "request",
        "stream_id",
        "timeout_s",
    )

    def __init__(
        self, writer: AnswerWriter, stream_id: int, *, method: str, request: bytes, timeout_s: float | None
    ) -> None:
        self._writer = writer
        self.stream_id = stream_id
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.headers_sent = False
        self.finished = False
        self.cancelled_by: CancelReason | None = None

    @property
    def gone(self) -> bool:
        """Whether nobody listens any more."""
        return self.cancelled_by in (CancelReason.CALLER_CANCELLED, CancelReason.CALLER_LOST)

    async def send(self, message: bytes) -> None:
        """Send one message of the answer; returns when it was handed to the socket, so a slow caller slows the handler.

        Cancelling it does not unsend: the rest of the message still goes out before a status.

        Raises:
            PeerGone: the caller cancelled, or its connection ended.
            RuntimeError: after `finish`, or while an earlier `send` is under way (the handler's mistake).
        """
        if self.finished:
            raise RuntimeError(f"{self.method}: a message was sent after the status")
        if self.gone:
            raise PeerGone
        await self._writer.send_message(self, message)

    def finish(self, status: Status) -> bool:
        """End the call with a status. Only the first `finish` counts.

        Returns:
            True only if the status, and every message before it, was handed to a stream that was still open.
        """
        if self.finished:
            return False
        self.finished = True
        return not self.gone and self._writer.send_status(self, status)
