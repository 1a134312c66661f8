"""The outcome of a call: the meaning of its end for its name. Pure.

end of a create                                          its name
the hub did not send it                                  as before
a success that names a thing                             held by the node until the thing is deleted
a success that names nothing                             in doubt
CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED       in doubt
an error of another hop, or no answer                    in doubt
ALREADY_EXISTS, and the hub knows nothing of this name   in doubt
another error, for a topology without the node           as before: the vendor refuses it in any case
any other error                                          free, if the rules of `book` allow that
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
    """Whether a call of a driver with an elected node may run there after an error, or later (`Book.end_attempt`).

    The agent answers UNAVAILABLE only if it runs nothing of the call's key. Then a create is over, because a retry
    elsewhere is idempotent by the name, also while the vendor still works. Any other call has to end there, unless the
    agent says that it has sent nothing of it.
    """
    if status.origin == Origin.VENDOR:
        return status.code in _NOT_FINAL
    if is_create and status.origin in {Origin.EDGE, Origin.UNSENT} and status.code == Code.UNAVAILABLE:
        return False
    return None if status.origin == Origin.UNSENT else True


def must_wait(info: CallInfo, route: Route, *, is_open: bool, in_doubt: bool | None) -> bool:
    """Whether the caller must not get a create's error, because a sidecar would forget an earlier create's volume.

    That is so if the vendor refused a topology that its node is not in, and an earlier create of the name is open. The
    caller gets the error all the same if it chose the node itself, or if the hub does not know the node's topology. In
    these cases the vendor may have answered the earlier request.
    """
    return in_doubt is None and is_open and info.is_placed and route.member is not None and route.member.tells_segments
