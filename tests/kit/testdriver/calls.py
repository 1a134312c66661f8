"""A call: what happens round every RPC, whatever the RPC does.

A handler is an ordinary blocking function: request in, answer out, `CsiError` for any other end. Round it come, in this
order: call log, faults, the turn of its object, and the translation of errors.

Once its work has begun a call is not cancelled: a caller that goes away has not undone anything (CSI spec, Timeouts),
and its retry waits for the work and finds it done.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import grpc
from google.protobuf.message import Message

from examples.dirdriver.errors import CsiError, translated
from examples.dirdriver.server import Turns
from tests.kit.testdriver.call_log import Call, CallLog, made
from tests.kit.testdriver.faults import Fault, Faults

log = logging.getLogger("dirdriver.calls")

Handler = Callable[[Any], Any]  # from a request to its answer, or to the answers of a stream

_READING = ("Get", "List", "Validate", "Probe", "ControllerGet", "ControllerList", "GroupControllerGet", "NodeGet")
"""How the names of methods begin that change nothing: they wait for nobody."""


class Calls:
    def __init__(self, *, faults: Faults, call_log: CallLog) -> None:
        self._faults = faults
        self._log = call_log
        self._turns = Turns()

    def unary(self, method: str, work: Handler) -> Callable[[Any, grpc.ServicerContext], Any]:
        def serve(request: Message, context: grpc.ServicerContext) -> Message:
            with self._around(method, request, context) as call:
                answer: Message = work(request)
                call.fields.update(made(answer))
            return answer

        return serve

    def stream(self, method: str, work: Handler) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def serve(request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
            with self._around(method, request, context):
                yield from work(request)

        return serve

    @contextmanager
    def _around(self, method: str, request: Message, context: grpc.ServicerContext) -> Iterator[Call]:
        failure: CsiError | None = None
        with self._log.noting(method, request) as call:
            try:
                fault = self._faults.of(method)
                if fault.hang:
                    _wait_until_gone(context)
                # So the retry of a slow CreateVolume finds the volume. The CSI spec allows ABORTED as well
                # (Concurrency); waiting costs the caller fewer retries.
                with nullcontext() if method.startswith(_READING) else self._turns.lock(request):
                    _misbehave(fault, context)
                    yield call
                if fault.crash:
                    os.kill(os.getpid(), signal.SIGKILL)
                call.code = grpc.StatusCode.OK.name
            except Exception as error:  # noqa: BLE001  # every failure is translated, in one place
                failure = translated(method, error)
                call.code = failure.code.name
        log.debug("%s: %s", method, call.code)
        if failure is not None:
            context.abort(failure.code, failure.message)


def _wait_until_gone(context: grpc.ServicerContext) -> None:
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait()


def _misbehave(fault: Fault, context: grpc.ServicerContext) -> None:
    if not context.is_active():  # its caller has gone while it waited
        raise CsiError(grpc.StatusCode.CANCELLED, "the caller has gone")
    time.sleep(fault.delay_s)
    if fault.error is not None:
        raise CsiError(*fault.error)
