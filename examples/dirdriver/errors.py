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
    """Ends a call with another code than OK. Handlers raise it."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


invalid = partial(CsiError, grpc.StatusCode.INVALID_ARGUMENT)  # the same request never succeeds
not_found = partial(CsiError, grpc.StatusCode.NOT_FOUND)
already_exists = partial(CsiError, grpc.StatusCode.ALREADY_EXISTS)  # the name or the path, with other arguments
precondition = partial(CsiError, grpc.StatusCode.FAILED_PRECONDITION)  # the caller must first do or undo another step
exhausted = partial(CsiError, grpc.StatusCode.RESOURCE_EXHAUSTED)  # no space or no node is left
out_of_range = partial(CsiError, grpc.StatusCode.OUT_OF_RANGE)  # no volume can have this size
aborted = partial(CsiError, grpc.StatusCode.ABORTED)  # another operation on it runs, or a foreign page token
internal = partial(CsiError, grpc.StatusCode.INTERNAL)  # the driver has left nothing behind
# The driver cannot tell how far it came. Sidecars repeat the call; after INTERNAL they do not.
unavailable = partial(CsiError, grpc.StatusCode.UNAVAILABLE)


def translated(method: str, error: Exception) -> CsiError:
    """The status for an exception of a handler. An unexpected one becomes UNAVAILABLE: the caller repeats the call."""
    match error:
        case CsiError():
            return error
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return exhausted("no space left in the driver's state directory")
    log.error("%s failed", method, exc_info=error)
    return unavailable(f"{method} failed unexpectedly ({type(error).__name__}): see the driver's log")
