"""A listener: the owner of an HTTP/2 connection, which gets the received events."""

from common.relay.hpack import Header


class Listener:
    """The owner of an `http2.Http2`. `Http2.receive` calls its methods; each returns at once, and here does nothing."""

    __slots__ = ()

    def headers_received(self, stream_id: int, headers: list[Header], *, ended: bool) -> None:
        """A request, response headers, or trailers (`ended`) came in."""

    def body_received(self, stream_id: int, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        """A DATA frame came in. It took `flow_bytes` from the stream's window. `data` is valid during the call."""

    def stream_reset(self, stream_id: int, code: int) -> None:
        """The peer reset a stream, or broke its rules, so that this side did."""

    def window_opened(self) -> None:
        """A window grew: more bytes may be sent."""

    def settings_received(self) -> None:
        """The peer's settings came or changed."""

    def ping_acknowledged(self, data: bytes) -> None:
        """The peer answered this side's ping."""

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer takes no new streams; those above `last_stream_id` were not processed."""
