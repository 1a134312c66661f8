"""A call: what happens round every RPC, whatever the RPC does.

A handler is an ordinary blocking function: request in, answer out, `CsiError` for any other end. Round it come, in this
order: call log, faults, the turn of its object, a worker thread, and the translation of errors.

Once its work has begun a call is not cancelled: a caller that goes away has not undone anything (CSI spec, Timeouts),
and its retry waits for the work and finds it done.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import Message

from examples.dirdriver.errors import CsiError, translated
from tests.kit.testdriver.call_log import Call, CallLog, made
from tests.kit.testdriver.faults import Fault, Faults

log = logging.getLogger("dirdriver.calls")

Handler = Callable[[Any], Any]
"""From a request to its answer; of a streaming method to an iterator of messages."""

Context = grpc.aio.ServicerContext[Any, Any]

WORKERS = 32
"""Threads for the handlers. A call that waits (a delay, a turn, a hang) takes none."""

_KEYS = ("name", "volume_id", "snapshot_id", "group_snapshot_id")
"""Fields that name the object of a call that changes something. The first one in the request counts."""

_READING = ("Get", "List", "Validate", "Probe", "ControllerGet", "ControllerList", "GroupControllerGet", "NodeGet")
"""How the names of methods begin that change nothing: they wait for nobody."""


class Calls:
    def __init__(self, *, faults: Faults, call_log: CallLog) -> None:
        self._faults = faults
        self._log = call_log
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._workers = ThreadPoolExecutor(WORKERS, "worker")
        self._tasks: set[asyncio.Task[Any]] = set()

    def unary(self, method: str, work: Handler) -> Callable[[Any, Context], Any]:
        async def serve(request: Message, context: Context) -> Message:
            begun = asyncio.Event()
            task = asyncio.create_task(self._perform(method, work, request, begun), name=method)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                outcome = await asyncio.shield(task)
            except asyncio.CancelledError:
                if not begun.is_set():
                    task.cancel()
                raise
            if isinstance(outcome, CsiError):
                await context.abort(outcome.code, outcome.message)
            return outcome

        return serve

    def stream(self, method: str, work: Handler) -> Callable[[Any, Context], Any]:
        """What gRPC is given for a method that answers with a stream. A caller that goes away ends it."""

        async def serve(request: Message, context: Context) -> AsyncIterator[Message]:
            failure: CsiError | None = None
            with self._log.noting(method, request) as call, _ended(call):
                try:
                    await _misbehave(self._faults.of(method))
                    messages: Iterator[Message] = await self._in_thread(work, request)
                    while (message := await self._in_thread(next, messages, None)) is not None:
                        yield message
                except Exception as error:  # noqa: BLE001  # every failure is translated, in one place
                    failure = translated(method, error)
                    call.code = failure.code.name
            if failure is not None:
                await context.abort(failure.code, failure.message)

        return serve

    async def _perform(self, method: str, work: Handler, request: Any, begun: asyncio.Event) -> Message | CsiError:
        with self._log.noting(method, request) as call, _ended(call):
            try:
                fault = self._faults.of(method)
                if fault.hang:
                    await _misbehave(fault)
                async with self._turn(method, request):
                    begun.set()
                    await _misbehave(fault)
                    answer: Message = await self._in_thread(work, request)
                if fault.crash:
                    os.kill(os.getpid(), signal.SIGKILL)
                    signal.pause()  # the signal is on its way
            except Exception as error:  # noqa: BLE001  # every failure is translated, in one place
                failure = translated(method, error)
                call.code = failure.code.name
                return failure
            call.fields.update(made(answer))
            return answer

    @asynccontextmanager
    async def _turn(self, method: str, request: Any) -> AsyncIterator[None]:
        """Hold the turn of the call's object, so the retry of a slow CreateVolume finds the volume and answers with it.

        The CSI spec allows ABORTED as well (Concurrency); waiting costs the caller fewer retries.
        """
        key = next((value for field in _KEYS if (value := getattr(request, field, ""))), "")
        if method.startswith(_READING) or not key:
            yield
            return
        async with self._turns.setdefault(key, asyncio.Lock()):
            yield

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    async def close(self, *, patience_s: float) -> None:
        """Wait for the work that is under way; the rest is cut off by the process' end, as by a crash."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        self._workers.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _ended(call: Call) -> Iterator[None]:
    try:
        yield
    except BaseException:  # the caller is gone, or the server stops: failures were translated before
        call.code = grpc.StatusCode.CANCELLED.name
        raise
    call.code = call.code or grpc.StatusCode.OK.name
    log.debug("%s: %s", call.method, call.code)


async def _misbehave(fault: Fault) -> None:
    if fault.hang:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(fault.delay_s)
    if fault.error is not None:
        raise CsiError(*fault.error)
