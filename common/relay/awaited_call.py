"""An awaited call: one RPC to the vendor's driver for a coroutine."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

from common.relay.client_call import ClientCall, Opener, UnaryReceiver
from common.relay.errors import VendorConnectionError
from common.status import Status


class AwaitedCall:
    """One call: iterate over it for the answer's messages, then read `status`. Or await `unary`.

    It starts when the first message is awaited. To stop early, call `cancel`. Cancelling the task that awaits a message
    cancels the call as well (RST_STREAM CANCEL).
    """

    def __init__(
        self,
        opener: Opener,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None = None,
        to: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        self._opener = opener
        self._method = method
        self._request = request
        self._timeout_s = timeout_s
        self._to = to
        self._may_begin = may_begin
        self._call: ClientCall | None = None
        self._messages: deque[bytes] = deque()
        self._status: Status | None = None
        self._error: VendorConnectionError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def status(self) -> Status:
        """The vendor's status, unchanged; known once the messages are exhausted."""
        if self._status is None or self._messages:
            raise RuntimeError(f"{self._method}: the status was read before the answer's messages were")
        return self._status

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next message; the iteration ends with the driver's status.

        Raises:
            VendorConnectionError: the call has no status of the vendor.
        """
        if self._call is None and self._error is None:
            self._start(self)
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._status is not None:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._waiter = None
        message = self._messages.popleft()
        if not self._messages and self._call is not None:
            self._call.consumed()
        return message

    async def unary(self) -> tuple[Status, bytes | None]:
        """The whole answer of a call that has one message: the status, and the message if the status is OK.

        Raises:
            VendorConnectionError: the call has no status of the vendor's, or is OK without exactly one message.
        """
        answer: asyncio.Future[tuple[Status, bytes | None]] = asyncio.get_running_loop().create_future()
        self._start(_Unary(answer))
        try:
            self._status, message = await answer
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._status, message

    def cancel(self) -> None:
        """Cancel the call with RST_STREAM (CANCEL), unless it is over."""
        self._messages.clear()
        if self._status is None and self._error is None:
            self.failed(VendorConnectionError("CSI Bridge cancelled the call", sent=True))
        if self._call is not None:
            self._call.cancel()

    async def __aenter__(self) -> Self:
        """A block that cancels the call at its end, if it is still running."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.cancel()

    def _start(self, receiver: Self | UnaryReceiver) -> None:
        self._call = ClientCall(
            self._opener,
            receiver,
            self._method,
            self._request,
            timeout_s=self._timeout_s,
            to=self._to,
            may_begin=self._may_begin,
        )
        self._opener.open(self._call)

    # The call's side.

    def took(self, _call: ClientCall, message: bytes) -> None:
        """Keep the message for its reader."""
        self._messages.append(message)
        self._wake()

    def ended(self, status: Status) -> None:
        """Raise the status to the reader, or end the iteration, after the messages before it."""
        self._status = status
        self._wake()

    def failed(self, error: VendorConnectionError) -> None:
        """Raise the error to the reader after the messages before it."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Unary(UnaryReceiver):
    """Gives a whole answer to a future."""

    def __init__(self, answer: asyncio.Future[tuple[Status, bytes | None]]) -> None:
        self._answer = answer

    def answered(self, status: Status, message: bytes | None) -> None:
        if not self._answer.done():
            self._answer.set_result((status, message))

    def failed(self, error: VendorConnectionError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
