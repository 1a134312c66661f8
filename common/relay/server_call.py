"""A server call: one RPC of a sidecar, as its handler sees it."""

from enum import StrEnum
from typing import Protocol

from common.relay.errors import PeerGone
from common.status import Status


class CancelReason(StrEnum):
    """The reason why the server cancelled a call's handler."""

    CALLER_CANCELLED = "the caller cancelled the call"
    CALLER_LOST = "the caller's connection ended"
    DEADLINE = "the caller's deadline passed"
    CLOSING = "the server is closing"


class AnswerWriter(Protocol):
    """The connection of a call, which sends its answer."""

    async def send_message(self, call: "ServerCall", message: bytes) -> None:
        """Send one message, after the headers if it is the first."""

    def send_status(self, call: "ServerCall", status: Status) -> bool:
        """Send the trailers. Returns whether the stream was still open."""


class ServerCall:
    """One call: a request message in, any number of messages out, then a status.

    Attributes:
        method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
        request: the whole request message.
        timeout_s: the caller's limit, counted from the arrival of the headers, or None.
        cancelled_by: the reason why the server cancelled the handler, or None. After DEADLINE and CLOSING a handler may
            still `finish` with a status of its own.
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
        """Whether the caller has cancelled the call or is disconnected."""
        return self.cancelled_by in (CancelReason.CALLER_CANCELLED, CancelReason.CALLER_LOST)

    async def send(self, message: bytes) -> None:
        """Send one message of the answer. Returns when the socket has taken it: a slow caller slows the handler.

        If it is cancelled, the rest of the message still leaves before a status.

        Raises:
            PeerGone: the caller cancelled, or its connection ended.
            RuntimeError: the call is finished, or an earlier `send` has not returned (the handler's mistake).
        """
        if self.finished:
            raise RuntimeError(f"{self.method}: a message was sent after the status")
        if self.gone:
            raise PeerGone
        await self._writer.send_message(self, message)

    def finish(self, status: Status) -> bool:
        """End the call with a status. Only the first `finish` counts.

        Returns:
            True only if the stream was still open, and took every message and the status.
        """
        if self.finished:
            return False
        self.finished = True
        return not self.gone and self._writer.send_status(self, status)
