"""A fact quota: the room that each node's facts may take on the hub's disk.

Rules:

* Of a node's quota, a quarter is for its Events, and the rest for its other facts. A new fact without room is refused.
  A new Event replaces the oldest ones.
* A fact is *stray* if the hub does not know that it gave its object to the node. An honest node sends stray facts about
  objects that left it while the hub was down. They may take a small part of the quota.
* A stored fact never becomes stray: the hub accepted it. So a restart begins without stray facts.
"""

from dataclasses import dataclass, field
from typing import Final

from common.objects import Ref

FACT_QUOTA_BYTES: Final = 8 * 1_048_576
"""Of one node. A node with 1,000 pods, claims and Events has 3 MiB."""

_EVENT_PART: Final = 4
_STRAY_PART: Final = 32

ROW_BYTES: Final = 100
"""Of a row in the database, in addition to its texts: the stamp, the time, the key in its index."""


@dataclass(slots=True)
class _Used:
    """The room that one node's facts take, in bytes by object."""

    facts: dict[Ref, int] = field(default_factory=dict)
    events: dict[Ref, int] = field(default_factory=dict)
    """The oldest first."""
    stray: dict[Ref, int] = field(default_factory=dict)
    facts_bytes: int = 0
    events_bytes: int = 0
    stray_bytes: int = 0


class FactQuota:
    """Counts the bytes of all nodes' facts.

    Attributes:
        exceeded: by node: the reason why its newest facts were refused, until one is accepted.
    """

    def __init__(self, quota_bytes: int = FACT_QUOTA_BYTES) -> None:
        """Begin without facts. `quota_bytes` is for each node."""
        self._events_bytes = quota_bytes // _EVENT_PART
        self._facts_bytes = quota_bytes - self._events_bytes
        self._stray_bytes = quota_bytes // _STRAY_PART
        self._used: dict[str, _Used] = {}
        self.exceeded: dict[str, str] = {}

    def check(self, node: str, ref: Ref, size: int, *, stray: bool) -> None:
        """Check that a fact, which is no Event, has room.

        Raises:
            ValueError: it has none.
        """
        used = self._used.get(node) or _Used()
        grown = size - used.facts.get(ref, 0)
        if stray and used.stray_bytes + size - used.stray.get(ref, 0) > self._stray_bytes:
            sent = f"{self._stray_bytes} bytes of facts about objects that the hub did not give it"
        elif grown > 0 and used.facts_bytes + grown > self._facts_bytes:
            sent = f"{self._facts_bytes} bytes of facts"
        else:
            return
        self.exceeded[node] = f"node {node} sends more than {sent} (--fact-quota)"
        raise ValueError(self.exceeded[node])

    def has_room_for_event(self, node: str, ref: Ref, size: int, *, stray: bool) -> bool:
        """Whether an Event has room, once older ones are gone."""
        used = self._used.get(node) or _Used()
        room = used.stray_bytes + size - used.stray.get(ref, 0) <= self._stray_bytes
        return size <= self._events_bytes and (not stray or room)

    def oldest_events(self, node: str, ref: Ref, size: int, *, most: int) -> list[Ref]:
        """The oldest Events of a node that must go, so that `most` remain at most and this one has room."""
        used = self._used.get(node)
        if used is None:
            return []
        left = len(used.events) + (ref not in used.events)
        left_bytes = used.events_bytes - used.events.get(ref, 0) + size
        oldest = []
        for old, old_bytes in used.events.items():
            if left <= most and left_bytes <= self._events_bytes:
                break
            if old != ref:
                oldest.append(old)
                left -= 1
                left_bytes -= old_bytes
        return oldest

    def put(self, node: str, ref: Ref, size: int, *, stray: bool = False) -> None:
        """Count a stored fact. It counts as the node's newest one."""
        self.remove(node, ref)
        used = self._used.setdefault(node, _Used())
        if ref.kind == "Event":
            used.events[ref] = size
            used.events_bytes += size
        else:
            used.facts[ref] = size
            used.facts_bytes += size
            self.exceeded.pop(node, None)
        if stray:
            used.stray[ref] = size
            used.stray_bytes += size

    def remove(self, node: str, ref: Ref) -> None:
        """Count a removed fact."""
        used = self._used.get(node)
        if used is None:
            return
        used.events_bytes -= used.events.pop(ref, 0)
        used.facts_bytes -= used.facts.pop(ref, 0)
        used.stray_bytes -= used.stray.pop(ref, 0)

    def is_stray(self, node: str, ref: Ref) -> bool:
        """Whether a stored fact counts as stray."""
        return node in self._used and ref in self._used[node].stray

    def forget(self, node: str) -> None:
        """Count none of a node's facts any more."""
        self._used.pop(node, None)
        self.exceeded.pop(node, None)
