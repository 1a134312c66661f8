"""A refusal: a peer whose hello the hub did not take, and why. The newest of each peer, for people; in memory alone.

A refusal is forgotten when a peer of its role and name is let in, or the same machine under another name.
"""

import time
from collections import OrderedDict

from common.link import Link
from common.pages.hub import Refusal
from common.pages.json_form import time_of

MOST = 100
"""Peers that are remembered. Whoever may connect can make them up, so the oldest go."""

_SHOWN_CHARS, _LONGEST_WHY = 100, 1_000
"""Of what a peer says of itself, and of the sentence about it."""


class Refusals:
    """Who was refused, the oldest first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str], Refusal] = OrderedDict()
        self._instances: dict[tuple[str, str], str] = {}

    def add(self, link: Link, reason: str, why: str) -> None:
        """The peer of a link was refused just now."""
        role, name = link.peer.role[:_SHOWN_CHARS], link.peer.name[:_SHOWN_CHARS]
        self._forget(role, name)
        self._instances[role, name] = link.peer.instance[:_SHOWN_CHARS]
        self._found[role, name] = Refusal(
            role=role,
            name=name,
            address=link.peer_identity.address,
            at=time_of(time.time()),
            reason=reason,
            why=why[:_LONGEST_WHY],
        )
        if len(self._found) > MOST:
            self._forget(*next(iter(self._found)))

    def settle(self, link: Link) -> None:
        """The peer of a link was let in."""
        role, name = link.peer.role[:_SHOWN_CHARS], link.peer.name[:_SHOWN_CHARS]
        self._forget(role, name)
        instance = link.peer.instance
        for key in [key for key, known in self._instances.items() if instance and (key[0], known) == (role, instance)]:
            self._forget(*key)

    def _forget(self, role: str, name: str) -> None:
        self._found.pop((role, name), None)
        self._instances.pop((role, name), None)

    def all(self) -> list[Refusal]:
        """All of them, for operators."""
        return list(self._found.values())
