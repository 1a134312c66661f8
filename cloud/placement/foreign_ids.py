"""The foreign ids: answers to creates that name another node's thing. The caller does not get them.

If it did, a later deletion of its volume could delete the other node's, or leave that one behind. A thing is another
node's if the hub has recorded its creation there, or if its PersistentVolume is for other nodes. A list of the
other node proves nothing, because a hostile node could list any id.

Nor does the caller get a volume whose topology is for other nodes alone, by their unique segments: its pods would go
there, and find another volume of that id, or none.

The conflicts are kept in memory, for operators. One ends when the node answers a create of that name in another way, or
when an operator forgets the node.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cloud.placement.book import Book
from cloud.placement.rules import Thing
from common.errors import AnswerRefused, ForeignId
from common.logs import of_peer
from common.metrics import Metrics

log = logging.getLogger("csi_bridge.hub.placement")

_MOST: Final = 20
"""The conflicts of one node that are remembered."""


class ForeignIds:
    """The conflicts of all nodes."""

    def __init__(
        self,
        metrics: Metrics,
        elsewhere: Callable[[str, Thing, str], str],
        others: Callable[[str, Iterable[Mapping[str, str]]], str],
    ) -> None:
        """Without conflicts.

        Args:
            metrics: counts them.
            elsewhere: of a driver, a thing and a node: another node that the thing's PersistentVolume is for, if it is
                not for this one; else empty.
            others: of a node and the terms of a topology: another node that has unique segments of it, if the terms are
                all for other nodes; else empty.
        """
        self._metrics, self._elsewhere, self._others = metrics, elsewhere, others
        self._found: dict[str, dict[tuple[str, str], str]] = {}
        """By node, and by driver and name of the create: the sentence for people."""

    def check_place(self, driver: str, name: str, node: str, terms: Iterable[Mapping[str, str]]) -> None:
        """Check the topology of the volume in a node's answer to a create.

        Raises:
            AnswerRefused: it says that the volume is on another node.
        """
        other = self._others(node, terms)
        if other:
            error = AnswerRefused(driver, name, node, f"a volume for edge node {other}, and not for itself")
            self._add(error)
            raise error

    def check(self, driver: str, name: str, node: str, book: Book, things: Iterable[Thing]) -> None:
        """Check the things in a node's answer to a create.

        Raises:
            ForeignId: one of them is another node's.
        """
        for thing in things:
            own = book.ids.get(thing, {}).get(node)
            if own is not None and own.is_made and own.name == name:
                continue  # a retry: this node has made it under this name before
            owner = next((other for other in book.made(thing) if other != node), "") or self._elsewhere(
                driver, thing, node
            )
            if owner:
                error = ForeignId(driver, name, node, str(thing), owner)
                self._add(error)
                raise error
        self.settle(driver, name, node)

    def _add(self, error: ForeignId | AnswerRefused) -> None:
        found, key = self._found.setdefault(error.node, {}), (error.driver, error.name)
        if found.get(key) != str(error):
            log.error("%s", error, extra=of_peer(f"edge {error.node}"))
            self._metrics.node_conflict("id")
        found.pop(key, None)
        found[key] = str(error)
        if len(found) > _MOST:
            del found[next(iter(found))]

    def settle(self, driver: str, name: str, node: str) -> None:
        """Forget the conflict of a create that the node has answered in another way."""
        found = self._found.get(node, {})
        if found.pop((driver, name), None) is not None and not found:
            del self._found[node]

    def forget(self, node: str, driver: str = "") -> None:
        """Forget the conflicts of a node, or of one driver there."""
        for its_driver, name in list(self._found.get(node, ())):
            if driver in ("", its_driver):
                self.settle(its_driver, name, node)

    def told_by(self, node: str) -> list[str]:
        """The conflicts of a node, the oldest first."""
        return list(self._found.get(node, {}).values())
