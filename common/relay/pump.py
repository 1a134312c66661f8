"""The pump: carries one HTTP/2 connection over one socket, under asyncio or uvloop.

Received bytes go to `http2` at once. Its output leaves in one write at the end of the loop's turn, or at once if an
answer is complete. While a window or the socket is full, messages wait here, not in the transport.
"""

import asyncio
import logging
from typing import cast

from common.relay.errors import Http2Error, PeerGone
from common.relay.frames import ErrorCode
from common.relay.hpack import Header
from common.relay.http2 import Http2

logger = logging.getLogger("csi_bridge.relay")

WRITE_HIGH_BYTES = 256 << 10
"""With more unsent bytes in the transport, no further DATA is made."""

WRITE_STUCK_BYTES = 1 << 20
"""With more unsent bytes, this side reads no more either: the peer causes answers (pings, resets) and reads none."""

TURN_BYTES = 64 << 10
"""The DATA that is made before the transport is asked whether it is full."""

PATIENCE_S = 0.005
"""How long the answer to a ping waits for other bytes to leave with."""


class Outgoing:
    """The rest of a message that could not leave in one piece.

    Attributes:
        view: the remaining bytes.
        done: the future of a sender that waits for them to leave, or None.
        end: whether they end the stream.
        trailers: the trailers that end the stream after them, if they are known already.
    """

    __slots__ = ("done", "end", "trailers", "view")

    def __init__(self, view: memoryview, done: asyncio.Future[None] | None, *, end: bool) -> None:
        self.view = view
        self.done = done
        self.end = end
        self.trailers: bytes | None = None

    def finish(self) -> None:
        """Wake the sender: all bytes have left."""
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def fail(self) -> None:
        """Fail the sender: the stream ended first."""
        if self.done is not None and not self.done.done():
            self.done.set_exception(PeerGone())


class Pump(asyncio.Protocol):
    """One connection: the base of the server's and the client's connections.

    A subclass implements `closed` and the callbacks of `listener.Listener` except `window_opened`.
    """

    def __init__(self, *, client: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._http2 = Http2(self, client=client)
        self._outgoing: dict[int, Outgoing] = {}
        self._paused = False
        self._flush_due = False
        self._flush_late: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None

    # What a subclass adds.

    def closed(self, why: Exception | None) -> None:
        """The connection is over. Called once, with the error, or None if the peer closed it."""
        raise NotImplementedError

    def headers_received(self, stream_id: int, headers: list[Header], *, ended: bool) -> None:
        """See `listener.Listener`."""
        raise NotImplementedError

    def body_received(self, stream_id: int, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        """See `listener.Listener`."""
        raise NotImplementedError

    def stream_reset(self, stream_id: int, code: int) -> None:
        """See `listener.Listener`."""
        raise NotImplementedError

    def settings_received(self) -> None:
        """See `listener.Listener`."""

    def ping_acknowledged(self, data: bytes) -> None:
        """See `listener.Listener`."""

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """See `listener.Listener`."""

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the settings."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._http2.start()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Give the bytes to HTTP/2, then send its answers."""
        if self._failure is not None:
            return
        try:
            self._http2.receive(data)
        except Http2Error as error:
            self._fail(error)
        except Exception as error:
            logger.exception("a bug in CSI Bridge ended a connection")
            self._http2.goaway(ErrorCode.INTERNAL_ERROR)
            self._fail(error)
        if not self._http2.patient:
            self._flush()
        elif not self._flush_late and self._http2.queued:
            self._flush_late = self._loop.call_later(PATIENCE_S, self._flush_waited)

    def pause_writing(self) -> None:
        """The socket is full: make no more DATA."""
        self._paused = True

    def resume_writing(self) -> None:
        """The socket has room again."""
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.window_opened()
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every waiting sender, then the subclass."""
        self._transport = None
        for outgoing in self._outgoing.values():
            outgoing.fail()
        self._outgoing.clear()
        self.closed(self._failure or exc)

    # For subclasses.

    @property
    def open(self) -> bool:
        """Whether the connection takes bytes."""
        return self._transport is not None and not self._transport.is_closing()

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error. HTTP/2 has queued its GOAWAY."""
        if self._failure is None:
            self._failure = error
        self._flush()
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(1.0, self._transport.abort)

    def _send_message(self, stream_id: int, data: bytes, *, end: bool, watch: bool) -> asyncio.Future[None] | None:
        """Send DATA, at once or as windows and the socket allow.

        Args:
            stream_id: an open stream on which nothing else is being sent.
            data: a framed message.
            end: whether it is the stream's last.
            watch: return a future for bytes that cannot leave at once; it fails with `PeerGone` if the stream ends
                first.

        Returns:
            The future, or None if all bytes have left or `watch` is False.
        """
        if not self._paused and not self._outgoing and len(data) <= self._http2.sendable_bytes(stream_id):
            self._http2.send_data(stream_id, data, end=end)
            self._flush_soon()
            return None
        done = self._loop.create_future() if watch else None
        self._outgoing[stream_id] = Outgoing(memoryview(data), done, end=end)
        self.window_opened()
        self._flush_soon()
        return done

    def _drop_outgoing(self, stream_id: int) -> None:
        """Drop the unsent bytes of a stream that is over."""
        if (outgoing := self._outgoing.pop(stream_id, None)) is not None:
            outgoing.fail()

    def window_opened(self) -> None:
        """Send a frame of each waiting message in turn, until the windows or the socket are full."""
        unflushed = 0
        progress = True
        while progress and not self._paused:
            progress = False
            for stream_id, outgoing in list(self._outgoing.items()):
                if sent := self._send_frame(stream_id, outgoing):
                    progress = True
                    unflushed += sent
            if unflushed >= TURN_BYTES:
                unflushed = 0
                self._flush()  # so that the transport can say that it is full

    def _send_frame(self, stream_id: int, outgoing: Outgoing) -> int:
        """Send one frame of a message. Returns its size, 0 if the windows are full."""
        view = outgoing.view
        size = min(len(view), self._http2.sendable_bytes(stream_id))
        if not size:
            return 0
        last = size == len(view)
        self._http2.send_data(stream_id, view[:size], end=last and outgoing.end)
        outgoing.view = view[size:]
        if last:
            del self._outgoing[stream_id]
            if outgoing.trailers is not None:
                self._http2.send_headers(stream_id, outgoing.trailers, end=True)
            outgoing.finish()
        return size

    def _flush(self) -> None:
        """Write the bytes that HTTP/2 has queued."""
        self._flush_due = False
        transport = self._transport
        if transport is None or not (data := self._http2.take()) or transport.is_closing():
            return
        transport.write(data)
        if self._paused and transport.get_write_buffer_size() > WRITE_STUCK_BYTES:
            transport.pause_reading()

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_if_due)

    def _flush_waited(self) -> None:
        self._flush_late = None
        self._flush()

    def _flush_if_due(self) -> None:
        if self._flush_due:
            self._flush()
