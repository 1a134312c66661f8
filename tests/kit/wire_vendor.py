"""A vendor's driver that breaks gRPC's rules: a bare HTTP/2 server that sends a test's frames one by one.

    with WireVendor(directory / "vendor.sock") as vendor:
        vendor.on("CreateVolume", lambda wire: wire.reset(ErrorCodes.INTERNAL_ERROR))

Methods without a script get the answers of a working driver, so that the bridge accepts it. It speaks HTTP/2 by `jh2`,
in a thread for each connection.
"""

import contextlib
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Self

from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.events import DataReceived, Event, RequestReceived, StreamEnded
from jh2.exceptions import ProtocolError

from common.csi.methods import METHODS
from tests.kit.answers import Identity, answer_of, path_of

_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


class Wire:
    """One call; its methods send frames."""

    def __init__(self, http2: H2Connection, sock: socket.socket, stream: int, request: bytes) -> None:
        self._http2, self._socket, self._stream = http2, sock, stream
        self.request = request  # the request's bytes

    def headers(self, *, end: bool = False, **changed: str) -> None:
        """Send response headers; `content_type="text/html"` or `status="500"` changes one of them."""
        fields = dict(_HEADERS)
        fields |= {":status" if name == "status" else name.replace("_", "-"): value for name, value in changed.items()}
        self._http2.send_headers(self._stream, list(fields.items()), end_stream=end)
        self._flush()

    def message(
        self, payload: bytes, *, compressed: bool = False, claims: int | None = None, end: bool = False
    ) -> None:
        """Send a length-prefixed message; `claims` is a false length."""
        length = len(payload) if claims is None else claims
        self.data(struct.pack(">BI", compressed, length) + payload, end=end)

    def data(self, data: bytes, *, end: bool = False) -> None:
        self._http2.send_data(self._stream, data, end_stream=end)
        self._flush()

    def trailers(self, *fields: tuple[str, str]) -> None:
        self._http2.send_headers(self._stream, list(fields), end_stream=True)
        self._flush()

    def reset(self, code: int) -> None:
        self._http2.reset_stream(self._stream, code)
        self._flush()

    def goaway(self, code: int, last_stream: int) -> None:
        self._http2.close_connection(code, last_stream_id=last_stream)
        self._flush()

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hang_up(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def answer(self, payload: bytes) -> None:
        self.headers()
        self.message(payload)
        self.trailers(("grpc-status", "0"))

    def _flush(self) -> None:
        self._socket.sendall(self._http2.data_to_send())


Script = Callable[[Wire], None]


class WireVendor:
    """A driver on a UNIX socket."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self.identity = Identity("vendor.test")  # the driver's answers about itself
        self._scripts: dict[str, Script] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: set[socket.socket] = set()

    def on(self, method: str, script: Script) -> None:
        self._scripts[path_of(method)] = script

    def as_usual(self, method: str) -> None:
        """Answer a method as a working driver again."""
        del self._scripts[path_of(method)]

    def __enter__(self) -> Self:
        self._listener.bind(str(self.socket))
        self._listener.listen()
        threading.Thread(target=self._accept, name="wire vendor", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), name="wire connection", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        http2 = H2Connection(
            H2Configuration(client_side=False, header_encoding="utf-8", validate_outbound_headers=False)
        )
        paths: dict[int, str] = {}
        bodies: dict[int, bytes] = defaultdict(bytes)
        http2.initiate_connection()
        with sock, contextlib.suppress(OSError, ProtocolError):
            sock.sendall(http2.data_to_send())
            while data := sock.recv(65536):
                for event in http2.receive_data(data):
                    self._take(event, http2, sock, paths, bodies)
                sock.sendall(http2.data_to_send())
        self._open.discard(sock)

    def _take(
        self, event: Event, http2: H2Connection, sock: socket.socket, paths: dict[int, str], bodies: dict[int, bytes]
    ) -> None:
        if isinstance(event, RequestReceived):
            paths[event.stream_id] = dict(event.headers)[":path"]
        elif isinstance(event, DataReceived):
            bodies[event.stream_id] += event.data
            http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self._answer(paths[event.stream_id], Wire(http2, sock, event.stream_id, bodies[event.stream_id][5:]))

    def _answer(self, path: str, wire: Wire) -> None:
        script = self._scripts.get(path)
        if script is not None:
            script(wire)
        elif path in METHODS:
            wire.answer(answer_of(self.identity, path, wire.request).SerializeToString())
        else:
            wire.trailers(*_HEADERS, ("grpc-status", "12"))
