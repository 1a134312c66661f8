"""The agent: passes calls of the hub on to the driver's socket, and keeps successes until they are acknowledged."""

import functools
import time
from typing import Any

from bench.shortest import books
from bench.shortest.http2 import END_STREAM, Connection, literal
from bench.shortest.link import ANSWER, HELLO, Link
from common.csi import csi_pb2 as csi

_CONTROLLER = b"/csi.v1.Controller/"
_CREATE, _DELETE = _CONTROLLER + b"CreateVolume", _CONTROLLER + b"DeleteVolume"
_KEYS = {
    _CREATE: (csi.CreateVolumeRequest.FromString, "name"),
    _DELETE: (csi.DeleteVolumeRequest.FromString, "volume_id"),
}
"""How to read the request of an operation, and which field identifies it."""

_ANSWERS = {
    _CREATE: csi.CreateVolumeResponse.FromString,
    _DELETE: csi.DeleteVolumeResponse.FromString,
    _CONTROLLER + b"ValidateVolumeCapabilities": csi.ValidateVolumeCapabilitiesResponse.FromString,
}
_INDEXED = frozenset(range(0x80, 0xFF))
"""A block of such bytes alone names fields of the table, and changes nothing there (RFC 7541, 6.1)."""


class Call:
    """A call from the hub's frame to the driver's answer."""

    __slots__ = ("answer", "began", "heading", "key", "method", "request_bytes", "stream")


@functools.lru_cache(256)
def _headers(method: bytes) -> bytes:
    fields = b"\x01\x09localhost" + literal(b"te", b"trailers") + b"\x0f\x10\x10application/grpc\x0f\x2b\x0acsi-bridge"
    return b"\x83\x86\x04" + bytes((len(method),)) + method + fields


class ToDriver(Connection):
    """The connection to the driver."""

    to_hub: "ToHub"

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, Call] = {}
        self._next = 1
        self._known: dict[bytes, list[tuple[bytes, bytes, bool]]] = {}

    def open(self, call: Call, timeout_ms: int, request: bytes) -> None:
        stream = self._next
        self._next = stream + 2
        self._calls[stream] = call
        timeout = literal(b"grpc-timeout", b"%dm" % timeout_ms) if timeout_ms else b""
        self.send(stream, _headers(call.method) + timeout, request, END_STREAM)

    def got_message(self, stream: int, message: bytes) -> None:
        self._calls[stream].answer = message

    def got_headers(self, stream: int, block: bytes, flags: int) -> None:
        fields = self._known.get(block)
        if fields is None:
            fields = self.decoder.decode(block, raw=True)
            if _INDEXED.issuperset(block):
                self._known[block] = fields
            else:
                self._known.clear()
        if flags & END_STREAM:
            status = {name: value for name, value, _ in fields}
            self.to_hub.ended(self._calls.pop(stream), int(status[b"grpc-status"]), status.get(b"grpc-message", b""))


class ToHub(Link):
    """The link to the hub, and the operations."""

    dials = True

    def __init__(self, node: str, driver: ToDriver) -> None:
        super().__init__()
        self._node, self._driver = node.encode(), driver
        self._operations: dict[tuple[bytes, bytes, str], Call] = {}
        driver.to_hub = self

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.send(HELLO, self.add(None), 0, self._node, b"")

    def called(self, stream: int, timeout_ms: int, heading: bytes, request: bytes) -> None:
        driver, method, _, _ = heading.split(b"\n")
        call = self.calls[stream] = Call()
        call.stream, call.heading, call.method, call.key = stream, heading, method, None
        call.began, call.request_bytes, call.answer = time.monotonic(), len(request), b""
        if (identified := _KEYS.get(method)) is not None:
            read, field = identified
            call.key = key = driver, method, getattr(read(request), field)
            if key in self._operations:
                raise SystemExit("a retry should join its operation, or get the kept success")
            self._operations[key] = call
        self._driver.open(call, timeout_ms, request)

    def ended(self, call: Call, code: int, text: bytes) -> None:
        if code == 0:
            _ANSWERS[call.method](call.answer)  # a success counts only if it can be read
        elif call.key is not None:
            del self._operations[call.key]
        self.send(ANSWER, call.stream, code, text, call.answer)
        books.ended(call.heading, call.began, code, call.request_bytes, len(call.answer))

    def acknowledged(self, stream: int) -> None:
        call = self.calls.pop(stream)
        if call.key is not None:
            self._operations.pop(call.key, None)
