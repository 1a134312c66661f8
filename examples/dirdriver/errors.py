"""The errors of the driver: gRPC codes of the CSI spec, with messages for people.

A message names the fault and the remedy. It stays the same from retry to retry, and it holds no secret, mount flag or
value of a parameter.
"""

import errno
import logging
from functools import partial

import grpc

log = logging.getLogger("dirdriver.calls")


class CsiError(Exception):
    """Ends a call with another code than OK. Handlers raise it.

    Attributes:
        code: the code of the CSI spec's error table for this RPC.
        message: never empty (CSI spec, Error Scheme).
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


invalid = partial(CsiError, grpc.StatusCode.INVALID_ARGUMENT)
"""A field is missing or wrong. The same request never succeeds."""

not_found = partial(CsiError, grpc.StatusCode.NOT_FOUND)
"""A volume, snapshot or node of the request does not exist."""

already_exists = partial(CsiError, grpc.StatusCode.ALREADY_EXISTS)
"""The name or the path is in use, with other arguments."""

precondition = partial(CsiError, grpc.StatusCode.FAILED_PRECONDITION)
"""The caller must first do or undo another step."""

exhausted = partial(CsiError, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""No space or no node is left."""

out_of_range = partial(CsiError, grpc.StatusCode.OUT_OF_RANGE)
"""No volume can have this size."""

aborted = partial(CsiError, grpc.StatusCode.ABORTED)
"""Another operation on the same object is running, or a page token is not ours."""

internal = partial(CsiError, grpc.StatusCode.INTERNAL)
"""The driver failed and has left nothing behind."""

unavailable = partial(CsiError, grpc.StatusCode.UNAVAILABLE)
"""The driver failed and cannot tell how far it came. Sidecars repeat the call; after INTERNAL they do not."""


def translated(method: str, error: Exception) -> CsiError:
    """The status for an exception of a handler. An unexpected one becomes UNAVAILABLE: the caller repeats the call."""
    match error:
        case CsiError():
            return error
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return exhausted("no space left in the driver's state directory")
    log.error("%s failed", method, exc_info=error)
    return unavailable(f"{method} failed unexpectedly ({type(error).__name__}): see the driver's log")
