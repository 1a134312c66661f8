"""The pump: carries one HTTP/2 connection over one socket, under asyncio or uvloop.

Received bytes go to `http2` at once. Its output leaves in one write at the end of the loop's turn, or at once if an
answer is complete. While a window or the socket is full, messages wait here, not in the transport.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from common.relay.errors import Http2Error
from common.relay.frames import ErrorCode
from common.relay.http2 import Http2
from common.relay.listener import Listener

logger = logging.getLogger("csi_bridge.relay")

WRITE_HIGH_BYTES = 256 << 10
"""With more unsent bytes in the transport, no further DATA is made."""

WRITE_STUCK_BYTES = 1 << 20
"""With more unsent bytes, this side reads no more either: the peer causes answers (pings, resets) and reads none."""

TURN_BYTES = 64 << 10
"""The DATA that is made before the transport is asked whether it is full."""

PATIENCE_S = 0.005
"""How long the answer to a ping waits for other bytes to leave with."""

SHUT_S = 1.0
"""How long a connection that closes waits for the peer to read the written bytes."""

Taken = Callable[[bool], None]
"""Told once: True when the socket has taken bytes, False when their stream has ended first."""


class Outgoing:
    """The messages of a stream that could not leave at once, and its end.

    Attributes:
        pieces: the rest of each message, each with the callback for its end.
        end: whether the last piece ends the stream.
        trailers: the trailers that end the stream after the last piece, with the callback for their end.
    """

    __slots__ = ("end", "pieces", "trailers")

    def __init__(self) -> None:
        self.pieces: deque[tuple[memoryview, Taken | None]] = deque()
        self.end = False
        self.trailers: tuple[bytes, Taken | None] | None = None

    def fail(self) -> None:
        """Tell everybody that the stream ended first."""
        for taken in (*(taken for _, taken in self.pieces), self.trailers[1] if self.trailers is not None else None):
            if taken is not None:
                taken(False)  # noqa: FBT003


class Pump(Listener, asyncio.Protocol):
    """One connection: the base of the server's and the client's connections.

    A subclass implements `closed`, and the callbacks of `Listener` that it needs except `window_opened`.
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
        except Exception as bug:
            logger.exception("a bug in CSI Bridge ended a connection")
            self._http2.goaway(ErrorCode.INTERNAL_ERROR)
            self._fail(bug)
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
        for stream_id in list(self._outgoing):
            self._drop_outgoing(stream_id)
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
        self._close_in_time()

    def _close_in_time(self) -> None:
        """Close once the written bytes have left, or after `SHUT_S`."""
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(SHUT_S, self.abort)

    def abort(self) -> None:
        """Drop the connection, even if the peer does not read."""
        if self._transport is not None:
            self._transport.abort()

    def _send_message(self, stream_id: int, data: bytes, *, end: bool, taken: Taken | None = None) -> None:
        """Send DATA, now or as windows and the socket allow; `taken` hears how it ended. The caller flushes."""
        if not self._paused and not self._outgoing and len(data) <= self._http2.sendable_bytes(stream_id):
            self._http2.send_data(stream_id, data, end=end)
            if taken is not None:
                taken(True)  # noqa: FBT003
            return
        outgoing = self._outgoing.get(stream_id)
        if outgoing is None:
            outgoing = self._outgoing[stream_id] = Outgoing()
        outgoing.pieces.append((memoryview(data), taken))
        outgoing.end = end
        self.window_opened()

    def _drop_outgoing(self, stream_id: int) -> None:
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
        """Send one frame of a stream's messages. Returns its size, 0 if the windows are full."""
        view, taken = outgoing.pieces[0]
        size = min(len(view), self._http2.sendable_bytes(stream_id))
        if not size:
            return 0
        is_whole, is_last = size == len(view), len(outgoing.pieces) == 1
        self._http2.send_data(stream_id, view[:size], end=is_whole and is_last and outgoing.end)
        if not is_whole:
            outgoing.pieces[0] = view[size:], taken
            return size
        outgoing.pieces.popleft()
        if is_last:
            del self._outgoing[stream_id]
        if taken is not None:
            taken(True)  # noqa: FBT003
        if is_last and outgoing.trailers is not None:
            block, all_taken = outgoing.trailers
            self._http2.send_headers(stream_id, block, end=True)
            if all_taken is not None:
                all_taken(True)  # noqa: FBT003
        return size

    def _flush(self) -> None:
        self._flush_due = False
        transport = self._transport
        if transport is None or not (data := self._http2.take()) or transport.is_closing():
            return
        transport.write(data)
        if self._paused and transport.get_write_buffer_size() > WRITE_STUCK_BYTES:
            transport.pause_reading()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_if_due)

    def _flush_waited(self) -> None:
        self._flush_late = None
        self._flush()

    def _flush_if_due(self) -> None:
        if self._flush_due:
            self._flush()
