"""The outcome of a call: the state of its name after its end. Pure.

end of a create                                            state of its name
the hub did not send it                                    as before
the vendor succeeds, and names a thing                     made: the node holds it until the thing is deleted
the vendor succeeds, and names nothing                     in doubt
CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED         in doubt
another hop answers with an error, or nobody answers       in doubt
ALREADY_EXISTS, and the hub knows nothing of this name     in doubt
another error, and the topology excludes the node          as before: the vendor refuses such a topology in any case
any other error of the vendor                              free, if the rules of `book` allow that
"""

from typing import Final

from cloud.placement.decisions import CallInfo, Route
from common.status import Code, Origin, Status

# After these the sidecars retry a create, because something may exist
# (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
_NOT_FINAL: Final = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})


def leaves_doubt(status: Status, info: CallInfo, route: Route, *, is_known: bool) -> bool | None:
    """Whether a create may have made something in spite of an error (`Book.end_attempt`)."""
    if status.origin != Origin.VENDOR or status.code in _NOT_FINAL:
        return True
    if status.code == Code.ALREADY_EXISTS and not is_known:
        return True
    member = route.member
    if not info.fields.terms or member is None or member.lacks_topology or any(map(member.matches, info.fields.terms)):
        return False
    return None


def stays_open(status: Status, *, is_create: bool) -> bool | None:
    """Whether a call of a driver with an elected node may still run there after an error (`Book.end_attempt`).

    The agent answers UNAVAILABLE only if it runs nothing with the call's key. The vendor may still work on the call.
    A create is over then: by its name, a retry on another node is idempotent. Any other call stays open, unless the
    agent says that it has sent nothing of it.
    """
    if status.origin == Origin.VENDOR:
        return status.code in _NOT_FINAL
    if is_create and status.origin in {Origin.EDGE, Origin.UNSENT} and status.code == Code.UNAVAILABLE:
        return False
    return None if status.origin == Origin.UNSENT else True


def must_wait(info: CallInfo, route: Route, *, is_open: bool, in_doubt: bool | None) -> bool:
    """Whether the caller must not get a create's error, because a sidecar would forget an earlier create's volume.

    That holds if the vendor refused a topology that its node is not in, and an earlier create of the name is open. It
    does not hold if the caller chose the node itself, or if the hub does not know the node's topology: then the error
    may be the answer to the earlier request.
    """
    return in_doubt is None and is_open and info.is_local and route.member is not None and route.member.tells_segments
