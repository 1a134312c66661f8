"""The unique topology segments: each belongs to the first node that had it, until an operator forgets the node.

Without them, a node that reports another node's topology would get creates that are meant for the other one.

Rules:

* The bridge's own segment belongs to the node of its name (`common.objects.topology`).
* Of the other keys, an operator lists those that are unique (`--unique-topology`). A node keeps a segment that it no
  longer reports: PersistentVolumes may name it.
* A node's segments are one record, which is written no later than the report that has them. A node keeps its
  segments also if the hub knows it by them alone, after a restore of objects without status.
* A node's name counts as its `kubernetes.io/hostname` (`cloud.placement.affinity`). So this segment belongs to the node
  of that name, if the hub knows one.
* If several stored nodes report a segment when its key becomes unique, nobody knows the first one. Then the segment is
  disputed: it belongs to the node of that name, else to none until an operator forgets the other ones.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Final

from cloud.records.records import Body, Change, Key, RecordKind, Records
from common.objects.topology import NODE_SEGMENT
from common.parsers import is_label_key, is_label_value
from common.wording import shorten

HOSTNAME: Final = "kubernetes.io/hostname"  # the label that static volumes on a node's own disk are bound by

# The segments that one node can have, counted for each driver that has them: one or two are usual.
_MOST_OF_A_NODE: Final = 256
_SHOWN_CHARS: Final = 100  # a segment in a sentence is cut here
_SHOWN_NODES: Final = 10
Segment = tuple[str, str]  # key and value


class UniqueKeys(list[str]):
    """The keys that an operator lists (`--unique-topology`)."""

    def __str__(self) -> str:
        return ",".join(self)


class UniqueSegments:
    """The owner of each unique segment."""

    def __init__(self, records: Records, unique: UniqueKeys) -> None:
        self._records, self._keys = records, frozenset(unique) - {NODE_SEGMENT}
        self._owners: dict[Segment, str] = {}
        self._of: dict[str, dict[Segment, set[str]]] = {}  # by node: its segments, and the drivers that report each
        # The segments without a first node: the nodes that report each, and their drivers.
        self._disputed: dict[Segment, dict[str, set[str]]] = {}
        for node, segments in records.take(RecordKind.SEGMENTS, _read):
            for segment, drivers in segments:
                for driver in drivers:
                    self._give(segment, node, driver)
        records.watch(RecordKind.SEGMENTS, lambda key: self.record(*key))

    def why_not(self, node: str, driver: str, segments: Mapping[str, str], known: Container[str]) -> str:
        """The reason why a node cannot have these segments for a driver; empty if it can. `known` are all nodes."""
        if (said := segments.get(NODE_SEGMENT, node)) != node:
            return f"its topology says {_shown((NODE_SEGMENT, said))}, which belongs to edge node {_cut(said)}"
        new = 0
        for segment in self._unique(segments):
            owner = self._owner(segment, known)
            if segment in self._disputed and owner != node:
                nodes = sorted(self._disputed[segment])[:_SHOWN_NODES]
                return (
                    f"its topology says {_shown(segment)}, which the edge nodes {', '.join(nodes)} have all reported; "
                    f"run csi-bridge forget NODE DRIVER for each but the right one"
                )
            if owner not in ("", node):
                return f"its topology says {_shown(segment)}, which belongs to edge node {owner}"
            if not is_label_value(segment[1]):
                return f"its topology says {_shown(segment)}, which cannot be a label"
            new += driver not in self._of.get(node, {}).get(segment, ())
        if new and sum(map(len, self._of.get(node, {}).values())) + new > _MOST_OF_A_NODE:
            return f"it has had {_MOST_OF_A_NODE} unique segments; run csi-bridge forget {node} if that is no fault"
        return ""

    def owner(self, key: str, value: str, known: Container[str], driver: str = "") -> str:
        """The one node that has a segment; empty: none, nobody knows which, or the segment need not be of one node.

        With a driver, it counts only if the node has reported the segment for this driver: a node may claim any segment
        that the hub has not seen. A host name is that of the node of this name.
        """
        if key == NODE_SEGMENT:
            return value
        segment = key, value
        if key not in self._keys or segment in self._disputed:
            return ""
        if key == HOSTNAME and driver:
            return value if value in known else ""
        owner = self._owner(segment, known)
        return owner if not driver or driver in self._of.get(owner, {}).get(segment, ()) else ""

    def owners(self, term: Mapping[str, str]) -> set[str]:
        owned = {self._owners.get(segment, "") for segment in self._unique(term)}
        return (owned | {term.get(NODE_SEGMENT, "")}) - {""}

    def claim(self, node: str, driver: str, segments: Mapping[str, str]) -> bool:
        """Give a node those segments that are unique. Returns whether the caller has to write its record."""
        new = [it for it in self._unique(segments) if driver not in self._of.get(node, {}).get(it, ())]
        for segment in new:
            self._give(segment, node, driver)
        return bool(new)

    def record(self, node: str) -> Change:
        segments = [
            {"key": key, "value": value, "drivers": sorted(drivers)}
            for (key, value), drivers in self._of.get(node, {}).items()
        ]
        return Change(RecordKind.SEGMENTS, (node,), {"segments": segments} if segments else None)

    def adopt(self, reported: Iterable[tuple[str, str, Mapping[str, str]]]) -> None:
        """Find the owners of segments that stored reports (node, driver, topology) have and the records have not."""
        found: dict[Segment, dict[str, set[str]]] = {}
        for node, driver, segments in reported:
            for segment in self._unique(segments):
                if segment not in self._owners:
                    found.setdefault(segment, {}).setdefault(node, set()).add(driver)
        for segment, nodes in found.items():
            self._settle(segment, nodes)

    def forget(self, node: str, driver: str = "") -> bool:
        """Take all segments from a node, or those that it has for one driver. Returns False if it has none."""
        before = self.record(node)
        for segment, drivers in list(self._of.get(node, {}).items()):
            drivers.difference_update([driver] if driver else list(drivers))
            if not drivers:
                del self._of[node][segment], self._owners[segment]
        if (left := self.record(node)) != before:
            self._records.put(left)
        for segment, nodes in list(self._disputed.items()):
            drivers = nodes.get(node, set())
            drivers.difference_update([driver] if driver else list(drivers))
            if node in nodes and not drivers:
                del self._disputed[segment], nodes[node]
                self._settle(segment, nodes)
        return left != before

    def _settle(self, segment: Segment, nodes: dict[str, set[str]]) -> None:
        right = segment[1] if segment[1] in nodes else next(iter(nodes), "") if len(nodes) <= 1 else ""
        if not right:
            if nodes:
                self._disputed[segment] = nodes
            return
        for driver in nodes[right]:
            self._give(segment, right, driver)
        self._records.put(self.record(right))

    def _owner(self, segment: Segment, known: Container[str]) -> str:
        key, value = segment
        return self._owners.get(segment) or (value if key == HOSTNAME and value in known else "")

    def _unique(self, segments: Mapping[str, str]) -> Collection[Segment]:
        return [segment for segment in segments.items() if segment[0] in self._keys]

    def _give(self, segment: Segment, node: str, driver: str) -> None:
        self._owners[segment] = node
        self._of.setdefault(node, {}).setdefault(segment, set()).add(driver)


def unique_keys(text: str) -> UniqueKeys:
    """Read `KEY,KEY`, which may be empty. Raises ValueError."""
    keys = UniqueKeys(dict.fromkeys(key.strip() for key in text.split(",")) if text.strip() else ())
    if wrong := [key for key in keys if not is_label_key(key)]:
        raise ValueError(f"{wrong[0]!r} is not the key of a label")
    return keys


def _read(key: Key, body: Body) -> tuple[str, list[tuple[Segment, list[str]]]]:
    (node,) = key
    return node, [((it["key"], it["value"]), list(it["drivers"])) for it in body["segments"]]


def _shown(segment: Segment) -> str:
    return f"{segment[0]}={_cut(segment[1])}"


def _cut(text: str) -> str:
    text = shorten(text, _SHOWN_CHARS)
    return text if text.isprintable() else ascii(text)[1:-1]
