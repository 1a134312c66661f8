"""A stranger: a client of the hub on a bare socket, which can break every rule of TLS, HTTP, WebSocket and session.

A test uses it so:

    with Stranger(hub.address) as stranger:
        stranger.upgrade()
        stranger.frames(hello("edge", "n1"))
        assert stranger.receive() == [...]
"""

import base64
import contextlib
import dataclasses
import os
import select
import socket
import ssl
import struct
from pathlib import Path
from typing import Self

from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import GET_PLUGIN_INFO, REPORTED_METHODS, Answer, DriverReport, encode_reports
from common.messages import Chunk, End, Frame, Goodbye, Hello, Kind, Open, Priority, decode, encode
from common.observe.version import introduce
from tests.kit.apart import apart

_PATIENCE_S = 60.0  # only a failing test waits so long

_LOOK_S = 0.02

_FIN, _MASKED = 0x80, 0x80
TEXT, BINARY, CLOSE, PING = 0x1, 0x2, 0x8, 0x9


@dataclasses.dataclass(frozen=True)
class Closed:
    """The hub's WebSocket close frame."""

    code: int
    reason: str


class HungUp(Exception):
    """The hub closed the connection."""


def hello(role: str, name: str, **changes: object) -> Hello:
    """Return a hello with a peer's usual limits; `changes` replaces fields."""
    usual = dataclasses.replace(
        introduce(role, name, instance="i-1", boot=1),
        max_message_bytes=4 << 20,
        stream_window_bytes=1 << 18,
        session_window_bytes=64 << 20,
        max_streams=1024,
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]  # a test knows the fields


class Stranger:
    """One connection.

    Attributes:
        address: its address in the hub's log.
    """

    def __init__(self, to: str | Path, *, tls: ssl.SSLContext | None = None, patience_s: float = _PATIENCE_S) -> None:
        """Connect. A read fails after `patience_s`."""
        self._buffer = b""
        if isinstance(to, Path):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(_PATIENCE_S)
            self._socket.connect(str(to))
            self.address = f"pid {os.getpid()} uid {os.getuid()}"
        else:
            host, _, port = to.rpartition(":")
            self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
            self.address = "{}:{}".format(*self._socket.getsockname())
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._socket.settimeout(patience_s)

    # -------------------- bytes --------------------

    def send(self, data: bytes) -> None:
        """Send bytes. An error of a closed connection is left to `read_to_end()`."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def flood(self, data: bytes, *, most: int) -> int:
        """Send until the hub hangs up, accepts no more for a second, or has `most` bytes; return the number sent."""
        sent = 0
        self._socket.settimeout(1.0)
        with contextlib.suppress(OSError):
            while sent < most:
                sent += self._socket.send(data)
        self._socket.settimeout(_PATIENCE_S)
        return sent

    def read_to_end(self) -> bytes:
        found, self._buffer = self._buffer, b""
        with contextlib.suppress(ConnectionError):
            while data := self._socket.recv(65_536):
                found += data
        return found

    def peer_certificate(self) -> bytes:
        certificate: bytes | None = self._socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]  # with TLS
        assert certificate is not None
        return certificate

    # -------------------- WebSocket --------------------

    def upgrade(self) -> None:
        self.send(upgrade_request("csi-bridge"))
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head

    def websocket(self, payload: bytes) -> None:
        """Send one WebSocket frame."""
        self.send(websocket_frame(payload))

    # -------------------- session --------------------

    def frames(self, *frames: Frame) -> None:
        """Send frames of the session in one WebSocket message."""
        self.websocket(b"".join(map(encode, frames)))

    def receive(self) -> list[Frame] | Closed:
        """Return the session's frames in the next WebSocket message, or the WebSocket's close.

        Raises:
            HungUp: the connection ended instead.
        """
        while True:
            opcode, payload = self._next()
            if opcode == BINARY:
                return list(apart(decode(payload)))
            if opcode == CLOSE:
                return Closed(struct.unpack("!H", payload[:2])[0], payload[2:].decode())

    def next_frames(self) -> list[Frame]:
        """Return the session's frames in the next WebSocket message, which must not be a close."""
        found = self.receive()
        assert isinstance(found, list), found
        return found

    def next_end(self) -> End:
        """Return the next End of a stream; other frames are passed over."""
        while True:
            for frame in self.next_frames():
                if isinstance(frame, End):
                    return frame

    def has_input(self) -> bool:
        """Return whether something has come, or comes in a moment."""
        if self._buffer or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(select.select([self._socket], [], [], _LOOK_S)[0])

    def all_frames(self) -> list[Frame]:
        found: list[Frame] = []
        with contextlib.suppress(HungUp):
            while isinstance(some := self.receive(), list):
                found += some
        return found

    def last_word(self) -> tuple[str, str]:
        """Return reason and message of the goodbye at the end."""
        goodbye = self.all_frames()[-1]
        assert isinstance(goodbye, Goodbye), goodbye
        return goodbye.reason, goodbye.message

    def greet(self, said: Hello) -> Hello:
        self.upgrade()
        self.frames(said)
        answer = self.next_frames()[0]
        assert isinstance(answer, Hello), answer
        return answer

    def report(self, node: str, driver: str, *, padding: int = 0) -> None:
        """Report a driver that has answered every question, as a newly accepted agent does."""
        info = GetPluginInfoResponse(name=driver, vendor_version="1", manifest={"padding": "x" * padding})
        answers = {method: Answer(0) for method in REPORTED_METHODS}
        answers[GET_PLUGIN_INFO] = Answer(0, body=info.SerializeToString())
        message = encode_reports([DriverReport(driver, node, answers)])
        self.frames(Open(1, Kind.REPORT, Priority.CONTROL, "", "", "", "", 0), Chunk(1, 0, message))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> tuple[int, bytes]:
        self._need(2)
        opcode, size = self._buffer[0] & 0x0F, self._buffer[1]
        start = 2
        if size == 126:
            self._need(4)
            start, (size,) = 4, struct.unpack("!H", self._buffer[2:4])
        elif size == 127:
            self._need(10)
            start, (size,) = 10, struct.unpack("!Q", self._buffer[2:10])
        self._need(start + size)
        payload, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        return opcode, payload

    def _need(self, size: int) -> None:
        while len(self._buffer) < size:
            self._more()

    def _more(self) -> None:
        try:
            data = self._socket.recv(65_536)
        except ConnectionError as error:
            raise HungUp from error
        if not data:
            raise HungUp
        self._buffer += data


def websocket_frame(payload: bytes, *, opcode: int = BINARY, fin: bool = True, size: int | None = None) -> bytes:
    """Return a client's WebSocket frame, masked with zeros; `size` replaces its true length."""
    said = len(payload) if size is None else size
    head = bytes([opcode | (_FIN if fin else 0)])
    if said < 126:
        head += bytes([_MASKED | said])
    elif said < 65_536:
        head += bytes([_MASKED | 126]) + struct.pack("!H", said)
    else:
        head += bytes([_MASKED | 127]) + struct.pack("!Q", said)
    return head + bytes(4) + payload


def upgrade_request(subprotocol: str = "csi-bridge", **changes: str) -> bytes:
    """Return a WebSocket handshake.

    `changes` replaces header fields, with underscores for dashes; an empty value removes the field.
    """
    fields = {
        "Host": "hub",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": subprotocol,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    lines = ["GET / HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
    return "\r\n".join(lines).encode()
