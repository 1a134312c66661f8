"""The HTTP endpoint: serves /metrics, /healthz and /readyz, and of a hub /readyz/active.

Rules:
* It runs in threads of its own. So it answers while the event loop is busy, and a health check sees a live process.
* A connection serves one request within a time limit. When there are more than `MOST_CONNECTIONS`, the oldest one is
  closed: idle clients do not block others.
* It answers no script of a web page (403 for any Origin).
* It reads no body, and its answers hold no secret. Operators use the hub's UNIX socket instead.
"""

import io
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from prometheus_client import MetricsHandler

from common.errors import SettingsError
from common.observe.exposition import registry_of
from common.observe.metrics import Metrics
from common.parsers import HostPort

Ready = Callable[[], tuple[bool, str]]  # whether the process can do its work, and if not, a sentence with the reason

MOST_CONNECTIONS: Final = 32  # Enough for a Prometheus, a kubelet and a few people. Each connection is a thread.
CONNECTION_LIMIT_S: Final = 10.0  # of one read or write of a client; Prometheus' own scrape_timeout is 10 s
_BACKLOG: Final = 128  # connections that the kernel queues before they are accepted: more than a burst of probes
_RETRY_S: Final = 0.1  # how long to wait when the process has no file descriptor for another connection

_log = logging.getLogger("csi_bridge.http")


class HttpEndpoint:
    """Serves a process's metrics and health until `close`."""

    def __init__(self, address: HostPort, *, metrics: Metrics, ready: Ready, active: Ready | None = None) -> None:
        """Bind, and serve. SettingsError: the system refuses the address.

        `ready` is for /readyz, `active` for /readyz/active. They run in threads: they must be quick and thread-safe.
        """

        class Handler(_Handler):
            registry = registry_of(metrics)
            checks: ClassVar = {"/healthz": lambda: (True, ""), "/readyz": ready} | (
                {"/readyz/active": active} if active else {}
            )

        try:
            self._server = _Server(address, Handler)
        except (OSError, UnicodeError) as error:  # a name that is no host's fails in its encoding
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SettingsError("--http", str(address), f"cannot listen there: {why}") from error
        host, port = self._server.server_address[:2]
        self.address = HostPort(str(host), int(port))
        self._thread = threading.Thread(target=self._server.serve, name="csi-bridge-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and cut open connections. Idempotent."""
        self._server.stop()
        self._thread.join()
        self._server.server_close()


class _Handler(MetricsHandler):
    timeout = CONNECTION_LIMIT_S
    checks: ClassVar[Mapping[str, Ready]]

    def do_GET(self) -> None:  # noqa: N802  # the base class's name
        path = self.path.partition("?")[0]
        if "Origin" in self.headers:
            self._answer(403, "this endpoint answers no web page (the request has an Origin)")
        elif path not in ("/metrics", *self.checks):
            self._answer(404, f"this endpoint has {', '.join(('/metrics', *self.checks))}")
        elif self.command not in {"GET", "HEAD"}:
            self._answer(405, "use GET")
        elif path == "/metrics":
            self._answer_metrics()
        else:
            is_ready, why = self._ask(self.checks[path])
            self._answer(*((200, "ok") if is_ready else (503, why)))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815  # the same

    def end_headers(self) -> None:
        super().end_headers()
        if self.command == "HEAD":
            self.wfile = io.BytesIO()  # the body goes nowhere

    def _answer_metrics(self) -> None:
        if self.command == "HEAD" or self.request_version == "HTTP/0.9":
            super().do_GET()
            return
        client = self.wfile
        self.wfile = io.BytesIO()
        super().do_GET()
        head, end, body = self.wfile.getvalue().partition(b"\r\n\r\n")
        # The library leaves the length out, and without it an answer that is cut looks whole.
        client.write(b"%s\r\nContent-Length: %d%s%s" % (head, len(body), end, body))

    def _answer(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        self.wfile.write(body)

    def _ask(self, check: Ready) -> tuple[bool, str]:
        try:
            return check()
        except Exception:  # noqa: BLE001  # any failure of the check means "not ready"
            _log.exception("the readiness check failed")
            return False, "the readiness check failed; the log says how"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG

    def __init__(self, address: HostPort, handler: type[_Handler]) -> None:
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        super().__init__((address.host, address.port), handler)

    def serve(self) -> None:
        """Accept connections until `stop`. Unlike `serve_forever`, it does not wake up twice a second."""
        while not self._stopping.is_set():
            try:
                request, client_address = self.get_request()
            except OSError:  # stopped, or no file descriptor is left: wait before the next try
                self._stopping.wait(_RETRY_S)
                continue
            try:
                self.process_request(request, client_address)
            except RuntimeError:  # no thread left
                self.handle_error(request, client_address)
                self.shutdown_request(request)

    def stop(self) -> None:
        self._stopping.set()
        _cut(self.socket)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
        if oldest is not None:
            _cut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            left = list(self._open)
        for request in left:
            _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the base class's signature
        _log.debug("an HTTP connection ended early: %r", sys.exception())


def _cut(waited_on: socket.socket) -> None:
    # Wakes the thread that waits on it, on Linux also in accept. The thread then ends.
    try:
        waited_on.shutdown(socket.SHUT_RDWR)
    except OSError:
        _log.debug("an HTTP connection was already gone")
