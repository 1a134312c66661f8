"""A refusal: a peer whose hello the hub did not take, and why. The newest of each peer, for people; in memory alone."""

import time
from collections import OrderedDict
from collections.abc import Iterator

from common.link import Link

MOST = 100
"""Peers that are remembered. Whoever may connect can make them up, so the oldest go."""

_SHOWN_CHARS, _LONGEST_WHY = 100, 1_000
"""Of what a peer says of itself, and of the sentence about it."""


class Refusals:
    """Who was refused, the oldest first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str], dict[str, object]] = OrderedDict()

    def add(self, link: Link, reason: str, why: str) -> None:
        """The peer of a link was refused just now."""
        role, name = link.peer.role[:_SHOWN_CHARS], link.peer.name[:_SHOWN_CHARS]
        self.settle(role, name)
        self._found[role, name] = {
            "role": role,
            "name": name,
            "address": link.peer_identity.address,
            "at": time.time(),
            "reason": reason,
            "why": why[:_LONGEST_WHY],
        }
        if len(self._found) > MOST:
            self._found.popitem(last=False)

    def settle(self, role: str, name: str) -> None:
        """Such a peer was let in."""
        self._found.pop((role[:_SHOWN_CHARS], name[:_SHOWN_CHARS]), None)

    def describe(self) -> Iterator[dict[str, object]]:
        """For the operator; `at` is in seconds since the epoch."""
        yield from list(self._found.values())
