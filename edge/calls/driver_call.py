"""The end of a call at a vendor's driver: its outcome, the check of its answer, and the errors of a call without one.

Rules:

* Only a status that the vendor sent is the vendor's (`common.relay`). Any other end of a call is `VendorBroken`, which
  names the driver. An answer that does not parse counts as no answer: the caller's parser would make it a final
  INTERNAL.
* A large answer is parsed in a thread.
"""

from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.errors import CallError, MessageTooLarge, VendorBroken
from common.relay.errors import VendorAnswerTooLarge, VendorCallWithheld, VendorConnectionError
from common.status import Code, Status

PARSE_OFF_LOOP_BYTES = 262_144  # larger messages are parsed in a thread: a 4 MiB ListVolumes takes tens of milliseconds


class Result(NamedTuple):
    """The end of a call: the vendor's status, and on success the answer."""

    status: Status  # the vendor's status, unchanged
    body: bytes | None = None  # the answer's bytes; None without success
    message: Message | None = None  # the parsed body; None if it is empty, or if csi.proto lacks the method


Outcome = Result | Exception  # the end of a call: the vendor's, or an error, mostly a `CallError`


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
