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
* A pattern is a name with wildcards, or a label of the Node as the cluster has it: nothing that an agent says counts.
  While the hub has not read the Nodes yet, the elected node stays, and no other one is elected by `--candidates` with
  labels.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

from cloud.kube.node_marks import is_label
from common.parsers import is_driver_name

# The default of `--takeover-after`. An agent whose network or process has just restarted is back within 10 s
# (`common.links.uplink`); a sidecar's call waits for 10 to 15 s before its first retry.
TAKEOVER_S: Final = 15.0
FIRST: Final = "first election"  # the cause of a driver's first election


@dataclass(frozen=True, slots=True)
class Elected:
    """The result of an election: its cause is `why`."""

    node: str
    epoch: int
    since: float
    why: str


class ServingCandidate(NamedTuple):
    """A node of the driver, as a candidate."""

    unfit: str = ""  # why it cannot serve now, in words
    away_since: float | None = None  # its last sign of life, monotonic, if it is only away
    labels: Mapping[str, str] | None = MappingProxyType({})  # None: the hub has not read the Nodes yet


@dataclass(frozen=True, slots=True)
class NodeSet:
    """The patterns of one driver's nodes, a value of `--candidates` or `--prefer`."""

    driver: str
    patterns: tuple[str, ...]  # names with the wildcards of `fnmatch`, `label:KEY=VALUE`, or `label:KEY` for any value

    def __str__(self) -> str:
        return f"{self.driver}={','.join(self.patterns)}"

    def label_keys(self) -> list[str]:
        return [_label_of(each)[0] for each in self.patterns if each.startswith(_LABEL)]


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """The operator's rules for the elections of one driver."""

    candidates: tuple[str, ...] = ()  # none: every node may serve
    prefer: tuple[str, ...] = ()  # the most preferred first
    takeover_s: float = TAKEOVER_S  # how long the elected node may be away

    def lacks(self, labels: Mapping[str, str] | None) -> bool:
        """Whether the node's labels are missing to tell whether it is a candidate."""
        return labels is None and any(each.startswith(_LABEL) for each in self.candidates)

    def unmatched(self, seats: Mapping[str, ServingCandidate]) -> list[str]:
        """The patterns that fit no node, sorted; none while labels are missing."""
        if any(seat.labels is None for seat in seats.values()):
            return []
        patterns = sorted({*self.candidates, *self.prefer})
        return [it for it in patterns if not any(fits(it, node, seat.labels) for node, seat in seats.items())]

    def admits(self, node: str, seat: ServingCandidate) -> bool:
        is_open = not self.candidates or self.lacks(seat.labels)
        return is_open or any(fits(each, node, seat.labels) for each in self.candidates)

    def rank(self, node: str, seat: ServingCandidate) -> tuple[int, str]:
        """The place of a node among those that can serve; the lowest one serves."""
        liked = (at for at, each in enumerate(self.prefer) if fits(each, node, seat.labels))
        return next(liked, len(self.prefer)), node


def choose(
    present: Elected | None, seats: Mapping[str, ServingCandidate], rules: ElectionRules, *, served: float, now: float
) -> tuple[str, str] | None:
    """The node to elect, and why; None: the `present` election stands, or no node can serve.

    `served` is when the present node could last serve, or when the hub began to look for one, as `now` in seconds of
    the monotonic clock. A node that comes and goes, and serves never, has its last link only a moment ago.
    """
    if any(rules.lacks(seat.labels) for seat in seats.values()):
        return None
    ranks = sorted(rules.rank(node, seats[node]) for node in seats if not _why_not(node, seats, rules))
    fit = [node for _, node in ranks]
    if present is None:
        is_best = bool(fit) and (not rules.prefer or ranks[0][0] == 0)
        return (fit[0], FIRST) if fit and (is_best or now - served >= rules.takeover_s) else None
    if not fit or present.node in fit:
        return None
    seat = seats.get(present.node)
    if seat is not None and seat.away_since is not None and rules.admits(present.node, seat):
        if now - min(seat.away_since, served) < rules.takeover_s:
            return None
        return fit[0], f"edge node {present.node} was away for {rules.takeover_s:g} s"
    return fit[0], f"edge node {present.node} {_why_not(present.node, seats, rules)}"


def others(
    elected: str, seats: Mapping[str, ServingCandidate], rules: ElectionRules
) -> tuple[list[str], dict[str, str]]:
    """The first nodes that could take over now; without one, why the first ones could not, by node."""
    told = [(node, _why_not(node, seats, rules)) for node in sorted(seats) if node != elected]
    standby = [node for node, why in told if not why]
    return standby[:SHOWN], {} if standby else dict(told[:SHOWN])


def why_nobody(seats: Mapping[str, ServingCandidate], rules: ElectionRules) -> str:
    """Why no node can serve, with the reasons of the first nodes of the driver."""
    if not seats:
        return "no edge node runs it"
    told = [f"edge node {node} {_why_not(node, seats, rules) or 'is not elected yet'}" for node in sorted(seats)]
    return "; ".join(told[:SHOWN] + ["and more"] * (len(told) > SHOWN))


def node_set(text: str) -> NodeSet:
    """Read `DRIVER=PATTERN,PATTERN`. Raises ValueError."""
    driver, _, rest = text.partition("=")
    patterns = tuple(rest.split(","))
    if not (is_driver_name(driver) and all(map(_is_pattern, patterns))):
        raise ValueError(
            "must be DRIVER=NODE,..., where NODE is a node's name, with the wildcards * and ?, or a label of its Node: "
            "label:example.com/site=north, or label:example.com/site for any value"
        )
    return NodeSet(driver, patterns)


def fits(pattern: str, node: str, labels: Mapping[str, str] | None) -> bool:
    """Whether a pattern names a node with these labels; None: they are not known."""
    if not pattern.startswith(_LABEL):
        return fnmatchcase(node, pattern)
    key, value = _label_of(pattern)
    return labels is not None and key in labels and value in {None, labels[key]}


def patterns_of(driver: str, sets: Iterable[NodeSet]) -> tuple[str, ...]:
    return tuple(pattern for each in sets if each.driver == driver for pattern in each.patterns)


_PATTERN: Final = re.compile(r"[a-z0-9.*?-]{1,253}")  # a node's name (RFC 1123), with wildcards
_LABEL: Final = "label:"  # the beginning of a pattern that is a label: no node's name has a colon
SHOWN: Final = 5  # a message names at most this many nodes


def _why_not(node: str, seats: Mapping[str, ServingCandidate], rules: ElectionRules) -> str:
    seat = seats.get(node)
    if seat is None:
        return "is not known any more"
    if rules.lacks(seat.labels):
        return "has labels that the hub has not read from the cluster yet"
    return seat.unfit if rules.admits(node, seat) else "is not among --candidates"


def _is_pattern(text: str) -> bool:
    if not text.startswith(_LABEL):
        return _PATTERN.fullmatch(text) is not None
    key, value = _label_of(text)
    return is_label(key, value or "")


def _label_of(pattern: str) -> tuple[str, str | None]:
    key, equals, value = pattern.removeprefix(_LABEL).partition("=")
    return key, value if equals else None  # None fits any value
