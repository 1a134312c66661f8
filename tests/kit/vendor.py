"""A vendor's CSI driver, in this process, on a real gRPC server, that a test controls.

    with Vendor(directory / "vendor.sock") as vendor:
        gate = vendor.hold("CreateVolume")
        ...  # start calls, and vendor.wait_for_call("CreateVolume")
        gate.set()

A script gets the `VendorCall`. It returns the response (a message, or raw bytes), yields responses for a streaming
method, or raises `Refusal`. Methods without a script get the answers of a working driver.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from common.csi.methods import METHODS
from common.status import Code
from tests.kit.answers import Identity, answer_of, path_of
from tests.kit.waiting import wait_for

_THREADS = 400  # more than the calls that all sidecars together keep running (265); a thread is made when it is needed

_UNLIMITED = -1


class Refusal(Exception):
    """Raised in a script: the driver answers with this code and text."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class VendorCall:
    """A call at the driver.

    Attributes:
        method: its path.
        data: the request's bytes.
    """

    def __init__(self, method: str, data: bytes, context: grpc.ServicerContext) -> None:
        self.method, self.data = method, data
        # Set when the caller has cancelled, its connection has ended, or the call was answered.
        self.over = threading.Event()
        self.answered = False  # whether the script has ended
        self.timeout_s = context.time_remaining()  # the caller's timeout in seconds, or None
        if not context.add_callback(self.over.set):
            self.over.set()

    @property
    def request(self) -> Any:
        return METHODS[self.method].request.FromString(self.data)

    @property
    def cancelled(self) -> bool:
        """Whether the caller was gone before the script ended."""
        return self.over.is_set() and not self.answered


Answer = Message | bytes
Script = Callable[[VendorCall], Answer | Iterable[Answer]]


class Vendor(grpc.GenericRpcHandler):
    """A driver on a UNIX socket."""

    def __init__(self, socket: Path, *, name: str = "vendor.test") -> None:
        self.socket = socket  # the path of the socket
        # Its answers about itself; after a change, restart the driver so that it is asked again.
        self.identity = Identity(name)
        self.lacks: set[str] = set()  # missing methods, which the gRPC library answers with UNIMPLEMENTED
        self._scripts: dict[str, Script] = {}
        self._calls: dict[str, list[VendorCall]] = defaultdict(list)
        self._gates: list[threading.Event] = []
        self._server: grpc.Server | None = None

    # -------------------- set by a test --------------------

    def on(self, method: str, script: Script) -> None:
        """From now on, answer a method (by name, or any path) with a script."""
        self._scripts[path_of(method)] = script

    def as_usual(self, method: str) -> None:
        """Answer a method as a working driver again."""
        self._scripts.pop(path_of(method), None)

    def refuse(self, method: str, code: Code, message: str) -> None:
        def script(_call: VendorCall) -> Answer:
            raise Refusal(code, message)

        self.on(method, script)

    def hold(self, method: str) -> threading.Event:
        """From now on, hold each call of a method until the event is set, then answer as usual.

        Stopping the driver sets the event.
        """
        gate = self.gate()

        def script(call: VendorCall) -> Answer:
            gate.wait()
            return answer_of(self.identity, call.method, call.data)

        self.on(method, script)
        return gate

    def gate(self) -> threading.Event:
        """Return an event that the driver's end sets, so that no thread waits for it for ever."""
        gate = threading.Event()
        self._gates.append(gate)
        return gate

    # -------------------- read by a test --------------------

    def calls(self, method: str) -> list[VendorCall]:
        return list(self._calls[path_of(method)])

    def forget_calls(self) -> None:
        self._calls.clear()

    def wait_for_call(self, method: str, number: int = 1) -> VendorCall:
        found = self._calls[path_of(method)]
        wait_for(lambda: len(found) >= number, what=f"call {number} of {method} at the vendor")
        return found[number - 1]

    # -------------------- start and stop --------------------

    def start(self) -> None:
        """Listen. A socket file at the path is replaced: the agent sees a new inode, as after a real restart."""
        self.socket.unlink(missing_ok=True)
        options = [
            ("grpc.max_receive_message_length", _UNLIMITED),
            ("grpc.max_send_message_length", _UNLIMITED),
        ]
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="vendor"), options=options)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """Stop at once; running calls are cut off."""
        if self._server is not None:
            stopped = self._server.stop(grace=None)
            for gate in self._gates:
                gate.set()
            stopped.wait()
            self._server = None

    def restart(self) -> None:
        """Stop, and start again on a new socket file."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -------------------- gRPC's side --------------------

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        method = details.method
        known = METHODS.get(method)
        scripted = method in self._scripts
        if method in {path_of(name) for name in self.lacks} or not (known or scripted):
            return None
        if known is not None and known.streaming:
            return grpc.unary_stream_rpc_method_handler(lambda data, context: self._stream(method, data, context))
        return grpc.unary_unary_rpc_method_handler(lambda data, context: self._unary(method, data, context))

    def _unary(self, method: str, data: bytes, context: grpc.ServicerContext) -> bytes:
        call = self._note(method, data, context)
        script = self._scripts.get(method)
        try:
            answer = answer_of(self.identity, method, data) if script is None else script(call)
        except Refusal as refusal:
            call.answered = True
            _refuse(context, refusal)
        call.answered = True
        assert isinstance(answer, Message | bytes)
        return _bytes(answer)

    def _stream(self, method: str, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        call = self._note(method, data, context)
        script = self._scripts.get(method)
        if script is not None:
            try:
                answers = script(call)
                assert not isinstance(answers, Message | bytes)
                for answer in answers:
                    yield _bytes(answer)
            except Refusal as refusal:
                call.answered = True
                _refuse(context, refusal)
        call.answered = True

    def _note(self, method: str, data: bytes, context: grpc.ServicerContext) -> VendorCall:
        call = VendorCall(method, data, context)
        self._calls[method].append(call)
        return call


def _refuse(context: grpc.ServicerContext, refusal: Refusal) -> None:
    code = next(code for code in grpc.StatusCode if code.value[0] == refusal.code)
    context.abort(code, refusal.message)


def _bytes(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()
