"""A driver call: one call with one answer to a vendor's driver, with the check of the answer.

Rules:

* Only a status that the vendor sent is the vendor's (`common.relay`). Any other end of a call is `VendorBroken`, which
  names the driver. An answer that does not parse counts as no answer: the caller's parser would make it a final
  INTERNAL.
* A large answer is parsed in a thread.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.errors import CallError, LeaseOver, MessageTooLarge, VendorBroken
from common.relay.client import Channel
from common.relay.client_call import UnaryReceiver
from common.relay.errors import VendorAnswerTooLarge, VendorCallWithheld, VendorConnectionError
from common.status import Status

PARSE_OFF_LOOP_BYTES = 262_144
"""Larger messages are parsed in a thread: a 4 MiB ListVolumes takes tens of milliseconds."""


class Result(NamedTuple):
    """The end of a call: the vendor's status, and on success the answer.

    Attributes:
        status: the vendor's status, unchanged.
        body: the answer's bytes; None without success.
        message: the parsed body; None if it is empty, or if csi.proto lacks the method.
    """

    status: Status
    body: bytes | None = None
    message: Message | None = None


Outcome = Result | Exception
"""The end of a call: the vendor's, or an error, mostly a `CallError`."""


class Cancellable(Protocol):
    """A call that can be stopped."""

    def cancel(self) -> object:
        """Stop it, unless it is over. Its end is not told any more."""


class Called(Protocol):
    """The driver, as its calls see it."""

    node: str

    @property
    def name(self) -> str:
        """Its name, for messages."""


class DriverCall(UnaryReceiver):
    """One call. It has two ends: the driver's answer (`UnaryReceiver`), and `told`.

    `told` hears the end once, maybe before `start` returns; after `cancel` it hears no more.
    """

    __slots__ = ("_call", "_driver", "_method", "_parsing", "_to", "_told")

    def __init__(self, driver: Called, method: str, to: str, told: Callable[[Outcome], None]) -> None:
        self._driver = driver
        self._method = method
        self._to = to
        self._told = told
        self._call: Cancellable | None = None
        self._parsing: asyncio.Task[None] | None = None

    def start(
        self,
        channel: Channel,
        request: bytes,
        *,
        timeout_s: float | None,
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        """Send the request, if `may_begin` allows it when the request is about to leave."""
        call = channel.start(self, self._method, request, timeout_s=timeout_s, to=self._to, may_begin=may_begin)
        if not call.over:
            self._call = call

    def cancel(self) -> None:
        """Cancel it at the driver, unless it is over."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self._parsing is not None:
            self._parsing.cancel()

    def answered(self, status: Status, message: bytes | None) -> None:
        """Parse the answer, a large one in a thread, and tell it."""
        self._call = None  # the two would keep each other, with request and answer
        if message is not None and len(message) > PARSE_OFF_LOOP_BYTES:
            loop = asyncio.get_running_loop()
            self._parsing = loop.create_task(self._parse(status, message), name=f"parse {self._method}")
            return
        try:
            result = Result(status, message, parsed(self._driver, self._method, message))
        except Exception as error:  # noqa: BLE001  # also a bug ends the call: nobody else would
            self._told(error)  # here, because a variable would keep the error, and its traceback this frame
        else:
            self._told(result)

    def failed(self, error: VendorConnectionError) -> None:
        """Tell the error as the agent's."""
        self._call = None
        self._told(blame(self._driver, self._to, error))

    async def _parse(self, status: Status, message: bytes) -> None:
        try:
            outcome: Outcome = Result(
                status, message, await asyncio.to_thread(parsed, self._driver, self._method, message)
            )
        except Exception as error:  # noqa: BLE001  # as above
            outcome = error
        self._told(outcome)


def parsed(driver: Called, method: str, body: bytes | None) -> Message | None:
    """Return an answer's message; None if it is empty, or if csi.proto lacks the method.

    Raises:
        VendorBroken: it does not parse.
    """
    known = METHODS.get(method) if body else None
    if known is None or body is None:
        return None
    try:
        return known.response.FromString(body)
    except DecodeError as error:
        raise VendorBroken(driver.name, driver.node, f"its answer to {method} does not parse") from error


def blame(driver: Called, to: str, error: VendorConnectionError) -> CallError:
    """Return the error of a call that has no answer from the vendor.

    Args:
        driver: the driver.
        to: the name for which the call was; empty for any.
        error: the connection's error.
    """
    name = to or driver.name
    blamed: CallError
    if isinstance(error, VendorAnswerTooLarge):
        what = f"driver {name} on edge node {driver.node}: an answer"
        blamed = MessageTooLarge(error.size_bytes, error.limit_bytes, what)
    elif isinstance(error, VendorCallWithheld):
        blamed = LeaseOver(name, driver.node)
    else:
        blamed = VendorBroken(name, driver.node, str(error))
    blamed.__cause__ = error
    blamed.is_unsent = not error.sent
    return blamed
