"""A fact quota: the room that each node's facts may take in the hub's memory and records.

Rules:

* A new fact without room is refused.
* A fact is *stray* if the hub does not know that it gave its object to the node. An honest node sends stray facts about
  objects that left it while the hub was down. They may take a small part of the quota.
* A stored fact never becomes stray: the hub accepted it. So a restart begins without stray facts.
* What keeps volumes from other nodes has less room: it stands in the node's object (`cloud.records.records`).
"""

from dataclasses import dataclass, field
from typing import Final

from common.objects import sole_use
from common.objects.objects import Ref

FACT_QUOTA_BYTES: Final = 8 * 1_048_576  # Of one node. A node with 1,000 pods and claims has 2 MiB.
_STRAY_PART: Final = 32
EARLIER_USE: Final = "EarlierUse"  # the kind of what a node's earlier machines had in use
GUARDED_KINDS: Final = frozenset({"Node", sole_use.KIND, EARLIER_USE})  # the kinds that keep a volume from other nodes
_MOST_GUARDED_BYTES: Final = 512 * 1024  # Of these kinds, of one node. A node with 1,000 volumes has 400 KiB.


@dataclass(slots=True)
class _Used:
    sizes: dict[Ref, int] = field(default_factory=dict)
    sum_bytes: int = 0
    stray: dict[Ref, int] = field(default_factory=dict)
    stray_bytes: int = 0
    guarded_bytes: int = 0


class FactQuota:
    """Counts the bytes of all nodes' facts."""

    def __init__(self, quota_bytes: int = FACT_QUOTA_BYTES) -> None:
        self._most_bytes = quota_bytes
        self._most_stray_bytes = quota_bytes // _STRAY_PART
        self._used: dict[str, _Used] = {}
        # By node: the reason why its newest facts were refused, until one is accepted
        self.exceeded: dict[str, str] = {}

    def check(self, node: str, ref: Ref, size: int, *, stray: bool = False) -> None:
        """Raise ValueError if a fact has no room."""
        used = self._used.get(node) or _Used()
        grown = size - used.sizes.get(ref, 0)
        if stray and used.stray_bytes + size - used.stray.get(ref, 0) > self._most_stray_bytes:
            sent = f"{self._most_stray_bytes} bytes of facts about objects that the hub did not give it (--fact-quota)"
        elif grown > 0 and used.sum_bytes + grown > self._most_bytes:
            sent = f"{self._most_bytes} bytes of facts (--fact-quota)"
        elif ref.kind in GUARDED_KINDS and grown > 0 and used.guarded_bytes + grown > _MOST_GUARDED_BYTES:
            sent = f"{_MOST_GUARDED_BYTES} bytes of facts about its volumes in use"
        else:
            return
        self.exceeded[node] = f"node {node} sends more than {sent}"
        raise ValueError(self.exceeded[node])

    def put(self, node: str, ref: Ref, size: int, *, stray: bool = False) -> None:
        self.remove(node, ref)
        self.exceeded.pop(node, None)
        used = self._used.setdefault(node, _Used())
        used.sizes[ref] = size
        used.sum_bytes += size
        used.guarded_bytes += size if ref.kind in GUARDED_KINDS else 0
        if stray:
            used.stray[ref] = size
            used.stray_bytes += size

    def remove(self, node: str, ref: Ref) -> None:
        if (used := self._used.get(node)) is not None:
            size = used.sizes.pop(ref, 0)
            used.sum_bytes -= size
            used.guarded_bytes -= size if ref.kind in GUARDED_KINDS else 0
            used.stray_bytes -= used.stray.pop(ref, 0)

    def is_stray(self, node: str, ref: Ref) -> bool:
        return node in self._used and ref in self._used[node].stray

    def forget(self, node: str) -> None:
        self._used.pop(node, None)
        self.exceeded.pop(node, None)
