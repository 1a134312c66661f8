"""HTTP/2 by hand: frames as bytes, and both of our ends without a socket."""

import asyncio
from collections.abc import Callable
from functools import partial

from common.relay.client_call import AnswerReceiver, ClientCall
from common.relay.client_connection import ClientConnection
from common.relay.errors import VendorConnectionError, VendorUnreachable
from common.relay.frames import PREFACE
from common.relay.server import Callee, Server, ServerCall, ServerConnection, ServerSettings
from common.status import Code, Status

Frame = tuple[int, int, int, bytes]  # kind, flags, stream id, payload


def wire(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame, written by hand."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def cut_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames in these bytes, and the bytes after them."""
    found, at = [], 0
    while len(data) - at >= 9 and len(data) >= (end := at + 9 + int.from_bytes(data[at : at + 3], "big")):
        found.append((data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : end]))
        at = end
    return found, data[at:]


def fields(*pairs: tuple[str, str]) -> bytes:
    """A header block of plain literals, written by hand (names and values below 127 bytes)."""
    block = b"\x20"
    for name, value in pairs:
        block += b"\0" + b"".join(bytes((len(text),)) + text for text in (name.encode(), value.encode()))
    return block


def message(payload: bytes) -> bytes:
    """A message of gRPC, as it goes into DATA."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


SETTINGS = wire(4, 0, 0)
REQUEST = {
    ":method": "POST", ":scheme": "http", ":path": "/a/B", "content-type": "application/grpc", "te": "trailers",
}  # fmt: skip
ANSWER = fields((":status", "200"), ("content-type", "application/grpc"))


class Wire(asyncio.Transport):
    """A transport without a socket, whose peer reads everything at once."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.writes: list[bytes] = []  # what was written
        self.aborts = 0  # how often it was aborted
        self.ends = True  # whether the connection ends when this side closes it
        self._protocol, self._closing, self._lost = protocol, False, False
        protocol.connection_made(self)

    def lose(self) -> None:
        """The connection ends."""
        if not self._lost:
            self._closing = self._lost = True
            self._protocol.connection_lost(None)

    def frames(self) -> list[Frame]:
        """The frames that were written since the last look."""
        found, rest = cut_frames(b"".join(self.writes).removeprefix(PREFACE))
        assert rest == b""
        self.writes.clear()
        return found

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self._closing = True
        if self.ends:
            asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self.aborts += 1
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        """It gets bytes from the test alone."""

    def resume_reading(self) -> None:
        """It gets bytes from the test alone."""


class Serving:
    """The server's end of a connection. `handler` answers its calls; without one they wait."""

    def __init__(self, handler: Callable[[ServerCall], Callee | None] | None = None, limit: int = 1 << 20) -> None:
        settings = ServerSettings(
            max_message_bytes=limit,
            on_error=lambda error: Status(Code.UNAVAILABLE, getattr(error, "name", type(error).__name__)),
            max_connections=10,
        )
        self.calls: list[ServerCall] = []  # the calls that came
        self.left = 0  # how many waiting calls were cancelled
        self._handler = handler
        self.server = Server(self._take, settings)
        self.connection = ServerConnection(self.server)
        self.wire = Wire(self.connection)

    def _take(self, call: ServerCall) -> Callee | None:
        self.calls.append(call)
        return self if self._handler is None else self._handler(call)

    def cancel(self) -> None:
        self.left += 1

    def receive(self, *parts: bytes) -> None:
        self.connection.data_received(b"".join(parts))

    def begun(self) -> "Serving":
        """The client has said hello."""
        self.receive(PREFACE, SETTINGS)
        self.wire.writes.clear()
        return self


class Ends(AnswerReceiver):
    """Notes the ends of calls, and the messages of a call with one answer."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.seen: list[object] = []
        self._then = then

    def answered(self, status: Status, message: bytes | None) -> None:
        self.seen.append((status, message))
        self._then()

    def failed(self, error: VendorConnectionError) -> None:
        self.seen.append(error)
        self._then()


class Messages(Ends):
    """Notes the messages of a call with any number of them, and its end."""

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__()
        self._reads = reads

    def took(self, call: ClientCall, message: bytes) -> None:
        self.seen.append(message)
        if self._reads:
            call.consumed()

    def answered(self, status: Status, _message: bytes | None) -> None:
        self.seen.append(status)


class Calling:
    """The client's end of a connection, for calls of any kind."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.connection = ClientConnection("/d.sock", limit, lambda _: None)
        self.wire = Wire(self.connection)

    def open(self, call: ClientCall) -> None:
        if self.connection.usable:
            self.connection.begin(call)
        else:
            call.fail(VendorUnreachable(self.connection.path, "the connection is over"))

    def call(self, receiver: AnswerReceiver, request: bytes = b"", method: str = "/a/B") -> ClientCall:
        call = ClientCall(self.open, method, request, timeout_s=None)
        call.receiver = receiver
        if isinstance(receiver, Messages):
            call.took = partial(receiver.took, call)
        self.open(call)
        return call

    def receive(self, *parts: bytes) -> None:
        self.connection.data_received(b"".join(parts))

    def begun(self) -> "Calling":
        """The driver has said hello."""
        self.receive(SETTINGS)
        self.wire.writes.clear()
        return self
