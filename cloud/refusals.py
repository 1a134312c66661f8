"""The peers that the hub has refused, each with the reason of its last refusal. For operators; in memory alone.

The hub forgets a refusal when it accepts a peer of that role and name, or the same machine under another name.
"""

import time
from collections import OrderedDict

from common.link import Link
from common.pages.hub import Refusal
from common.pages.json_form import time_of

MOST = 100
"""The most peers that are remembered. A client can invent names, so the oldest ones are dropped."""

_SHOWN_CHARS, _LONGEST_WHY = 100, 1_000
"""A peer's own words, and the reason, are cut here."""


class Refusals:
    """The refused peers, the oldest first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str], Refusal] = OrderedDict()
        self._instances: dict[tuple[str, str], str] = {}

    def add(self, link: Link, reason: str, why: str) -> None:
        """Remember that the hub has refused the peer of a link."""
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
        """Forget the refusals of a peer that the hub has accepted."""
        role, name = link.peer.role[:_SHOWN_CHARS], link.peer.name[:_SHOWN_CHARS]
        self._forget(role, name)
        instance = link.peer.instance
        for key in [key for key, known in self._instances.items() if instance and (key[0], known) == (role, instance)]:
            self._forget(*key)

    def _forget(self, role: str, name: str) -> None:
        self._found.pop((role, name), None)
        self._instances.pop((role, name), None)

    def all(self) -> list[Refusal]:
        """All refusals, for operators."""
        return list(self._found.values())
