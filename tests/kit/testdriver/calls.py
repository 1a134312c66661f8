"""A call: what happens round every RPC, whatever the RPC does.

A handler is an ordinary blocking function: request in, answer out, `CsiError` for any other end. Round it come, in this
order: call log, faults, the turn of its key, a worker thread, and the translation of errors.

Once its work has begun a call is not cancelled: a caller that goes away has not undone anything (CSI spec, Timeouts),
and its retry waits for the work and finds it done.
"""

import asyncio
import logging
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from examples.dirdriver import errors
from examples.dirdriver.errors import CsiError
from tests.kit.testdriver.call_log import Call, CallLog, made
from tests.kit.testdriver.faults import Fault, Faults
from tests.kit.testdriver.keys import Keys

log = logging.getLogger("dirdriver.calls")

Handler = Callable[[Any], Any]
"""From a request to its answer; of a streaming method to an iterator of messages."""

Routes = Mapping[str, Handler]
"""The methods that a service offers, by name. What a switch turned off is not there: gRPC answers UNIMPLEMENTED."""

Context = grpc.aio.ServicerContext[Any, Any]

WORKERS = 32
"""Threads for the handlers. Waiting (a delay, a key, a hang) takes none, so 300 calls in flight need no 300 threads."""


@dataclass(slots=True)
class _Progress:
    """Whether a call's work has begun, and must not be cancelled any more."""

    begun: bool = False


class Calls:
    """The calls of one server."""

    def __init__(self, *, faults: Faults, call_log: CallLog) -> None:
        self._faults = faults
        self._log = call_log
        self._keys = Keys()
        self._workers = ThreadPoolExecutor(WORKERS, "worker")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._renamed = 0

    def unary(self, method: str, work: Handler) -> Callable[[Any, Context], Any]:
        """What gRPC is given for a method that answers once."""

        async def serve(request: Message, context: Context) -> Message:
            progress = _Progress()
            task = asyncio.create_task(self._perform(method, work, request, progress), name=method)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                outcome = await asyncio.shield(task)
            except asyncio.CancelledError:
                if not progress.begun:
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
                    async for message in self._messages(method, work, request):
                        yield message
                except Exception as error:  # noqa: BLE001  # every failure is translated, in one place
                    failure = _translated(method, error)
                    call.code = failure.code.name
            if failure is not None:
                await context.abort(failure.code, failure.message)

        return serve

    async def _perform(self, method: str, work: Handler, request: Any, progress: _Progress) -> Message | CsiError:
        with self._log.noting(method, request) as call, _ended(call):
            try:
                fault = self._faults.of(method)
                await _gate(fault)
                if fault.forget:
                    request = self._renamed_request(request)
                async with self._keys.held(method, request):
                    progress.begun = True
                    await asyncio.sleep(fault.delay_s)
                    _refuse(fault)
                    answer: Message = await self._in_thread(work, request)
                _crash(fault, "after")
            except Exception as error:  # noqa: BLE001  # every failure is translated, in one place
                failure = _translated(method, error)
                call.code = failure.code.name
                return failure
            call.fields.update(made(answer))
            return answer

    async def _messages(self, method: str, work: Handler, request: Message) -> AsyncIterator[Message]:
        fault = self._faults.of(method)
        await _gate(fault)
        await asyncio.sleep(fault.delay_s)
        _refuse(fault)
        messages: Iterator[Message] = await self._in_thread(work, request)
        while (message := await self._in_thread(next, messages, None)) is not None:
            yield message
            _crash(fault, "after")

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    def _renamed_request(self, request: Any) -> Any:
        """The request as a driver sees it that never saw this name before."""
        self._renamed += 1
        copy = type(request)()
        copy.CopyFrom(request)
        suffix = f"~{os.getpid()}.{self._renamed}"
        copy.name = request.name[: 128 - len(suffix)] + suffix
        return copy

    async def close(self, *, patience_s: float) -> bool:
        """Wait for the work that is under way. Calls that only waited were cancelled by gRPC.

        Returns:
            Whether all of it ended in time; the rest is cut off by the process' end, as by a crash.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        self._workers.shutdown(wait=False, cancel_futures=True)
        return not self._tasks


@contextmanager
def _ended(call: Call) -> Iterator[None]:
    try:
        yield
    except BaseException:  # the caller is gone, or the server stops: failures were translated before
        call.code = grpc.StatusCode.CANCELLED.name
        raise
    call.code = call.code or grpc.StatusCode.OK.name
    log.debug("%s: %s", call.method, call.code)


async def _gate(fault: Fault) -> None:
    _crash(fault, "before")
    if fault.hang:
        await asyncio.get_running_loop().create_future()


def _refuse(fault: Fault) -> None:
    if fault.error is not None:
        raise CsiError(*fault.error)


def _crash(fault: Fault, moment: str) -> None:
    if fault.crash == moment:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # the signal is on its way


def _translated(method: str, error: Exception) -> CsiError:
    """The status for an exception of a handler, or of its transaction."""
    if isinstance(error, sqlite3.OperationalError):
        log.error("%s: the state database: %s", method, error)
        return errors.unavailable(f"the driver's state database cannot be used: {error}")
    return errors.translated(method, error)
