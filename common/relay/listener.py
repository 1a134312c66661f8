"""A listener: what an HTTP/2 connection tells its owner while it receives."""

from typing import Protocol

from common.relay.hpack import Header


class Listener(Protocol):
    """Whoever owns an `http2.Http2`. Each method returns at once; all are called from `Http2.receive`."""

    def headers_received(self, stream_id: int, headers: list[Header], *, ended: bool) -> None:
        """A header block: a request's, a response's, or trailers (`ended`)."""

    def body_received(self, stream_id: int, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        """A DATA frame; `flow_bytes` is what it took from the stream's window. `data` is valid during the call."""

    def stream_reset(self, stream_id: int, code: int) -> None:
        """The peer gave a stream up, or broke it so that we did."""

    def window_opened(self) -> None:
        """More may be sent than before."""

    def settings_received(self) -> None:
        """The peer's settings came or changed."""

    def ping_acknowledged(self, data: bytes) -> None:
        """The answer to our ping."""

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer takes no new streams; those above `last_stream_id` were not processed."""
