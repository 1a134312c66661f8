"""The foreign ids: answers to creates that name another node's thing. The hub does not hand them to the caller.

For example, n1 has vol-1, and n2 answers a create with vol-1, too. A DeleteVolume of vol-1 could then delete the wrong
volume, or leave one behind.

Rules:

* A thing is another node's if the hub has recorded that the other node made it, or if its PersistentVolume is for other
  nodes. A list of the other node proves nothing, because a hostile node could list any id.
* The hub also refuses a volume whose topology has only unique segments of other nodes. Its pods would go to these
  nodes, and find no volume, or another one with that id.
* The hub keeps each conflict in memory, for operators. A conflict ends when the node answers a create of that name in
  another way, or when an operator forgets the node.
"""

import logging
from collections.abc import Callable
from typing import Final

from cloud.claims.book import Book
from cloud.claims.requests import Made
from cloud.claims.rules import Thing
from cloud.nodes.unique_segments import UniqueSegments
from common.errors import CallError, answer_refused
from common.observe.logs import of_peer
from common.observe.metrics import Metrics

log = logging.getLogger("csi_bridge.hub.placement")

_MOST: Final = 20  # the conflicts of one node that the hub keeps


class ForeignIds:
    """The conflicts of all nodes."""

    def __init__(self, metrics: Metrics, segments: UniqueSegments, elsewhere: Callable[[str, Thing, str], str]) -> None:
        self._metrics = metrics
        self._segments = segments
        self._elsewhere = elsewhere
        # By node, and by driver and name of the create: the sentence for people.
        self._found: dict[str, dict[tuple[str, str], str]] = {}

    def check(self, driver: str, name: str, node: str, book: Book, made: Made) -> None:
        """Check a node's answer to a create. Raises CallError if the caller must not get it."""
        other = ""
        for term in made.terms:
            others = self._segments.owners(term) - {node}
            if not others:
                other = ""
                break
            other = other or min(others)
        if other:
            raise self._noted(driver, name, node, f"a volume for edge node {other}, and not for itself")

        for thing in made.things:
            owner = ""
            if known := book.ids.get(thing):
                own = known.get(node)
                if own is not None and own.is_made and own.name == name:
                    continue  # a retry: this node made the thing under this name before
                owner = next((other for other in book.makers(thing) if other != node), "")
            if owner := owner or self._elsewhere(driver, thing, node):
                do = (
                    "both: one of them names what is not its own, and csi-bridge forget NODE on the hub's host takes "
                    "it from that one"
                )
                answer = f"{thing}, which edge node {owner} has"
                raise self._noted(driver, name, node, answer, look_at=do)
        if self._found:
            self.settle(driver, name, node)

    def _noted(self, driver: str, name: str, node: str, answer: str, *, look_at: str = "") -> CallError:
        error = answer_refused(driver, name, node, answer, look_at=look_at)
        found = self._found.setdefault(node, {})
        key = (driver, name)
        if found.get(key) != str(error):
            log.error("%s", error, extra=of_peer(f"edge {node}"))
            self._metrics.conflicts.inc("id")
        found.pop(key, None)
        found[key] = str(error)
        if len(found) > _MOST:
            del found[next(iter(found))]
        return error

    def settle(self, driver: str, name: str, node: str) -> None:
        """Forget the conflict of a create that the node has answered in another way."""
        found = self._found.get(node, {})
        if found.pop((driver, name), None) is not None and not found:
            del self._found[node]

    def forget(self, node: str, driver: str = "") -> None:
        for its_driver, name in list(self._found.get(node, ())):
            if driver in ("", its_driver):
                self.settle(its_driver, name, node)

    def told_by(self, node: str) -> list[str]:
        """The conflicts of a node, the oldest first."""
        return list(self._found.get(node, {}).values())
