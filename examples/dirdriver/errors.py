"""An error of the driver: a gRPC code that the CSI spec names for the case, and a message for people.

Handlers raise it; `calls` turns it into the call's status. Messages say what is wrong and what to do, stay the same
from retry to retry, and never hold a secret, a mount flag or a parameter's value.
"""

import grpc


class CsiError(Exception):
    """A call that ends with another code than OK.

    Attributes:
        code: the code of the CSI spec's error table for this RPC.
        message: never empty (CSI spec, Error Scheme).
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> CsiError:
    """INVALID_ARGUMENT: a field is missing or cannot be honoured; the same request will never succeed."""
    return CsiError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> CsiError:
    """NOT_FOUND: a volume, snapshot or node that the request names does not exist."""
    return CsiError(grpc.StatusCode.NOT_FOUND, message)


def already_exists(message: str) -> CsiError:
    """ALREADY_EXISTS: the same key is taken, with other arguments."""
    return CsiError(grpc.StatusCode.ALREADY_EXISTS, message)


def precondition(message: str) -> CsiError:
    """FAILED_PRECONDITION: something else has to be done or undone first."""
    return CsiError(grpc.StatusCode.FAILED_PRECONDITION, message)


def exhausted(message: str) -> CsiError:
    """RESOURCE_EXHAUSTED: no space, no node, or no free attachment left."""
    return CsiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def out_of_range(message: str) -> CsiError:
    """OUT_OF_RANGE: a size or an offset that can never be had."""
    return CsiError(grpc.StatusCode.OUT_OF_RANGE, message)


def aborted(message: str) -> CsiError:
    """ABORTED: another operation on the same object is under way, or a page token is not ours."""
    return CsiError(grpc.StatusCode.ABORTED, message)


def internal(message: str) -> CsiError:
    """INTERNAL: the driver failed, and knows that nothing was left behind."""
    return CsiError(grpc.StatusCode.INTERNAL, message)


def unavailable(message: str) -> CsiError:
    """UNAVAILABLE: the driver failed and does not know how far it came; the caller must repeat the call.

    Sidecars take INTERNAL and UNKNOWN as final and forget the volume; they repeat UNAVAILABLE.
    """
    return CsiError(grpc.StatusCode.UNAVAILABLE, message)
