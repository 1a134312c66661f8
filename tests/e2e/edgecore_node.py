"""A node whose kubelet stands in for KubeEdge's EdgeCore: it never sees the cluster's CSINodes and CSIDrivers.

EdgeCore answers its kubelet's questions for these two kinds from its own memory, and passes all else on. So does the
proxy here, between a stock kubelet and the API server. docs/from-kubeedge.md tells how the real programs were tried.
"""

import http.client
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from tests.e2e.kubelet_node import KubeletNode
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import Object

LABEL = {"csi-bridge.io/edge": "kubeedge"}

_STORAGE = "/apis/storage.k8s.io/v1"
_HOP_HEADERS = {"connection", "host", "transfer-encoding"}
_WATCH_S = 600.0


class EdgeCoreNode(KubeletNode):
    """See the module, and `KubeletNode`."""

    def start(self) -> None:
        """Boot the machine, start runtime, kubelet and agent, wait until the node is Ready, and label it."""
        self.start_kubelet()
        self._plane.api.patch("Node", self.name, {"metadata": {"labels": LABEL}})
        self.start_agent()

    def csi_node(self) -> Object:
        """The CSINode that its kubelet has written."""
        return self._memory.csi_nodes[self.name]

    def _kubeconfig(self) -> Path:
        config = json.loads(super()._kubeconfig().read_text())
        self._memory = Memory(self._plane, token=config["users"][0]["user"]["token"])
        config["clusters"][0]["cluster"] = {"server": self._memory.url}
        path = self.directory / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def stop(self) -> None:
        super().stop()
        self._memory.close()


class Memory:
    """The proxy, with the objects that only its kubelet sees."""

    def __init__(self, plane: ControlPlane, *, token: str) -> None:
        self.csi_nodes: dict[str, Object] = {}
        self.upstream = urlsplit(plane.url)
        self.context = ssl.create_default_context(cafile=str(plane.ca))
        self.identity = {"Authorization": f"Bearer {token}"}  # a kubelet sends no token without TLS
        self.closed = threading.Event()
        handler = type("Handler", (_Handler,), {"memory": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="memory of EdgeCore", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    memory: ClassVar[Memory]

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        where = urlsplit(self.path)
        words = where.path.removeprefix(f"{_STORAGE}/").split("/")
        if words[0] == "csidrivers":
            self._answer_driver(words[1:], parse_qs(where.query))
        elif words[0] == "csinodes":
            self._answer_node(words[1:], body)
        else:
            self._pass_on(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815  # the names are the server's

    def _answer_driver(self, name: list[str], query: dict[str, list[str]]) -> None:
        if name:
            self._send(404, _not_found("csidrivers", name[0]))
        elif "watch" in query:
            self._watch(with_end="sendInitialEvents" in query)
        else:
            metadata = {"resourceVersion": "1"}
            self._send(
                200, {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriverList", "metadata": metadata, "items": []}
            )

    def _watch(self, *, with_end: bool) -> None:
        self._begin()
        if with_end:
            end = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
            bookmark = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": end, "spec": {}}
            self._send_chunk(json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n")
        self.memory.closed.wait(_WATCH_S)
        self._send_chunk(b"")

    def _answer_node(self, name: list[str], body: bytes) -> None:
        known = self.memory.csi_nodes
        if self.command in ("POST", "PUT"):
            made = json.loads(body)
            key = made["metadata"]["name"]
            version = str(
                int(known.get(key, {"metadata": {"resourceVersion": "0"}})["metadata"]["resourceVersion"]) + 1
            )
            made["metadata"] |= {"uid": f"in-memory-{key}", "resourceVersion": version}
            known[key] = made
            self._send(201 if self.command == "POST" else 200, made)
        elif self.command == "GET" and name and name[0] in known:
            self._send(200, known[name[0]])
        else:
            self._send(404, _not_found("csinodes", name[0] if name else ""))

    def _pass_on(self, body: bytes) -> None:
        memory = self.memory
        upstream = http.client.HTTPSConnection(memory.upstream.netloc, context=memory.context, timeout=_WATCH_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS}
        try:
            upstream.request(self.command, self.path, body or None, {**headers, **memory.identity})
            answer = upstream.getresponse()
            self._begin(answer.status, answer.getheaders())
            while chunk := answer.read1(1 << 16):
                self._send_chunk(chunk)
            self._send_chunk(b"")
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            upstream.close()

    def _begin(self, status: int = 200, headers: Any = (("Content-Type", "application/json"),)) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {*_HOP_HEADERS, "content-length"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send_chunk(self, chunk: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.flush()

    def _send(self, status: int, body: Object) -> None:
        self._begin(status)
        self._send_chunk(json.dumps(body).encode())
        self._send_chunk(b"")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _not_found(plural: str, name: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": f'{plural}.storage.k8s.io "{name}" not found',
        "details": {"group": "storage.k8s.io", "kind": plural, "name": name},
    }  # fmt: skip
