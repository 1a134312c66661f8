"""One HTTP/2 connection (RFC 9113) as a library: bytes in, callbacks and bytes out. No I/O.

It has the parts of HTTP/2 that gRPC uses: no push, no priorities, no upgrade. Rules:

* The connection's window is given back at once, a stream's window when its bytes were used. So a stream with a slow
  reader does not block the others.
* A received GOAWAY goes to the owner. It ends no stream: streams up to its last id finish (section 6.8).
* A frame on a stream that is over is ignored, because it may have crossed this side's RST_STREAM or trailers. Its
  headers are still decoded and its bytes counted.
* A fault of the connection raises `Http2Error`; a fault of one stream resets that stream only (section 5.4).
"""

import struct
from collections.abc import Callable
from typing import ClassVar

from common.relay import frames
from common.relay.errors import Http2Error
from common.relay.frame_reader import FrameReader
from common.relay.frames import FRAME_BYTES, MAX_WINDOW_BYTES, ErrorCode, Setting
from common.relay.hpack import NO_DYNAMIC_TABLE, Decoder
from common.relay.listener import Listener

STREAM_WINDOW_BYTES = 1 << 20
"""The bytes that a peer may send on one stream ahead of its reader. A reader that stalls costs this memory and one
message. A message of 4 MiB waits for eight window updates, which take microseconds on a UNIX socket."""

CONNECTION_WINDOW_BYTES = 1 << 30
"""So large that it never limits: the streams' windows limit the memory."""

MAX_STREAMS = 16_384
"""The most streams that a client may have open; further ones are refused one by one. All sidecars together need about
265 (docs/csi-contract.md#calls-and-sizes-that-a-sidecar-may-send)."""

HEADER_LIST_BYTES = 256 << 10
"""The largest header list accepted. It holds a driver's error message; grpc-go allows 16 MiB, C-core 16 KiB."""

_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class _Stream:
    """A stream that at least one side has not ended."""

    __slots__ = ("local_ended", "receive_window", "remote_ended", "send_window", "unreturned")

    def __init__(self, send_window: int) -> None:
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW_BYTES
        self.unreturned = 0
        self.local_ended = False
        self.remote_ended = False


