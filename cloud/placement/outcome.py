"""The outcome of a call: the meaning of its end for names and ids. Pure.

end of a create                                          its name
the hub did not send it                                  as before
a success that names a thing                             held by the node until the thing is deleted
a success that names nothing                             in doubt
CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED       in doubt
an error of another hop, or no answer                    in doubt
ALREADY_EXISTS, and the hub knows nothing of this name   in doubt
another error, for a topology without the node           as before: the vendor refuses it in any case
any other error                                          free, if the rules of `attempts` allow that
"""

from typing import Final

from cloud.placement.attempts import OpenName
from cloud.placement.claim_store import GONE_S, Holding, Standing
from cloud.placement.decisions import Keeping, Send
from cloud.placement.requests import LONGEST_CHARS, Thing, Whereabouts
from common.status import Code, Origin, Status

_NOT_FINAL: Final = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})
"""After these the sidecars retry a create, because something may exist
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget)."""


def leaves_doubt(status: Status, asked: Whereabouts, send: Send, *, is_known: bool) -> bool | None:
    """Whether a create may have made something in spite of an error (`Attempt.end`)."""
    if status.origin != Origin.VENDOR or status.code in _NOT_FINAL:
        return True
    if status.code == Code.ALREADY_EXISTS and not is_known:
        return True
    return None if _is_for_others(asked, send) else False


def stays_open(status: Status, *, is_create: bool) -> bool | None:
    """Whether a call of a driver with an elected node may run there after an error, or may run later (`Attempt.end`).

    The agent answers UNAVAILABLE only if it runs nothing of the call's key. Then a create is over, because a retry
    elsewhere is idempotent by the name, whatever the vendor still does. Any other call has to end there, unless the
    agent says that it has sent nothing of it.
    """
    if status.origin == Origin.VENDOR:
        return status.code in _NOT_FINAL
    if is_create and status.origin in {Origin.EDGE, Origin.UNSENT} and status.code == Code.UNAVAILABLE:
        return False
    return None if status.origin == Origin.UNSENT else True


def must_wait(name: OpenName, send: Send, *, in_doubt: bool | None) -> bool:
    """Whether the caller must not get a create's error, because a sidecar would forget an earlier create's volume.

    That is so if the vendor refused a topology that its node is not in, and an earlier create of the name is open. The
    caller gets the error all the same if it chose the node itself, or if the hub does not know the node's topology. In
    these cases the vendor may have answered the earlier request.
    """
    if in_doubt is not None or not send.is_placed or send.member is None or not send.member.tells_segments:
        return False
    return name.is_shared or not name.is_settled


def after_creation(name: str, things: tuple[Thing, ...]) -> dict[Thing, Holding | None]:
    """A node's holdings of things that it has made under a name."""
    return {thing: Holding(name) for thing in things}


def after_deletion(send: Send, claims: Standing, *, now: float) -> dict[Thing, Holding | None]:
    """A node's holdings of the things that it has deleted.

    An operator's deletion settles a conflict: an id that other nodes have as well, and this node according to its list
    only, or not even to its list, is theirs alone from now on.

    An id that the node was not known to have leaves nothing if it is long, or if the driver had `MOST_GONE` deletions
    within the last hour: callers can invent any number of those.
    """
    new: dict[Thing, Holding | None] = {}
    for thing in send.ends:
        entry = claims.ids[thing]
        old = entry.holders.get(send.node)
        if old is None and (len(thing.id) > LONGEST_CHARS or claims.gone_since > now - GONE_S):
            continue
        is_by_hand = send.keeping is Keeping.FIRST and not send.is_placed
        is_by_lists = old.is_listed_only if old is not None else (send.node, thing.kind) in claims.lists
        is_elsewhere = any(node != send.node and not holding.gone for node, holding in entry.holders.items())
        is_settled = is_by_hand and is_by_lists and is_elsewhere
        new[thing] = None if is_settled else Holding(old.name if old is not None else "", now)
    return new


def _is_for_others(asked: Whereabouts, send: Send) -> bool:
    """Whether the vendor was asked for a topology that its node is not in."""
    if not asked.terms or send.member is None or send.member.lacks_topology:
        return False
    return not any(map(send.member.matches, asked.terms))
