"""Stands in for the stock livenessprobe: GET /healthz on port 9808 asks the driver whether it is ready (Probe)."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

from common.csi import csi_pb2

(_ADDRESS,) = (it.removeprefix("--csi-address=") for it in sys.argv[1:])


class _Healthz(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        try:
            with grpc.insecure_channel(
                f"unix://{_ADDRESS}", options=[("grpc.default_authority", "localhost")]
            ) as channel:
                probe = channel.unary_unary("/csi.v1.Identity/Probe", None, csi_pb2.ProbeResponse.FromString)
                answer = probe(b"", timeout=3)
            is_ready = not answer.HasField("ready") or answer.ready.value
        except grpc.RpcError:
            is_ready = False
        self.send_response(200 if is_ready else 500)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("", 9808), _Healthz).serve_forever()
