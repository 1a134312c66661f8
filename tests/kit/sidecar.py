"""A sidecar: a client of csi.sock like the stock ones, on a real gRPC library with its default limits.

An `Outcome` has the data on which a sidecar decides: the code, the message, the answer. `Outcome.refusal` is code and
message.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from common.csi.methods import METHODS
from common.relay.client import Channel
from common.status import Code, Status
from tests.kit.answers import path_of

PATIENCE_S = 30.0  # the deadline of a call that must be answered; only a failing test waits so long

_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    # Without its own subchannel pool grpcio would reuse a connection of an earlier channel.
    ("grpc.use_local_subchannel_pool", 1),
]

_QUICK = [
    # csi-lib-utils waits a second between its dials; tests have less time.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The limit of a connection attempt: a busy machine needs a while for a server's first frame.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 200),
]


@dataclass(frozen=True)
class Outcome:
    """The end of a call."""

    code: Code  # the status code
    message: str  # the status message
    answer: Any = None  # the response, or the last one of a stream; bytes for a method that csi.proto does not have
    count: int = 0  # the number of responses

    @property
    def ok(self) -> bool:
        return self.code is Code.OK

    @property
    def refusal(self) -> tuple[Code, str]:
        """The code and message that a sidecar shows to the user."""
        return self.code, self.message


def refused(code: Code, message: str) -> tuple[Code, str]:
    """Return an `Outcome.refusal` to compare with."""
    return code, message


def unavailable(message: str) -> tuple[Code, str]:
    """Return the `Outcome.refusal` of a call that ended with UNAVAILABLE and this message."""
    return refused(Code.UNAVAILABLE, message)


def link_lost(to: str) -> tuple[Code, str]:
    """Return the `Outcome.refusal` of a call that was running when the link to `to` was lost."""
    return unavailable(
        f"the link to {to} was lost with the call under way; an operation that the call started may still be running, "
        f"and a retry joins it"
    )


class Pending:
    def __init__(self, call: Any) -> None:
        self._call = call

    @property
    def done(self) -> bool:
        return bool(self._call.done())

    def cancel(self) -> None:
        self._call.cancel()

    def outcome(self, *, patience_s: float = PATIENCE_S) -> Outcome:
        """Wait for its end.

        Raises:
            grpc.FutureTimeoutError: it did not end within `patience_s`.
        """
        with contextlib.suppress(grpc.FutureCancelledError):
            self._call.exception(patience_s)
        code = _code(self._call)
        answer = self._call.result() if code is Code.OK else None
        return _outcome(self._call, answer, int(answer is not None))


class Stream:
    """A streaming call: iterate over it, or take the `outcome()` of the rest."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._count = 0
        self._last: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._last = next(self._call)
        self._count += 1
        return self._last

    def cancel(self) -> None:
        self._call.cancel()

    def outcome(self) -> Outcome:
        with contextlib.suppress(grpc.RpcError):
            for _ in self:
                pass
        return _outcome(self._call, self._last, self._count)


class Sidecar:
    """One connection to a csi.sock, kept open as by the stock sidecars."""

    def __init__(self, socket: Path, *, patient: bool = False) -> None:
        """Prepare a connection; the first call makes it.

        Args:
            socket: the path of csi.sock.
            patient: it redials as csi-lib-utils does, every second, and the first call waits for the connection.
                Otherwise the back-off is short. That is also grpcio's limit for a connection attempt, which a busy
                machine can exceed.
        """
        self.socket = socket
        self._channel = grpc.insecure_channel(f"unix://{socket}", _OPTIONS if patient else [*_OPTIONS, *_QUICK])
        self._calls: set[Any] = set()  # running calls: grpcio cancels a call without a reference

    def call(self, method: str, request: Message | bytes | None = None, *, timeout_s: float | None = None) -> Outcome:
        return self.start(method, request, timeout_s=timeout_s or PATIENCE_S).outcome()

    def start(self, method: str, request: Message | bytes | None = None, *, timeout_s: float | None = None) -> Pending:
        """Begin a unary call; without `timeout_s` it has no deadline. It goes on if `Pending` is dropped."""
        path = path_of(method)
        known = METHODS.get(path)
        call: Any = self._channel.unary_unary(path, response_deserializer=known.response.FromString if known else None)
        future = call.future(_request(path, request), timeout=timeout_s)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return Pending(future)

    def stream(self, method: str, request: Message | bytes | None = None) -> Stream:
        path = path_of(method)
        call: Any = self._channel.unary_stream(path, response_deserializer=METHODS[path].response.FromString)
        return Stream(call(_request(path, request), timeout=2 * PATIENCE_S))

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def told_at_the_deadline(socket: Path, method: str, request: Message, *, timeout_s: float) -> Status:
    """Return the server's status at a call's deadline. A gRPC library's client would not wait for it."""

    async def ask() -> Status:
        channel = Channel(socket, max_message_bytes=4 << 20)
        try:
            status, _ = await channel.call(path_of(method), _request("", request), timeout_s=timeout_s).unary()
        finally:
            await channel.close()
        return status

    return asyncio.run(ask())


def _request(path: str, request: Message | bytes | None) -> bytes:
    if isinstance(request, bytes):
        return request
    message = METHODS[path].request() if request is None else request
    return bytes(message.SerializeToString())


def _code(call: Any) -> Code:
    return Code(call.code().value[0])


def _outcome(call: Any, answer: Any, count: int) -> Outcome:
    names = {name for name, _ in call.trailing_metadata() or ()}
    assert "grpc-status-details-bin" not in names, "details must be empty (CSI spec, Error Scheme)"
    return Outcome(_code(call), call.details() or "", answer, count)
