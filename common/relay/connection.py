"""An HTTP/2 connection (RFC 9113) over one socket: what the server's and the client's have in common.

It has the parts of HTTP/2 that gRPC uses: no push, no priorities, no upgrade. Rules:

* One loop reads all frames (`data_received`). It gives headers and DATA to the call of their stream. Whatever is rare
  has a method beside it.
* Output leaves in one write at the end of the loop's turn, or at once if a request or an answer is complete. While a
  window or the socket is full, messages wait here, not in the transport.
* DATA counts as returned to the connection's window when it comes, and to a stream's window only when its bytes were
  used. So a stream with a slow reader does not block the others.
* A received GOAWAY ends no stream: streams up to its last id finish (section 6.8).
* A frame on a stream that is over is ignored, because it may have crossed this side's RST_STREAM or trailers. Its
  headers are still decoded and its bytes counted.
* A fault of the connection raises `Http2Error`; a fault of one stream resets that stream only (section 5.4).
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, TypeVar, cast

from common.relay import frames
from common.relay.errors import Http2Error, MessageAboveLimit, MessageCompressed
from common.relay.frames import FRAME_BYTES, MAX_WINDOW_BYTES, PREFIX_BYTES, ErrorCode, Setting, pack_prefix
from common.relay.hpack import NO_DYNAMIC_TABLE, Decoder, Header
from common.session import batch

log = logging.getLogger("csi_bridge.relay")

# The bytes that a peer may send on one stream ahead of its reader. A reader that stalls costs this memory and one
# message. A message of 4 MiB waits for eight window updates, which take microseconds on a UNIX socket.
STREAM_WINDOW_BYTES = 1 << 20

RETURN_BYTES = STREAM_WINDOW_BYTES // 2  # a stream's window is updated in steps of at least this size

CONNECTION_WINDOW_BYTES = 1 << 30  # so large that it never limits: the streams' windows limit the memory

# The most streams that a client may have open; further ones are refused one by one. All sidecars together need about
# 265 (docs/csi-contract.md#calls-and-sizes-that-a-sidecar-may-send).
MAX_STREAMS = 16_384

# The largest header list accepted. It holds a driver's error message; grpc-go allows 16 MiB, C-core 16 KiB.
HEADER_LIST_BYTES = 256 << 10

MAX_BLOCK_BYTES = 256 << 10  # the largest compressed header block; the decoder limits the decoded headers, too

WRITE_HIGH_BYTES = 256 << 10  # with more unsent bytes in the transport, no further DATA is made

# With more unsent bytes, this side reads no more either: the peer causes answers (pings, resets) and reads none.
WRITE_STUCK_BYTES = 1 << 20

TURN_BYTES = 64 << 10  # the DATA that is made before the transport is asked whether it is full

# How long the answer to a ping waits for other bytes to leave with. grpc-go pings at every message to measure the
# bandwidth; a separate write for each answer would cost more than the call.
PONG_DELAY_S = 0.005

CLOSE_TIMEOUT_S = 1.0  # how long a connection that closes waits for the peer to read the written bytes

_HEAD = struct.Struct(">IBI")
_SETTING = struct.Struct(">HI")
_BLOCKS = frames.HEADERS, frames.CONTINUATION
_PONG = frames.pack_head(8 << 8 | frames.PING, frames.ACK, 0)
_SHAPE = frames.END_HEADERS | frames.PADDED | frames.PRIORITY_FLAG  # they say where the block is in HEADERS
_SIZES = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}  # fixed ones (section 6)

# Called once: True when the transport has the bytes, False when their stream ended first.
Taken = Callable[[bool], None]


class Http2Stream:
    """A stream that is not over: the base of a call of either side."""

    stream_id = 0
    send_window = 0  # the bytes of DATA that it may send; negative after the peer has made its windows smaller
    held = 0  # the received bytes of DATA that are not given back to the peer's window
    remote_ended = False  # whether the peer sends no more
    buffer: bytearray | None = None  # the beginning of a message that comes in several frames
    pieces: deque[tuple[memoryview, Taken | None]]  # the rest of each message that cannot leave yet
    ends = False  # whether the last piece ends the stream
    trailers: tuple[bytes, Taken] | None = None  # they end the stream after the last piece

    def headers_received(self, fields: list[Header]) -> None:
        """Response headers, or trailers (`remote_ended`), came in."""
        raise NotImplementedError

    def data_received(self, data: bytes, start: int, stop: int) -> None:
        raise NotImplementedError

    def was_reset(self, code: int) -> None:
        """The peer reset the stream, or broke its rules, so that this side did. It is out of `Connection.streams`."""
        raise NotImplementedError

    def join(self, part: bytes, limit_bytes: int) -> Iterator[bytes]:
        """Add a part of the messages that is not a whole one, and yield the messages that are whole now.

        Raises MessageAboveLimit: a prefix announces more than the limit; MessageCompressed: a message is compressed.
        """
        buffer = self.buffer = self.buffer or bytearray()
        buffer += part
        while len(buffer) >= PREFIX_BYTES:
            if buffer[0]:
                raise MessageCompressed
            size = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
            if size > limit_bytes:
                raise MessageAboveLimit(size)
            end = PREFIX_BYTES + size
            if len(buffer) < end:
                return
            with memoryview(buffer) as view:
                message = bytes(view[PREFIX_BYTES:end])
            del buffer[:end]
            yield message


Call = TypeVar("Call", bound=Http2Stream)


class Connection(asyncio.Protocol, Generic[Call]):
    """One connection, under asyncio or uvloop: the base of the server's and the client's.

    A subclass implements `closed`, and the other callbacks that it needs.
    """

    def __init__(self, *, client: bool) -> None:
        self.transport: asyncio.Transport | None = None  # None before and after the connection
        self.streams: dict[int, Call] = {}  # those that are not over
        self.highest_id = -1  # of a stream that the client has opened
        self.out: list[bytes | memoryview] = []  # for the next `flush`
        self.outgoing: dict[int, Http2Stream] = {}  # those whose messages wait for a window or the socket
        self.paused = False  # whether the socket is full
        self.send_window = frames.DEFAULT_WINDOW_BYTES  # the bytes of DATA that all streams together may send
        self.peer_window = frames.DEFAULT_WINDOW_BYTES  # the send window of a new stream
        self.peer_max_streams = MAX_WINDOW_BYTES  # so many streams the peer lets this side have open
        self.peer_header_list_bytes: int | None = None  # the largest that the peer accepts; None: it set no limit
        self.table_size_sent = False  # whether a header block has left, the first with `NO_DYNAMIC_TABLE`
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._decoder = Decoder(HEADER_LIST_BYTES)
        self._preface = b"" if client else frames.PREFACE  # the peer must still send it before its first frame
        self._begun = False
        self._partial_frame = b""
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and beginning of an unfinished block
        self._unreturned = 0
        self._delayable = 0  # how many of `out` are answers to pings, which may wait for company
        self._flush_due = self._in_batch = False  # whether `flush` comes at the end of the turn, or of the batch
        self._flush_late: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None

    # What a subclass adds.

    def stream_opened(self, stream_id: int, fields: list[Header], *, ended: bool) -> None:
        """Headers came on a stream that is not open."""
        raise NotImplementedError

    def settings_received(self) -> None:
        """The peer's settings came or changed."""

    def ping_acknowledged(self, data: bytes) -> None:
        """The peer answered this side's ping."""

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer takes no new streams; those above `last_stream_id` were not processed."""

    def closed(self, why: Exception | None) -> None:
        """The connection is over. Called once, with the error, or None if the peer closed it."""
        raise NotImplementedError

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        values: dict[int, int] = {
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
        }
        if self._client:
            self.out.append(frames.PREFACE)
            values[Setting.ENABLE_PUSH] = 0
        else:
            values[Setting.MAX_CONCURRENT_STREAMS] = MAX_STREAMS
        self.out.append(frames.settings(values))
        self.out.append(frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES))
        self.flush()

    # One function, because each one that a call runs costs: its code is cold when the call comes.
    def data_received(self, data: bytes) -> None:  # noqa: PLR0912, PLR0915
        if self._failure is not None:
            return
        if self._partial_frame:
            data = self._partial_frame + data
        at = 0
        end = len(data)
        is_batch = False
        try:
            if self._preface:
                at = self._read_preface(data)
            while end - at >= frames.HEADER_BYTES:
                size_and_kind, flags, stream_id = _HEAD.unpack_from(data, at)
                size = size_and_kind >> 8
                kind = size_and_kind & 0xFF
                if size > FRAME_BYTES or not self._begun:
                    self._check_head(kind, flags, size, data)
                start = at + frames.HEADER_BYTES
                stop = start + size
                if stop > end:
                    break
                at = stop
                stream_id &= frames.MAX_STREAM_ID
                if kind == frames.DATA and self._block is None:
                    if flags & frames.PADDED:
                        start, stop = _unpadded(data, start, stop)
                    self._unreturned += size
                    if self._unreturned >= CONNECTION_WINDOW_BYTES // 2:
                        self.out.append(frames.window_update(0, self._unreturned))
                        self._unreturned = 0
                    stream = self.streams.get(stream_id)
                    if stream is None:
                        self.check_not_idle(stream_id, "DATA")
                        continue
                    stream.held += size
                    if stream.remote_ended:
                        self._break_stream(stream, ErrorCode.STREAM_CLOSED)
                    elif stream.held > STREAM_WINDOW_BYTES:
                        self._break_stream(stream, ErrorCode.FLOW_CONTROL_ERROR)
                    else:
                        stream.remote_ended = bool(flags & frames.END_STREAM)
                        # Another call's DATA or HEADERS follows in this read: what both cause leaves together.
                        if stream.remote_ended and end - at > 3 and data[at + 3] <= frames.HEADERS:
                            is_batch = batch.begin() or is_batch
                        stream.data_received(data, start, stop)
                elif kind in _BLOCKS or self._block is not None:
                    block = data[start:stop]
                    if flags & _SHAPE != frames.END_HEADERS or kind != frames.HEADERS or self._block is not None:
                        flags, whole = self._join_block(kind, flags, stream_id, block)
                        if whole is None:
                            continue
                        block = whole
                    if not stream_id & 1:
                        raise Http2Error(f"it sent HEADERS on stream {stream_id}, which no client opens")  # noqa: TRY301
                    fields = self._decoder.known.get(block) or self._decoder.decode(block)
                    stream = self.streams.get(stream_id)
                    if stream is None:
                        self.stream_opened(stream_id, fields, ended=bool(flags & frames.END_STREAM))
                    elif stream.remote_ended:
                        self._break_stream(stream, ErrorCode.STREAM_CLOSED)
                    else:
                        stream.remote_ended = bool(flags & frames.END_STREAM)
                        # Another call's DATA or HEADERS follows in this read: what both cause leaves together.
                        if stream.remote_ended and end - at > 3 and data[at + 3] <= frames.HEADERS:
                            is_batch = batch.begin() or is_batch
                        stream.headers_received(fields)
                elif kind == frames.PING and size == 8 and not stream_id and not flags & frames.ACK:
                    self.out.append(_PONG + data[start:stop])
                    self._delayable += 1
                elif kind == frames.WINDOW_UPDATE and size == 4:
                    self._read_window_update(stream_id, int.from_bytes(data[start:stop], "big") & MAX_WINDOW_BYTES)
                else:
                    self._rare_frame(kind, flags, stream_id, data[start:stop])
            self._partial_frame = data[at:]
        except Http2Error as error:
            self._goaway(error.code)
            self._fail(error)
        except Exception as bug:
            log.exception("a bug in CSI Bridge ended a connection")
            self._goaway(ErrorCode.INTERNAL_ERROR)
            self._fail(bug)
        finally:
            if is_batch:
                batch.end()
        if self.out:
            if self._delayable < len(self.out):
                self.flush()
            elif self._flush_late is None:
                self._flush_late = self._loop.call_later(PONG_DELAY_S, self._flush_pongs)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()  # `flush` stops it while the peer does not read
            self._send_waiting()
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for stream_id in list(self.outgoing):
            self.drop_outgoing(stream_id)
        self.closed(self._failure or exc)

    # Sending, for subclasses and calls.

    def send_headers(self, stream_id: int, block: bytes, *, end: bool) -> None:
        """Send a header block (`hpack.encode`), which may end the stream. The caller flushes."""
        if not self.table_size_sent:
            self.table_size_sent = True
            block = NO_DYNAMIC_TABLE + block
        self.out.append(frames.header_block(stream_id, block, end=end))

    def send_message(
        self, stream: Http2Stream, message: bytes, *, end: bool = False, taken: Taken | None = None
    ) -> None:
        """Send a message, now or as windows and the socket allow; `taken` hears how it ended. The caller flushes."""
        if stream.stream_id not in self.outgoing:
            self.outgoing[stream.stream_id] = stream
            stream.pieces = deque()
        stream.pieces.append((memoryview(pack_prefix(0, len(message)) + message), taken))
        stream.ends = end
        self._send_waiting()

    def drop_outgoing(self, stream_id: int) -> None:
        """Forget the rest of a stream's messages, because it is over, and tell everybody who waits for them."""
        stream = self.outgoing.pop(stream_id, None)
        if stream is None:
            return
        (pieces, stream.pieces), (trailers, stream.trailers) = (stream.pieces, deque()), (stream.trailers, None)
        for taken in (*(taken for _, taken in pieces), trailers and trailers[1]):
            if taken is not None:
                taken(False)  # noqa: FBT003

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream with RST_STREAM, unless it is over. The caller flushes."""
        if self.streams.pop(stream_id, None) is not None:
            self.out.append(frames.rst_stream(stream_id, code))

    def give_back(self, stream: Http2Stream) -> None:
        """Return a stream's bytes to its window, once they are `RETURN_BYTES`: all of them were used."""
        if stream.held >= RETURN_BYTES and not stream.remote_ended:
            self.out.append(frames.window_update(stream.stream_id, stream.held))
            stream.held = 0
            self.flush_soon()

    def flush(self, *, at_once: bool = False) -> None:
        """Write all that is queued, at the end of the batch if there is one, or `at_once`."""
        if not at_once and (writers := batch.current.writers) is not None:
            if not self._in_batch:
                self._in_batch = True
                writers.append(partial(self.flush, at_once=True))
            return
        self._flush_due = self._in_batch = False
        transport = self.transport
        if not self.out or transport is None:
            return
        data = b"".join(self.out)
        self.out.clear()
        self._delayable = 0
        if transport.is_closing():
            return
        transport.write(data)
        if self.paused and transport.get_write_buffer_size() > WRITE_STUCK_BYTES:
            transport.pause_reading()

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def _flush_pongs(self) -> None:
        self._flush_late = None
        self.flush()

    def _send_waiting(self) -> None:
        unflushed = 0
        progress = True
        while progress and not self.paused:
            progress = False
            for stream in list(self.outgoing.values()):
                if self.outgoing.get(stream.stream_id) is stream and (sent := self._send_frame(stream)):
                    progress = True
                    unflushed += sent
            if unflushed >= TURN_BYTES:
                unflushed = 0
                self.flush(at_once=True)  # so that the transport can say that it is full

    def _send_frame(self, stream: Http2Stream) -> int:
        view, taken = stream.pieces[0]
        size = min(len(view), stream.send_window, self.send_window, FRAME_BYTES)
        if size <= 0:
            return 0
        is_whole = size == len(view)
        is_last = is_whole and len(stream.pieces) == 1
        stream.send_window -= size
        self.send_window -= size
        flags = frames.END_STREAM if is_last and stream.ends else 0
        self.out.append(frames.pack_head(size << 8 | frames.DATA, flags, stream.stream_id))
        self.out.append(view[:size])
        if not is_whole:
            stream.pieces[0] = view[size:], taken
            return size
        stream.pieces.popleft()
        trailers = None
        if is_last:
            del self.outgoing[stream.stream_id]
            # None breaks the reference cycle between the trailers' callback and the call.
            trailers = stream.trailers
            stream.trailers = None
        if taken is not None:
            taken(True)  # noqa: FBT003
        if trailers is not None:
            block, all_taken = trailers
            self.send_headers(stream.stream_id, block, end=True)
            all_taken(True)  # noqa: FBT003
        return size

    # The end.

    @property
    def open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def _goaway(self, code: int) -> None:
        self.out.append(frames.goaway(0 if self._client else max(self.highest_id, 0), code))

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._close_in_time()

    def _close_in_time(self) -> None:
        self.flush(at_once=True)
        if self.transport is not None:
            self.transport.close()
            self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Drop the connection, even if the peer does not read."""
        if self.transport is not None:
            self.transport.abort()

    # Reading what is rare.

    def _read_preface(self, data: bytes) -> int:
        # Returns the size of the part of the preface with which `data` starts.
        got = min(len(data), len(self._preface))
        if data[:got] != self._preface[:got]:
            raise Http2Error(f"it began with {data[:24]!r}, not with the HTTP/2 preface")
        self._preface = self._preface[got:]
        return got

    def _check_head(self, kind: int, flags: int, size: int, data: bytes) -> None:
        # The first frame is SETTINGS (section 3.4), and no frame is too large.
        if not self._begun and (kind != frames.SETTINGS or flags & frames.ACK or size > FRAME_BYTES):
            raise Http2Error(f"it began with {data[:24]!r}, not with HTTP/2 settings")
        if size > FRAME_BYTES:
            raise Http2Error(f"it sent a frame of {size} bytes", ErrorCode.FRAME_SIZE_ERROR)
        self._begun = True

    def _join_block(self, kind: int, flags: int, stream_id: int, payload: bytes) -> tuple[int, bytes | None]:
        """Take a HEADERS frame that is padded, has a priority or goes on, or a CONTINUATION of it.

        No other frame may come between (sections 6.2 and 6.10). Returns the flags of HEADERS, and the header block once
        it is whole.
        """
        if self._block is None and kind == frames.HEADERS:
            start = 0
            stop = len(payload)
            if flags & frames.PADDED:
                start, stop = _unpadded(payload, start, stop)
            if flags & frames.PRIORITY_FLAG:
                start += 5
            if start > stop:
                raise Http2Error("it sent a HEADERS frame too short for its priority", ErrorCode.FRAME_SIZE_ERROR)
            if flags & frames.END_HEADERS:
                return flags, payload[start:stop]
            self._block = stream_id, flags, bytearray(payload[start:stop])
            return flags, None
        if self._block is None or kind != frames.CONTINUATION or self._block[0] != stream_id:
            raise Http2Error("it sent an interrupted header block")
        _, first_flags, block = self._block
        block += payload
        if len(block) > MAX_BLOCK_BYTES or not payload:  # empty ones could go on for ever
            raise Http2Error("it sent a header block without an end", ErrorCode.ENHANCE_YOUR_CALM)
        if not flags & frames.END_HEADERS:
            return first_flags, None
        self._block = None
        return first_flags, bytes(block)

    def _rare_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        # Unknown kinds are ignored (section 4.1), and PRIORITY is (section 5.3.2).
        if len(payload) != _SIZES.get(kind, len(payload)):
            text = f"it sent a frame of kind {kind} with {len(payload)} bytes"
            raise Http2Error(text, ErrorCode.FRAME_SIZE_ERROR)
        match kind:
            case frames.RST_STREAM:
                stream = self.streams.pop(stream_id, None)
                if stream is None:
                    self.check_not_idle(stream_id, "RST_STREAM")
                else:
                    stream.was_reset(int.from_bytes(payload, "big"))
            case frames.SETTINGS:
                self._read_settings(flags, stream_id, payload)
            case frames.PUSH_PROMISE:
                raise Http2Error("it sent a PUSH_PROMISE, which is not allowed")
            case frames.PING:
                if stream_id:
                    raise Http2Error("it sent a PING on a stream")
                self.ping_acknowledged(payload)
            case frames.GOAWAY:
                if stream_id or len(payload) < 8:
                    raise Http2Error("it sent a broken GOAWAY", ErrorCode.FRAME_SIZE_ERROR)
                last_stream_id, code = struct.unpack_from(">II", payload)
                self.goaway_received(last_stream_id & frames.MAX_STREAM_ID, code, payload[8:])

    def _read_window_update(self, stream_id: int, increment: int) -> None:
        # An increment of 0 is an error of the protocol, on the connection, too (RFC 9113, 6.9).
        broken = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
        if not stream_id:
            self.send_window += increment
            if not increment or self.send_window > MAX_WINDOW_BYTES:
                raise Http2Error("it sent a broken WINDOW_UPDATE", broken)
        elif (stream := self.streams.get(stream_id)) is None:
            self.check_not_idle(stream_id, "WINDOW_UPDATE")
        else:
            stream.send_window += increment
            if not increment or stream.send_window > MAX_WINDOW_BYTES:
                self._break_stream(stream, broken)
        if self.outgoing:
            self._send_waiting()

    def _read_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error("it sent SETTINGS on a stream")
        if flags & frames.ACK:
            return
        if len(payload) % 6:
            text = f"it sent SETTINGS of {len(payload)} bytes, which is no multiple of 6"
            raise Http2Error(text, ErrorCode.FRAME_SIZE_ERROR)
        for key, value in _SETTING.iter_unpack(payload):
            self._apply_setting(key, value)
        self.out.append(frames.SETTINGS_ACK)
        self.settings_received()
        self._send_waiting()

    def _apply_setting(self, key: int, value: int) -> None:
        # This side uses neither the dynamic table nor larger frames.
        if key == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_BYTES:
                raise Http2Error("its initial window is too large", ErrorCode.FLOW_CONTROL_ERROR)
            delta = value - self.peer_window
            self.peer_window = value
            for stream in self.streams.values():
                stream.send_window += delta  # may become negative (section 6.9.2)
                if stream.send_window > MAX_WINDOW_BYTES:
                    raise Http2Error("a stream's window is too large", ErrorCode.FLOW_CONTROL_ERROR)
        elif key == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_max_streams = value
        elif key == Setting.MAX_HEADER_LIST_SIZE:
            self.peer_header_list_bytes = value
        elif key == Setting.MAX_FRAME_SIZE and not FRAME_BYTES <= value < 1 << 24:
            raise Http2Error(f"its largest frame size is {value}")
        elif key == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(f"its ENABLE_PUSH is {value}")

    def _break_stream(self, stream: Call, code: ErrorCode) -> None:
        self.reset(stream.stream_id, code)
        stream.was_reset(code)

    def check_not_idle(self, stream_id: int, what: str) -> None:
        """Raise if a stream was never opened: only HEADERS and PRIORITY may come on it (section 5.1)."""
        if not stream_id & 1 or stream_id > self.highest_id:
            raise Http2Error(f"it sent {what} on stream {stream_id}, which is not open")


def _unpadded(data: bytes, start: int, stop: int) -> tuple[int, int]:
    # Without its padding (section 6.1).
    if start == stop or data[start] >= stop - start:
        raise Http2Error("it sent a frame whose padding is longer than the frame")
    return start + 1, stop - data[start]
