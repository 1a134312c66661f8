"""The peers that the hub has refused, each with the reason of its last refusal. For operators; in memory alone.

Rules:

* A peer that said hello is known by its role and name. The hub forgets its refusal when it accepts a peer of that role
  and name, or the same machine under another name.
* A connection that ended before its hello, as with a bad certificate, is known by its address. Other peers of that
  address may be accepted all the time, so the hub forgets this refusal an hour after the last one.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from common.handshakes import group_of
from common.link import Link
from common.pages.hub import Refusal
from common.pages.json_form import time_of

MOST: Final = 100
"""The most peers, and the most addresses, that are remembered. A client can invent names, so the oldest are dropped."""

FORGOTTEN_AFTER_S: Final = 3_600.0
"""An agent with a bad certificate dials at least every 30 s, so a refusal of this age is settled."""

_SHOWN_CHARS, _LONGEST_WHY = 100, 1_000  # a peer's own words, and the reason, are cut here


class Refusals:
    """The refused peers, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._found: OrderedDict[tuple[str, str], tuple[str, Refusal]] = OrderedDict()  # with the peer's instance
        self._nameless: OrderedDict[str, Refusal] = OrderedDict()

    def add(self, link: Link, reason: str, why: str) -> None:
        role, name, instance = _said(link)
        self._found.pop((role, name), None)
        self._found[role, name] = (
            instance,
            Refusal(
                role=role,
                name=name,
                address=link.peer_identity.address,
                at=time_of(self._clock()),
                reason=reason,
                why=why[:_LONGEST_WHY],
            ),
        )
        if len(self._found) > MOST:
            self._found.popitem(last=False)

    def add_nameless(self, address: str, reason: str, why: str) -> None:
        """Remember that a connection from `HOST:PORT`, or `pid N uid N`, ended before its hello."""
        host = group_of(address.rpartition(":")[0]) or address.rpartition(" ")[2]
        before = self._nameless.pop(host, None)
        self._nameless[host] = Refusal(
            role="",
            name="",
            address=address,
            at=time_of(self._clock()),
            reason=reason,
            why=why[:_LONGEST_WHY],
            times=before.times + 1 if before is not None else 1,
        )
        if len(self._nameless) > MOST:
            self._nameless.popitem(last=False)

    def settle(self, link: Link) -> None:
        role, name, instance = _said(link)
        self._found.pop((role, name), None)
        for key, (known, _) in list(self._found.items()):
            if instance and (key[0], known) == (role, instance):
                del self._found[key]

    def all(self) -> list[Refusal]:
        """The named peers, then the addresses."""
        since = time_of(self._clock() - FORGOTTEN_AFTER_S)
        while self._nameless and next(iter(self._nameless.values())).at < since:
            self._nameless.popitem(last=False)
        return [*(refusal for _, refusal in self._found.values()), *self._nameless.values()]


def _said(link: Link) -> tuple[str, str, str]:
    said = link.peer
    return said.role[:_SHOWN_CHARS], said.name[:_SHOWN_CHARS], said.instance[:_SHOWN_CHARS]
