"""A status: the gRPC code and message of a call's end, and the hop that made them."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Code(IntEnum):
    """gRPC's status codes (grpc/doc/statuscodes.md). Kept here so that the sans-IO modules need no gRPC library."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Origin(StrEnum):
    """The hop that made a status. The vendor's passes unchanged; the others come from `common.errors`."""

    VENDOR = "vendor"
    EDGE = "edge"
    # The agent, for a call with an epoch: nothing of this call was sent to the driver (`Open.epoch`).
    UNSENT = "edge-unsent"
    HUB = "hub"
    PROXY = "proxy"


# Readers take `grpc-status` as an int32: from any other value grpc-go makes a final status of its own.
LARGEST_CODE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended. `message` is for people, without secrets, payloads or tracebacks; empty on success."""

    code: int  # an int outside `Code` is possible: a vendor's unknown code passes unchanged
    message: str = ""
    origin: str = Origin.VENDOR

    @property
    def ok(self) -> bool:
        return not self.code


def code_name(code: int) -> str:
    """`UNAVAILABLE` for 14; `CODE_99` for a code that gRPC does not name."""
    return _NAMES.get(code) or f"CODE_{code}"


_NAMES = {int(code): code.name for code in Code}
