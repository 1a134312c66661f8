"""An election: the node that serves a driver whose storage every node reaches (`--placement=shared`). Pure.

Each election of a driver has a number, its epoch, which only grows. The agents refuse calls of an older epoch than they
have seen (`common.messages.Open`).

Rules:

* The elected node stays while it serves, also if a preferred one comes back: each change of the node costs retries.
* If it is away, another node takes over after `--takeover-after`, counted from its last sign of life.
* Another node takes over at once if the agent drains, the driver's socket is gone, the hub refuses its report, the
  operator forgets the node, or `--candidates` excludes it.
* If no other node can serve, the elected one stays. It goes on when it is back, with the same epoch.
* Of several nodes that can serve, the first pattern of `--prefer` decides, then the name. The first election of a
  driver waits for the most preferred node, for as long as a takeover does.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from common.parsers import is_driver_name

TAKEOVER_S: Final = 15.0
"""The default of `--takeover-after`. An agent whose network or process has just restarted is back within 10 s
(`common.uplink`); a sidecar's call waits for 10 to 15 s before its first retry."""


@dataclass(frozen=True, slots=True)
class Elected:
    """The result of an election.

    Attributes:
        node: the serving node.
        epoch: the number of the election.
        since: when it was, in seconds since the epoch.
        why: its cause, in words.
    """

    node: str
    epoch: int
    since: float
    why: str


class Seat(NamedTuple):
    """A node of the driver, as a candidate.

    Attributes:
        unfit: why it cannot serve now, in words; empty if it can.
        away_since: its last sign of life, in seconds of the monotonic clock, if it is only away; else None.
    """

    unfit: str = ""
    away_since: float | None = None


@dataclass(frozen=True, slots=True)
class NodeSet:
    """The patterns of one driver's nodes, a value of `--candidates` or `--prefer`.

    Attributes:
        driver: the driver.
        patterns: node names, with the wildcards of `fnmatch`.
    """

    driver: str
    patterns: tuple[str, ...]

    def __str__(self) -> str:
        """The text that `node_set` reads."""
        return f"{self.driver}={','.join(self.patterns)}"


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """The operator's rules for the elections of one driver.

    Attributes:
        candidates: the patterns of the nodes that may serve; none: every node may.
        prefer: the patterns of preferred nodes, the most preferred first.
        takeover_s: how long the elected node may be away.
    """

    candidates: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    takeover_s: float = TAKEOVER_S

    def admits(self, node: str) -> bool:
        """Whether a node may serve."""
        return not self.candidates or any(fnmatchcase(node, each) for each in self.candidates)

    def rank(self, node: str) -> tuple[int, str]:
        """The place of a node among those that can serve; the lowest one serves."""
        liked = (at for at, each in enumerate(self.prefer) if fnmatchcase(node, each))
        return next(liked, len(self.prefer)), node


class Choice(NamedTuple):
    """The node that is to be elected now, and why."""

    node: str
    why: str


def choose(
    present: Elected | None, seats: Mapping[str, Seat], rules: ElectionRules, *, served: float, now: float
) -> Choice | None:
    """The node to elect; None: the present election stands, or no node can serve.

    Args:
        present: the last election; None: there was none.
        seats: the nodes that have reported the driver.
        rules: the operator's rules.
        served: when the present node was seen last that it can serve, or when the hub began to look for one, in seconds
            of the monotonic clock. A node that comes and goes, and serves never, has its last link only a moment ago.
        now: in seconds of the monotonic clock.
    """
    fit = sorted((node for node in seats if _why_not(node, seats, rules) == ""), key=rules.rank)
    if present is None:
        is_best = bool(fit) and (not rules.prefer or rules.rank(fit[0])[0] == 0)
        return Choice(fit[0], "first election") if fit and (is_best or now - served >= rules.takeover_s) else None
    if not fit or present.node in fit:
        return None
    seat = seats.get(present.node)
    if seat is not None and seat.away_since is not None and rules.admits(present.node):
        if now - min(seat.away_since, served) < rules.takeover_s:
            return None
        return Choice(fit[0], f"edge node {present.node} was away for {rules.takeover_s:g} s")
    return Choice(fit[0], f"edge node {present.node} {_why_not(present.node, seats, rules)}")


def why_nobody(seats: Mapping[str, Seat], rules: ElectionRules) -> str:
    """Why no node can serve, with the reasons of the first nodes of the driver."""
    if not seats:
        return "no edge node runs it"
    told = [f"edge node {node} {_why_not(node, seats, rules) or 'is not elected yet'}" for node in sorted(seats)]
    return "; ".join(told[:SHOWN] + ["and more"] * (len(told) > SHOWN))


def node_set(text: str) -> NodeSet:
    """A value of `--candidates` or `--prefer`: `DRIVER=PATTERN,PATTERN`.

    Raises:
        ValueError: it is none.
    """
    driver, _, rest = text.partition("=")
    patterns = tuple(rest.split(","))
    if not (is_driver_name(driver) and all(map(_PATTERN.fullmatch, patterns))):
        raise ValueError("must be DRIVER=NODE,..., and a node's name may have the wildcards * and ?")
    return NodeSet(driver, patterns)


def patterns_of(driver: str, sets: Iterable[NodeSet]) -> tuple[str, ...]:
    """The patterns of a driver in the values of a flag, in their order."""
    return tuple(pattern for each in sets if each.driver == driver for pattern in each.patterns)


_PATTERN: Final = re.compile(r"[a-z0-9.*?-]{1,253}")
"""A node's name (RFC 1123), with wildcards."""

SHOWN: Final = 5
"""A message names at most this many nodes."""


def _why_not(node: str, seats: Mapping[str, Seat], rules: ElectionRules) -> str:
    seat = seats.get(node)
    if seat is None:
        return "is not known any more"
    return seat.unfit if rules.admits(node) else "is not among --candidates"
