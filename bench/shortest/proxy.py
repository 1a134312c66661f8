"""The proxy driver: an HTTP/2 server whose calls go to one node, over a link to the hub."""

import asyncio
import heapq
import random
import time

from bench.shortest import books
from bench.shortest.http2 import END_HEADERS, END_STREAM, HEADERS, PREFACE, Connection, frame, literal
from bench.shortest.link import ACKNOWLEDGEMENT, CALL, Link

_UNITS_S = {ord("H"): 3600.0, ord("M"): 60.0, ord("S"): 1.0, ord("m"): 1e-3, ord("u"): 1e-6, ord("n"): 1e-9}
_BEGINS = {b":method": b"POST", b"content-type": b"application/grpc"}
_HEADERS = b"\x88\x0f\x10\x10application/grpc"
_OK = literal(b"grpc-status", b"0")
_DEADLINE_EXCEEDED = 4


class Call:
    """A call from the sidecar's request to its answer."""

    __slots__ = ("began", "caller", "caller_stream", "heading", "request_bytes")


class Caller(Connection):
    """A sidecar's connection."""

    awaits, begins_with = PREFACE, b""

    def __init__(self, to_hub: "ToHub") -> None:
        super().__init__()
        self._to_hub = to_hub
        self._heads: dict[int, tuple[bytes, float]] = {}

    def got_headers(self, stream: int, block: bytes, _flags: int) -> None:
        method, timeout_s = b"", 0.0
        for name, value, _ in self.decoder.decode(block, raw=True):
            if name == b":path":
                method = value
            elif name == b"grpc-timeout":
                timeout_s = int(value[:-1]) * _UNITS_S[value[-1]]
            elif name in _BEGINS and not value.startswith(_BEGINS[name]):
                raise SystemExit("a request is not of gRPC")
        self._heads[stream] = method, timeout_s

    def got_message(self, stream: int, message: bytes) -> None:
        self._to_hub.open(self, stream, *self._heads.pop(stream), message)

    def answer(self, stream: int, code: int, text: bytes, body: bytes) -> None:
        if code == 0:
            self.send(stream, _HEADERS, body, 0, frame(HEADERS, END_HEADERS | END_STREAM, stream, _OK))
        else:
            status = literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", text[:120])
            self.transport.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, _HEADERS + status))


class ToHub(Link):
    """The link to the hub."""

    dials = True

    def __init__(self, driver: str, node: str) -> None:
        super().__init__()
        self._driver, self._node = driver.encode(), node.encode()
        self._deadlines: list[tuple[float, int]] = []
        self._alarm: asyncio.TimerHandle | None = None

    def open(self, caller: Caller, caller_stream: int, method: bytes, timeout_s: float, request: bytes) -> None:
        call = Call()
        call.caller, call.caller_stream, call.request_bytes = caller, caller_stream, len(request)
        call.heading = b"\n".join((self._driver, method, self._node, b"%016x" % random.getrandbits(64)))
        call.began = time.monotonic()
        stream = self.add(call)
        if timeout_s:
            heapq.heappush(self._deadlines, (call.began + timeout_s, stream))
            if self._alarm is None:
                self._alarm = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        self.send(CALL, stream, int(timeout_s * 1000), call.heading, request)

    def answered(self, stream: int, code: int, text: bytes, body: bytes) -> None:
        self.later(ACKNOWLEDGEMENT, stream)
        if (call := self.calls.pop(stream, None)) is not None:  # else its deadline has passed
            self._end(call, code, text, body)

    def _end(self, call: Call, code: int, text: bytes, body: bytes) -> None:
        call.caller.answer(call.caller_stream, code, text, body)
        books.ended(call.heading, call.began, code, call.request_bytes, len(body))
        while self._deadlines and self._deadlines[0][1] not in self.calls:
            heapq.heappop(self._deadlines)

    def _expire(self) -> None:
        self._alarm, now = None, time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            if (call := self.calls.pop(heapq.heappop(self._deadlines)[1], None)) is not None:
                self._end(call, _DEADLINE_EXCEEDED, b"no answer in time", b"")
        if self._deadlines:
            self._alarm = asyncio.get_running_loop().call_later(max(0.001, self._deadlines[0][0] - now), self._expire)
