"""The peers that the hub has refused, each with the reason of its last refusal. For operators; in memory alone.

Rules:

* A peer that said hello is known by its role and name. The hub forgets its refusal when it accepts a peer of that role
  and name, or the same machine under another name.
* A connection that ended before its hello, as with a bad certificate, is known by its address. Other peers of that
  address may be accepted all the time, so the hub forgets this refusal an hour after the last one.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from common.links.handshakes import group_of
from common.pages.hub import Refusal
from common.pages.json_form import time_of
from common.session.link import Link

MOST: Final = 100  # peers, and addresses, that are remembered: a client can invent names, so the oldest are dropped
FORGOTTEN_AFTER_S: Final = 3_600.0  # an agent with a bad certificate dials every 30 s, so one of this age is settled

K = TypeVar("K")
V = TypeVar("V")

_SHOWN_CHARS, _LONGEST_WHY = 100, 1_000  # a peer's own words, and the reason, are cut here


class Refusals:
    """The refused peers, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._named: dict[tuple[str, str], tuple[str, Refusal]] = {}  # with the peer's instance
        self._nameless: dict[str, Refusal] = {}

    def add(self, link: Link, reason: str, why: str) -> None:
        role, name, instance = _said(link)
        refusal = self._refusal(link.peer_identity.address, reason, why, role=role, name=name)
        _keep(self._named, (role, name), (instance, refusal))

    def add_nameless(self, address: str, reason: str, why: str) -> None:
        """Remember that a connection from `HOST:PORT`, or `pid N uid N`, ended before its hello."""
        host = group_of(address.rpartition(":")[0]) or address.rpartition(" ")[2]
        before = self._nameless.get(host)
        times = before.times + 1 if before is not None else 1
        _keep(self._nameless, host, self._refusal(address, reason, why, times=times))

    def _refusal(
        self, address: str, reason: str, why: str, *, role: str = "", name: str = "", times: int = 1
    ) -> Refusal:
        at = time_of(self._clock())
        why = why[:_LONGEST_WHY]
        return Refusal(role=role, name=name, address=address, at=at, reason=reason, why=why, times=times)

    def settle(self, link: Link) -> None:
        role, name, instance = _said(link)
        self._named.pop((role, name), None)
        for key, (known, _) in list(self._named.items()):
            if instance and (key[0], known) == (role, instance):
                del self._named[key]

    def all(self) -> list[Refusal]:
        """The named peers, then the addresses."""
        since = time_of(self._clock() - FORGOTTEN_AFTER_S)
        while self._nameless and next(iter(self._nameless.values())).at < since:
            del self._nameless[next(iter(self._nameless))]
        return [*(refusal for _, refusal in self._named.values()), *self._nameless.values()]


def _keep(found: dict[K, V], key: K, value: V) -> None:
    found.pop(key, None)
    found[key] = value
    if len(found) > MOST:
        del found[next(iter(found))]


def _said(link: Link) -> tuple[str, str, str]:
    said = link.peer
    return said.role[:_SHOWN_CHARS], said.name[:_SHOWN_CHARS], said.instance[:_SHOWN_CHARS]
