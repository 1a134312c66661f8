"""The HTTP endpoint: serves /metrics, /healthz and /readyz, and of a hub /readyz/active.

Rules:
* It runs in threads of its own. So it answers while the event loop is busy, and a health check sees a live process.
* A connection serves one request within a time limit. When there are more than `MOST_CONNECTIONS`, the oldest one is
  closed: idle clients do not block others.
* It answers no script of a web page (403 for any Origin).
* It reads no body, and its answers hold no secret. Operators use the hub's UNIX socket instead.
"""

import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from common.errors import SettingsError
from common.exposition import registry_of
from common.metrics import Metrics
from common.parsers import HostPort

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Ready = Callable[[], tuple[bool, str]]
"""Returns whether the process can do its work, and if not, a sentence with the reason."""

MOST_CONNECTIONS: Final = 32  # Enough for a Prometheus, a kubelet and a few people. Each connection is a thread.

CONNECTION_LIMIT_S: Final = 10.0
"""How long one read or write of a client may take. Prometheus' own scrape_timeout is 10 s."""

_BACKLOG: Final = 128  # connections that the kernel queues before they are accepted: more than a burst of probes
_RETRY_S: Final = 0.1  # how long to wait when the process has no file descriptor for another connection

_log = logging.getLogger("csi_bridge.http")


class HttpEndpoint:
    """Serves a process's metrics and health until `close`."""

    def __init__(self, address: HostPort, *, metrics: Metrics, ready: Ready, active: Ready | None = None) -> None:
        """Bind, and serve. SettingsError: the system refuses the address.

        `ready` is for /readyz, `active` for /readyz/active. They run in threads: they must be quick and thread-safe.
        """
        try:
            self._server = _Server(address)
        except (OSError, UnicodeError) as error:  # a name that is no host's fails in its encoding
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SettingsError("--http", str(address), f"cannot listen there: {why}") from error
        self._server.set_app(
            _application(metrics, {"/readyz": ready} | ({"/readyz/active": active} if active is not None else {}))
        )
        host, port = self._server.server_address[:2]
        self.address = HostPort(str(host), int(port))
        self._thread = threading.Thread(target=self._server.serve, name="csi-bridge-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and cut open connections. Idempotent."""
        self._server.stop()
        self._thread.join()
        self._server.server_close()


def _application(counted: Metrics, readiness: Mapping[str, Ready]) -> "WSGIApplication":
    metrics: WSGIApplication = make_wsgi_app(registry_of(counted))
    paths = ("/metrics", "/healthz", *readiness)

    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "HEAD":
            return answer(environ, start_response)
        answer({**environ, "REQUEST_METHOD": "GET"}, start_response)
        return iter([b""])  # no list: wsgiref would send a list's length as Content-Length

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if "HTTP_ORIGIN" in environ:
            return _text(
                start_response, "403 Forbidden", "this endpoint answers no web page (the request has an Origin)"
            )
        if path not in paths:
            return _text(start_response, "404 Not Found", f"this endpoint has {', '.join(paths)}")
        if environ["REQUEST_METHOD"] != "GET":
            return _text(start_response, "405 Method Not Allowed", "use GET")
        if path == "/metrics":
            return metrics(environ, start_response)
        is_ready, why = _asked(readiness[path]) if path in readiness else (True, "")
        return _text(start_response, *(("200 OK", "ok") if is_ready else ("503 Service Unavailable", why)))

    return application


def _asked(ready: Ready) -> tuple[bool, str]:
    try:
        return ready()
    except Exception:  # noqa: BLE001  # any failure of the check means "not ready"
        _log.exception("the readiness check failed")
        return False, "the readiness check failed; the log says how"


def _text(start_response: "StartResponse", status: str, text: str) -> list[bytes]:
    body = f"{text}\n".encode()
    start_response(
        status,
        [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Allow", "GET, HEAD")],
    )
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_LIMIT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's signature
        """Log nothing: there may be a probe every second."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG

    def __init__(self, address: HostPort) -> None:
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.address_family = _family(address)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind, without HTTPServer's look-up of the host's name, which hangs where no DNS answers."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

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


def _family(address: HostPort) -> socket.AddressFamily:
    infos = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return infos[0][0]


def _cut(waited_on: socket.socket) -> None:
    """Wake the thread that waits on a socket, on Linux also in accept. The thread then ends."""
    try:
        waited_on.shutdown(socket.SHUT_RDWR)
    except OSError:
        _log.debug("an HTTP connection was already gone")
