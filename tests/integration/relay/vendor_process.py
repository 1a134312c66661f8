"""A vendor's driver in a process of its own, to be killed: `vendor_process.py SOCKET`.

Echo answers at once; Hold says on standard output that a call began and never answers; Trickle streams for ever.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc


class Driver(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        name = details.method.rpartition("/")[2]
        if name == "Trickle":
            return grpc.unary_stream_rpc_method_handler(self.trickle)
        return grpc.unary_unary_rpc_method_handler(self.hold if name == "Hold" else self.echo)

    def echo(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        return request

    def hold(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        sys.stdout.write("held\n")
        sys.stdout.flush()
        threading.Event().wait()
        return b""

    def trickle(self, _request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        while True:
            yield b"x" * 1000


def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers([Driver()])
    server.add_insecure_port(f"unix://{sys.argv[1]}")
    server.start()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    server.wait_for_termination()


main()
