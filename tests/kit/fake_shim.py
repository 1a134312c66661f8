"""A stand-in for the shim of one Kata sandbox: it listens on the shim's monitor socket, and answers as strictly.

    with FakeShim(short_dir / "sbs", "sandbox-1") as shim:
        shim.usage = {"/dev/sdf": {"usage": [...]}}

It answers as Kata's Go runtime does (4.1): it decodes a device's path twice, and tells its failures with 500 and a
text.
"""

import json
import socketserver
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


class Failed(Exception):
    """The shim cannot do what it was asked for."""


class FakeShim:
    """One sandbox's shim, from `with` to its end."""

    def __init__(self, root: Path, sandbox_id: str) -> None:
        self.usage: Mapping[str, Mapping[str, Any]] = {}  # the stats by device. Another device is not in the sandbox.
        self.asked: list[tuple[str, str]] = []  # the requests: method and target
        self.raw: bytes | None = None  # bytes to answer with in place of a proper answer, and then close
        self.hold: threading.Event | None = None  # an event to wait for before any answer
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
        return json.dumps(found, separators=(",", ":")).encode()


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
        if shim.hold is not None:
            shim.hold.wait()
        if shim.raw is not None:
            self.wfile.write(shim.raw)
            self.close_connection = True
            return
        url = urlsplit(self.path)
        path = parse_qs(url.query).get("path", [""])[0]
        if url.path != "/direct-volume/stats":
            self._answer(404, b"404 page not found\n")
        elif not path:
            self._answer(400, b"Required parameter path not found")
        else:
            try:
                self._answer(200, shim.stats(unquote(path)))
            except Failed as error:
                self._answer(500, str(error).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
