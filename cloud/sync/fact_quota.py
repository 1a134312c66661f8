"""A fact quota: the room that each node's facts may take in the hub's memory and records.

Rules:

* A new fact without room is refused.
* A fact is *stray* if the hub does not know that it gave its object to the node. An honest node sends stray facts about
  objects that left it while the hub was down. They may take a small part of the quota.
* A stored fact never becomes stray: the hub accepted it. So a restart begins without stray facts.
* What keeps volumes from other nodes has less room: it stands in the node's object (`cloud.records.records`).
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from common import sole_use
from common.objects import Ref

FACT_QUOTA_BYTES: Final = 8 * 1_048_576  # Of one node. A node with 1,000 pods and claims has 2 MiB.
_STRAY_PART: Final = 32
EARLIER_USE: Final = "EarlierUse"  # the kind of what a node's earlier machines had in use
GUARDED_KINDS: Final = frozenset({"Node", sole_use.KIND, EARLIER_USE})  # the kinds that keep a volume from other nodes
_MOST_GUARDED_BYTES: Final = 512 * 1024  # Of these kinds, of one node. A node with 1,000 volumes has 400 KiB.


class FactQuota:
    """Counts the bytes of all nodes' facts."""

    def __init__(self, quota_bytes: int = FACT_QUOTA_BYTES) -> None:
        self._most_bytes, self._most_stray_bytes = quota_bytes, quota_bytes // _STRAY_PART
        # By node: the bytes that each fact takes, and the stray ones among them
        self._sizes: defaultdict[str, dict[Ref, int]] = defaultdict(dict)
        self._stray: defaultdict[str, set[Ref]] = defaultdict(set)
        # By node: the reason why its newest facts were refused, until one is accepted
        self.exceeded: dict[str, str] = {}

    def check(self, node: str, ref: Ref, size: int, *, stray: bool = False) -> None:
        """Raise ValueError if a fact has no room."""
        sizes, strays = self._sizes[node], self._stray[node]
        grown = size - sizes.get(ref, 0)
        if stray and sum(sizes[it] for it in strays if it != ref) + size > self._most_stray_bytes:
            sent = f"{self._most_stray_bytes} bytes of facts about objects that the hub did not give it (--fact-quota)"
        elif grown > 0 and sum(sizes.values()) + grown > self._most_bytes:
            sent = f"{self._most_bytes} bytes of facts (--fact-quota)"
        elif ref.kind in GUARDED_KINDS and grown > 0 and _guarded(sizes) + grown > _MOST_GUARDED_BYTES:
            sent = f"{_MOST_GUARDED_BYTES} bytes of facts about its volumes in use"
        else:
            return
        self.exceeded[node] = f"node {node} sends more than {sent}"
        raise ValueError(self.exceeded[node])

    def put(self, node: str, ref: Ref, size: int, *, stray: bool = False) -> None:
        self.remove(node, ref)
        self.exceeded.pop(node, None)
        self._sizes[node][ref] = size
        if stray:
            self._stray[node].add(ref)

    def remove(self, node: str, ref: Ref) -> None:
        self._sizes[node].pop(ref, None)
        self._stray[node].discard(ref)

    def is_stray(self, node: str, ref: Ref) -> bool:
        return ref in self._stray[node]

    def forget(self, node: str) -> None:
        for kept in (self._sizes, self._stray, self.exceeded):
            kept.pop(node, None)


def _guarded(sizes: Mapping[Ref, int]) -> int:
    return sum(size for ref, size in sizes.items() if ref.kind in GUARDED_KINDS)
