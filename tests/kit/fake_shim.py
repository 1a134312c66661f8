"""A stand-in for the shim of one Kata sandbox: it listens on the shim's monitor socket, and answers as strictly.

    with FakeShim(short_dir / "sbs", "sandbox-1") as shim:
        shim.usage = {"/dev/sdf": {"usage": [...]}}

The flavours differ as Kata's two runtimes do (4.1):

* `Flavour.GO` serves any method, decodes a device's path twice, and tells its failures with 500 and a text.
* `Flavour.RUST` serves stats on POST with an absolute URL only, answers with a text for people, and closes the
  connection on any failure. `future=True` makes it one that answers with JSON.
"""

from __future__ import annotations

import json
import socketserver
import threading
from enum import Enum
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

UNIMPLEMENTED = (
    "rpc error: code = Unimplemented desc = rpc status: Status { code: UNIMPLEMENTED, message: "
    '"resize_volume is not implemented in kata-agent" }'
)
"""The answer of every released Kata's guest to a resize (≥ 4.0), in the shim's 500."""


class Flavour(Enum):
    GO = "go"
    RUST = "rs"


class Failed(Exception):
    """The shim cannot do what it was asked for."""


class FakeShim:
    """One sandbox's shim, from `with` to its end.

    Attributes:
        usage: the stats by device. Another device is not in the sandbox.
        resize_error: the error of each resize; empty: the guest does it.
        resizes: the resizes that were done: device and size.
        asked: the requests: method and target.
        raw: bytes to answer with in place of a proper answer, and then close.
        hold: an event to wait for before any answer.
    """

    def __init__(self, root: Path, sandbox_id: str, flavour: Flavour = Flavour.GO, *, future: bool = False) -> None:
        self.flavour, self.future = flavour, future
        self.usage: Mapping[str, Mapping[str, Any]] = {}
        self.resize_error = UNIMPLEMENTED
        self.resizes: list[tuple[str, int]] = []
        self.asked: list[tuple[str, str]] = []
        self.raw: bytes | None = None
        self.hold: threading.Event | None = None
        self.path = root / sandbox_id / "shim-monitor.sock"

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = _Server(str(self.path), _Handler)
        self._server.shim = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End as a killed shim does: its socket's file stays."""
        if self.hold is not None:
            self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def stats(self, device: str) -> bytes:
        found = self.usage.get(device)
        if found is None:
            raise Failed(f"mount {device} not found in sandbox")
        if self.flavour is Flavour.GO or self.future:
            return json.dumps(found, separators=(",", ":")).encode()
        return f"Usage: [VolumeUsage {found}] Volume Condition: VolumeCondition {{ abnormal: false }}".encode()

    def resize(self, device: str, size_bytes: int) -> None:
        if self.resize_error:
            raise Failed(self.resize_error)
        self.resizes.append((device, size_bytes))


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    shim: FakeShim

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client may leave early."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        shim = self.server.shim
        shim.asked.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if shim.hold is not None:
            shim.hold.wait()
        if shim.raw is not None:
            self.wfile.write(shim.raw)
            self.close_connection = True
            return
        try:
            answer = self._go(shim, body) if shim.flavour is Flavour.GO else self._rust(shim, body)
        except Failed as error:
            if shim.flavour is Flavour.GO:
                self._answer(500, str(error).encode())
            self.close_connection = True
        else:
            self._answer(*answer)

    do_POST = do_GET  # noqa: N815  # the base class looks for this name

    def _go(self, shim: FakeShim, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(self.path)
        if url.path == "/direct-volume/stats":
            path = parse_qs(url.query).get("path", [""])[0]
            return (200, shim.stats(unquote(path))) if path else (400, b"Required parameter path not found")
        if url.path == "/direct-volume/resize":
            found = {key.lower(): value for key, value in json.loads(body).items()}
            device, size = found.get("volumepath", ""), found.get("size", 0)
            if not (isinstance(device, str) and type(size) is int and 0 <= size < 2**64):
                raise Failed("json: cannot unmarshal string into Go struct field ResizeRequest.Size of type uint64")
            shim.resize(device, size)
            return 200, b""
        return 404, b"404 page not found\n"

    def _rust(self, shim: FakeShim, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(self.path)
        if (self.command, url.path) == ("POST", "/direct-volume/stats"):
            if not url.scheme:
                raise Failed("relative URL without a base")
            found = parse_qs(url.query)
            if "path" not in found:
                raise Failed("volume path key not found in request params")
            return 200, shim.stats(found["path"][0])
        if (self.command, url.path) == ("POST", "/direct-volume/resize"):
            asked = json.loads(body)
            device, size = asked.get("volume_guest_path"), asked.get("size")
            if not (isinstance(device, str) and type(size) is int and 0 <= size < 2**64):
                raise Failed("deserialize resizeRequest failed")
            shim.resize(device, size)
            return 200, b""
        return 404, b"URL NOT FOUND"

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
