"""The tally: the nodes' lists, as far as the audit keeps them. Pure.

Rules:

* A page is compared when it comes, and only things that nothing refers to are kept. So the memory of an audit follows
  the number of references and of leaks, not the length of the lists.
* A node can fill `MOST_OF_NODE` places, and all nodes together `MOST`. The audit counts further things and does not
  judge them.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from cloud.claims.requests import LONGEST_CHARS
from cloud.claims.rules import Thing
from cloud.parts.references import Key
from cloud.placement.inventory import Listed

MOST_OF_NODE: Final = 1_000  # more on one node are shown by the next audit, when these are settled
MOST: Final = 20_000  # 20 MB with the longest ids

# The id of an inline volume of a pod (kubernetes pkg/volume/csi, makeVolumeHandle). Some drivers list them. No
# PersistentVolume ever names one: the pod does, and the volume ends with it.
_INLINE: Final = re.compile(r"csi-[0-9a-f]{64}")


class Candidate(NamedTuple):
    """A thing that a node lists, and that nothing referred to before."""

    driver: str
    thing: Thing
    node: str
    size_bytes: int


class Tally:
    """The lists of one audit."""

    def __init__(self, named: Container[Key]) -> None:
        self._named = named
        self.seen: set[Key] = set()  # the referenced things that some node lists
        self.candidates: list[Candidate] = []  # the listed things that nothing referred to
        self.complete: set[tuple[str, str, str]] = set()  # driver, kind and node of each list that came whole
        self.dropped: Counter[tuple[str, str]] = Counter()  # how many more such things a driver has on a node, by both
        self._of_node: Counter[str] = Counter()

    def take(self, driver: str, node: str, page: Iterable[Listed]) -> None:
        for thing, size_bytes in page:
            if (driver, thing) in self._named:
                self.seen.add((driver, thing))
            elif _INLINE.fullmatch(thing.id) is None:
                self._keep(Candidate(driver, thing, node, max(size_bytes, 0)))

    def _keep(self, found: Candidate) -> None:
        has_room = self._of_node[found.node] < MOST_OF_NODE and len(self.candidates) < MOST
        if not has_room or len(found.thing.id) > LONGEST_CHARS:
            self.dropped[found.driver, found.node] += 1
            return
        self._of_node[found.node] += 1
        self.candidates.append(found)