class Http2:
    """One end of a connection.

    Attributes:
        peer_max_streams: how many streams the peer lets this side have open.
        peer_header_list_bytes: the largest header list that the peer accepts, None if it set no limit.
    """

    def __init__(self, listener: Listener, *, client: bool, first_stream_id: int = 1) -> None:
        """One end of a new connection. Call `start` first.

        Args:
            listener: gets the received events.
            client: whether this is the client's end.
            first_stream_id: the id of a client's first stream, odd.
        """
        self.peer_max_streams = MAX_WINDOW_BYTES
        self.peer_header_list_bytes: int | None = None
        self._listener = listener
        self._client = client
        self._streams: dict[int, _Stream] = {}
        self._next_id = first_stream_id
        self._highest_id = 0
        self._decoder = Decoder(HEADER_LIST_BYTES)
        self._peer_window = frames.DEFAULT_WINDOW_BYTES
        self._send_window = frames.DEFAULT_WINDOW_BYTES
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._unreturned = 0
        self._out: list[bytes | memoryview] = []
        self._patient = 0
        self._reader = FrameReader(b"" if client else frames.PREFACE)
        self._no_table_said = False

    # Sending.

    def start(self) -> None:
        """Queue the preface, the settings and the connection's window."""
        values: dict[int, int] = {
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
        }
        if self._client:
            self._out.append(frames.PREFACE)
            values[Setting.ENABLE_PUSH] = 0
        else:
            values[Setting.MAX_CONCURRENT_STREAMS] = MAX_STREAMS
        self._out.append(frames.settings(values))
        self._out.append(frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES))

    def take(self) -> bytes:
        """Take the queued bytes, to send them."""
        out = self._out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        self._patient = 0
        return data

    @property
    def queued(self) -> bool:
        """Whether bytes are queued."""
        return bool(self._out)

    @property
    def patient(self) -> bool:
        """Whether all queued bytes are answers to pings, and may wait some milliseconds for others to leave with.

        grpc-go pings at every message to measure the bandwidth. A separate write for each answer would cost more than
        the call.
        """
        return self._patient == len(self._out)

    @property
    def exhausted(self) -> bool:
        """Whether all stream ids are used, so that a client needs a new connection (section 5.1.1)."""
        return self._next_id > frames.MAX_STREAM_ID

    def open_stream(self, block: bytes) -> int:
        """Open a stream with a request's header block (`hpack.encode`). Returns its id."""
        stream_id = self._next_id
        self._next_id += 2
        self._streams[stream_id] = _Stream(self._peer_window)
        self._send_block(stream_id, block, end=False)
        return stream_id

    def send_headers(self, stream_id: int, block: bytes, *, end: bool) -> None:
        """Send a response's header block, or trailers (`end`)."""
        self._send_block(stream_id, block, end=end)
        if end:
            self._local_end(stream_id)

    def _send_block(self, stream_id: int, block: bytes, *, end: bool) -> None:
        if not self._no_table_said:
            self._no_table_said = True
            block = NO_DYNAMIC_TABLE + block
        self._out.append(frames.header_block(stream_id, block, end=end))

    def sendable_bytes(self, stream_id: int) -> int:
        """The largest DATA frame that this stream may send now; 0 also when the stream is over."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        return max(0, min(stream.send_window, self._send_window, FRAME_BYTES))

    def send_data(self, stream_id: int, data: bytes | memoryview, *, end: bool) -> None:
        """Send one DATA frame, no larger than `sendable_bytes` says."""
        size = len(data)
        self._streams[stream_id].send_window -= size
        self._send_window -= size
        self._out.append(frames.header(frames.DATA, frames.END_STREAM if end else 0, stream_id, size))
        self._out.append(data)
        if end:
            self._local_end(stream_id)

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream with RST_STREAM, unless it is over."""
        if self._streams.pop(stream_id, None) is not None:
            self._out.append(frames.rst_stream(stream_id, code))

    def consumed(self, stream_id: int, flow_bytes: int) -> None:
        """Give bytes that the reader has used back to a stream's window, unless the peer has ended the stream."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.remote_ended:
            return
        stream.unreturned += flow_bytes
        if stream.unreturned >= STREAM_WINDOW_BYTES // 2:
            self._out.append(frames.window_update(stream_id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def ping(self, data: bytes) -> None:
        """Send a PING with eight bytes of data."""
        self._out.append(frames.ping(data))

    def goaway(self, code: int) -> None:
        """Announce the connection's end, with the last stream that this side has seen."""
        self._out.append(frames.goaway(self._highest_id, code))

    def _local_end(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        stream.local_ended = True
        if stream.remote_ended:
            del self._streams[stream_id]

    def _remote_end(self, stream_id: int, stream: _Stream) -> None:
        stream.remote_ended = True
        if stream.local_ended:
            del self._streams[stream_id]

    # Receiving.

    def receive(self, data: bytes) -> None:
        """Take received bytes, and call the listener.

        Raises:
            Http2Error: the peer broke the protocol. A GOAWAY is queued; call `receive` no more.
        """
        try:
            for kind, flags, stream_id, payload, size in self._reader.read(data):
                if kind == frames.DATA:
                    self._data(flags, stream_id, payload, size)
                elif (take := self._TAKE.get(kind)) is not None:  # unknown kinds are ignored (section 4.1)
                    take(self, flags, stream_id, payload)
        except Http2Error as error:
            self.goaway(error.code)
            raise

    def _data(self, flags: int, stream_id: int, payload: memoryview, size: int) -> None:
        stream = self._streams.get(stream_id)
        self._receive_window -= size
        self._unreturned += size
        if self._receive_window < 0 or self._unreturned >= CONNECTION_WINDOW_BYTES // 2:
            self._return_to_connection()
        if stream is None:
            self._check_not_idle(stream_id, "DATA")
            return
        if stream.remote_ended:
            self._break_stream(stream_id, ErrorCode.STREAM_CLOSED)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._break_stream(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        ended = bool(flags & frames.END_STREAM)
        if ended:
            self._remote_end(stream_id, stream)
        self._listener.body_received(stream_id, payload, size, ended=ended)

    def _return_to_connection(self) -> None:
        if self._receive_window < 0:
            raise Http2Error("it sent more than the connection's window allows", ErrorCode.FLOW_CONTROL_ERROR)
        self._out.append(frames.window_update(0, self._unreturned))
        self._receive_window += self._unreturned
        self._unreturned = 0

    def _headers(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if not stream_id & 1:
            raise Http2Error(f"it sent HEADERS on stream {stream_id}, which no client opens")
        headers = self._decoder.decode(bytes(payload))
        stream = self._streams.get(stream_id) or self._peer_opened(stream_id)
        if stream is None:
            return
        if stream.remote_ended:
            self._break_stream(stream_id, ErrorCode.STREAM_CLOSED)
            return
        ended = bool(flags & frames.END_STREAM)
        if ended:
            self._remote_end(stream_id, stream)
        self._listener.headers_received(stream_id, headers, ended=ended)

    def _peer_opened(self, stream_id: int) -> _Stream | None:
        """The stream that a client opens with its first headers, or None if the headers open none."""
        if self._client:
            self._check_not_idle(stream_id, "HEADERS")
            return None
        if stream_id <= self._highest_id:
            return None
        self._highest_id = stream_id
        if len(self._streams) >= MAX_STREAMS:
            self._out.append(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return None
        stream = self._streams[stream_id] = _Stream(self._peer_window)
        return stream

    def _break_stream(self, stream_id: int, code: ErrorCode) -> None:
        self.reset(stream_id, code)
        self._listener.stream_reset(stream_id, code)

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        """Raise if a stream was never opened: only HEADERS and PRIORITY may come on it (section 5.1)."""
        opened = stream_id < self._next_id if self._client else stream_id <= self._highest_id
        if not stream_id & 1 or not opened:
            raise Http2Error(f"it sent {what} on stream {stream_id}, which is not open")

    def _push_promise(self, _flags: int, _stream_id: int, _payload: memoryview) -> None:
        raise Http2Error("it sent a PUSH_PROMISE, which is not allowed")

    def _rst_stream(self, _flags: int, stream_id: int, payload: memoryview) -> None:
        if self._streams.pop(stream_id, None) is None:
            self._check_not_idle(stream_id, "RST_STREAM")
            return
        self._listener.stream_reset(stream_id, _WORD.unpack(payload)[0])

    def _settings(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error("it sent SETTINGS on a stream")
        if flags & frames.ACK:
            return
        if len(payload) % 6:
            raise Http2Error("a SETTINGS frame has a broken size", ErrorCode.FRAME_SIZE_ERROR)
        for key, value in _SETTING.iter_unpack(payload):
            self._set(key, value)
        self._out.append(frames.SETTINGS_ACK)
        self._listener.settings_received()
        self._listener.window_opened()

    def _set(self, key: int, value: int) -> None:
        """Take one setting. This side uses neither the dynamic table nor larger frames."""
        if key == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_BYTES:
                raise Http2Error("its initial window is too large", ErrorCode.FLOW_CONTROL_ERROR)
            delta = value - self._peer_window
            self._peer_window = value
            for stream in self._streams.values():
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

    def _ping(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error("it sent a PING on a stream")
        if flags & frames.ACK:
            self._listener.ping_acknowledged(bytes(payload))
        else:
            self._out.append(frames.ping(bytes(payload), ack=True))
            self._patient += 1

    def _goaway(self, _flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id or len(payload) < 8:
            raise Http2Error("it sent a broken GOAWAY", ErrorCode.FRAME_SIZE_ERROR)
        last_stream_id, code = struct.unpack_from(">II", payload)
        self._listener.goaway_received(last_stream_id & 0x7FFFFFFF, code, bytes(payload[8:]))

    def _window_update(self, _flags: int, stream_id: int, payload: memoryview) -> None:
        increment = _WORD.unpack(payload)[0] & 0x7FFFFFFF
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > MAX_WINDOW_BYTES:
                raise Http2Error("it sent a broken WINDOW_UPDATE", ErrorCode.FLOW_CONTROL_ERROR)
        elif (stream := self._streams.get(stream_id)) is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        else:
            stream.send_window += increment
            if not increment or stream.send_window > MAX_WINDOW_BYTES:
                self._break_stream(stream_id, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
                return
        self._listener.window_opened()

    _TAKE: ClassVar[dict[int, Callable[["Http2", int, int, memoryview], None]]] = {
        frames.HEADERS: _headers,
        frames.RST_STREAM: _rst_stream,
        frames.SETTINGS: _settings,
        frames.PUSH_PROMISE: _push_promise,
        frames.PING: _ping,
        frames.GOAWAY: _goaway,
        frames.WINDOW_UPDATE: _window_update,
    }
    """The handler of each kind of frame. PRIORITY is deprecated and ignored (section 5.3.2)."""
