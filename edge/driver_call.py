"""A driver call: the end of a call with one answer at a vendor's driver, with the check of the answer.

Rules:

* Only a status that the vendor sent is the vendor's (`common.relay`). Any other end of a call is `VendorBroken`, which
  names the driver. An answer that does not parse counts as no answer: the caller's parser would make it a final
  INTERNAL.
* A large answer is parsed in a thread.
"""

# mypy: disable-error-code="misc"
# Only subclasses have slots: of two bases, one alone may have some.

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.errors import CallError, MessageTooLarge, VendorBroken
from common.relay.client import Channel
from common.relay.client_call import AnswerReceiver, ClientCall
from common.relay.errors import VendorAnswerTooLarge, VendorCallWithheld, VendorConnectionError
from common.status import Code, Status

PARSE_OFF_LOOP_BYTES = 262_144  # larger messages are parsed in a thread: a 4 MiB ListVolumes takes tens of milliseconds


class Result(NamedTuple):
    """The end of a call: the vendor's status, and on success the answer."""

    status: Status  # the vendor's status, unchanged
    body: bytes | None = None  # the answer's bytes; None without success
    message: Message | None = None  # the parsed body; None if it is empty, or if csi.proto lacks the method


Outcome = Result | Exception  # the end of a call: the vendor's, or an error, mostly a `CallError`

# What can be stopped of a call: the call at the driver, or the parsing of a large message; None: nothing.
AtDriver = ClientCall | asyncio.Task[None] | None


class DriverCall(AnswerReceiver):
    """The driver's end of one call. A subclass has the fields in its slots, and says what becomes of the outcome."""

    __slots__ = ()

    driver: str  # the driver's name, for messages
    node: str  # the edge node, for messages
    method: str  # the gRPC path
    at_driver: AtDriver  # what `cancel` stops

    def told(self, outcome: Outcome) -> None:
        """The call is over. It is told once, maybe before `start` returns; after `cancel` no more."""
        raise NotImplementedError

    def start(
        self,
        channel: Channel,
        request: bytes,
        *,
        timeout_s: float | None,
        to: str,
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        """Send the request, if `may_begin` allows it when the request is about to leave."""
        call = ClientCall(channel.open, self, self.method, request, timeout_s=timeout_s, to=to, may_begin=may_begin)
        channel.open(call)
        if not call.over:
            self.at_driver = call

    def cancel(self) -> None:
        call, self.at_driver = self.at_driver, None
        if call is not None:
            call.cancel()

    def answered(self, status: Status, message: bytes | None) -> None:
        """Parse the answer, a large one in a thread, and tell it."""
        self.at_driver = None  # the two would keep each other, with request and answer
        if message is not None and len(message) > PARSE_OFF_LOOP_BYTES:
            loop = asyncio.get_running_loop()
            self.at_driver = loop.create_task(self._parse(status, message), name=f"parse {self.method}")
            return
        try:
            result = Result(status, message, parsed(self.driver, self.node, self.method, message))
        except Exception as error:  # noqa: BLE001  # also a bug ends the call: nobody else would
            self.told(error)  # here, because a variable would keep the error, and its traceback this frame
        else:
            self.told(result)

    def failed(self, error: Exception) -> None:
        assert isinstance(error, VendorConnectionError)
        self.at_driver = None
        self.told(blame(self.driver, self.node, error))

    async def _parse(self, status: Status, message: bytes) -> None:
        try:
            known = await asyncio.to_thread(parsed, self.driver, self.node, self.method, message)
            outcome: Outcome = Result(status, message, known)
        except Exception as error:  # noqa: BLE001  # as above
            outcome = error
        self.told(outcome)


def parsed(driver: str, node: str, method: str, body: bytes | None) -> Message | None:
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
        raise VendorBroken(driver, node, f"its answer to {method} does not parse") from error


def blame(driver: str, node: str, error: VendorConnectionError) -> CallError:
    """Return the error of a call that has no answer from the vendor."""
    blamed: CallError
    if isinstance(error, VendorAnswerTooLarge):
        what = f"driver {driver} on edge node {node}: an answer"
        blamed = MessageTooLarge(error.size_bytes, error.limit_bytes, what)
    elif isinstance(error, VendorCallWithheld):
        blamed = lease_over(driver, node)
    else:
        blamed = VendorBroken(driver, node, str(error))
    blamed.__cause__ = error
    blamed.is_unsent = not error.sent
    return blamed


def lease_over(driver: str, node: str) -> CallError:
    """The error of a call of a shared driver. The driver may have done its work all the same."""
    return CallError(
        f"the agent on edge node {node} had no answer of the hub for --controller-lease, so it made no call to driver "
        f"{driver}, or cancelled it; a retry asks the driver again"
    )


def over_limit(driver: str, node: str, limit_s: float) -> CallError:
    """The error of an operation that was cancelled at the driver. Its key is free."""
    return CallError(
        f"driver {driver} on edge node {node} did not finish within --operation-limit ({limit_s:g} s) and the call to "
        f"it was cancelled; look at the driver's log",
        code=Code.DEADLINE_EXCEEDED,
    )
