"""An election: chooses the node that serves a driver whose storage every node reaches (`--placement=shared`). Pure.

Each election of a driver has a number, its epoch, which only grows. An agent refuses a call if it has seen a higher
epoch (`common.messages.Open`).

Rules:

* The elected node stays while it serves, also if a preferred node comes back: each takeover costs retries.
* If it is away, another node takes over after `--takeover-after`, counted from its last sign of life.
* Another node takes over at once if the agent drains, the driver's socket is gone, the hub refuses the node's report,
  an operator forgets the node, or `--candidates` excludes it.
* If no other node can serve, the elected node stays. When it is back, it goes on with the same epoch.
* If several nodes can serve, the hub elects the node that fits the earliest pattern of `--prefer`. Among equal ones, it
  elects the first by name.
* The first election of a driver waits `--takeover-after` for a node that the first pattern fits.
* A pattern is a node's name with wildcards, or a label. Only labels of the cluster's Nodes count, because an agent
  could claim any label.
* Until the hub has read the Nodes, it holds no election if `--candidates` has labels.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

from cloud.kube.node_marks import is_label
from common.parsers import is_driver_name

# The default of `--takeover-after`. An agent is back within 10 s after a restart of its network or process
# (`common.links.uplink`). A sidecar gives up a call after 10 to 15 s, and retries.
TAKEOVER_S: Final = 15.0
FIRST: Final = "first election"  # the cause of a driver's first election


@dataclass(frozen=True, slots=True)
class Elected:
    """The result of an election."""

    node: str
    epoch: int
    since: float  # when the election was, in seconds since the epoch of UNIX
    why: str  # the cause, in words


class ServingCandidate(NamedTuple):
    """A node of the driver, as a candidate."""

    unfit: str = ""  # why it cannot serve now, in words
    away_since: float | None = None  # if it is only away: its last sign of life, in monotonic seconds
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

    candidates: tuple[str, ...] = ()  # the patterns of `--candidates`; empty: every node may serve
    prefer: tuple[str, ...] = ()  # the patterns of `--prefer`, the most preferred first
    takeover_s: float = TAKEOVER_S  # how long the elected node may be away

    def lacks(self, labels: Mapping[str, str] | None) -> bool:
        """Whether the hub needs the labels of a node to know whether it may serve, and does not have them."""
        return labels is None and any(each.startswith(_LABEL) for each in self.candidates)

    def unmatched(self, candidates: Mapping[str, ServingCandidate]) -> list[str]:
        """The patterns that fit no node, sorted; empty until the hub has read the Nodes."""
        if any(candidate.labels is None for candidate in candidates.values()):
            return []
        patterns = sorted({*self.candidates, *self.prefer})
        labels = {node: candidate.labels for node, candidate in candidates.items()}
        return [it for it in patterns if not any(fits(it, node, labels[node]) for node in labels)]

    def admits(self, node: str, candidate: ServingCandidate) -> bool:
        if not self.candidates or self.lacks(candidate.labels):
            return True
        return any(fits(each, node, candidate.labels) for each in self.candidates)

    def rank(self, node: str, candidate: ServingCandidate) -> tuple[int, str]:
        """A node's rank by `--prefer`. The hub elects the lowest one that can serve."""
        liked = (at for at, each in enumerate(self.prefer) if fits(each, node, candidate.labels))
        return next(liked, len(self.prefer)), node


def choose(
    present: Elected | None,
    candidates: Mapping[str, ServingCandidate],
    rules: ElectionRules,
    *,
    served: float,
    now: float,
) -> tuple[str, str] | None:
    """The node to elect, and why. None: the `present` election stands, or no node can serve.

    `served` is when the present node could last serve, or when the hub began to look for a node. It counts beside the
    node's last sign of life: a node may connect again and again, and never serve. Both are monotonic seconds, as `now`.
    """
    if any(rules.lacks(candidate.labels) for candidate in candidates.values()):
        return None
    ranks = sorted(rules.rank(node, candidates[node]) for node in candidates if not _why_not(node, candidates, rules))
    fit = [node for _, node in ranks]
    if present is None:
        is_best = bool(fit) and (not rules.prefer or ranks[0][0] == 0)
        return (fit[0], FIRST) if fit and (is_best or now - served >= rules.takeover_s) else None
    if not fit or present.node in fit:
        return None
    candidate = candidates.get(present.node)
    if candidate is not None and candidate.away_since is not None and rules.admits(present.node, candidate):
        if now - min(candidate.away_since, served) < rules.takeover_s:
            return None
        return fit[0], f"edge node {present.node} was away for {rules.takeover_s:g} s"
    return fit[0], f"edge node {present.node} {_why_not(present.node, candidates, rules)}"


def others(
    elected: str, candidates: Mapping[str, ServingCandidate], rules: ElectionRules
) -> tuple[list[str], dict[str, str]]:
    """The first nodes that could take over now. If there are none: by node, why the first nodes could not."""
    told = [(node, _why_not(node, candidates, rules)) for node in sorted(candidates) if node != elected]
    standby = [node for node, why in told if not why]
    return standby[:SHOWN], {} if standby else dict(told[:SHOWN])


def why_nobody(candidates: Mapping[str, ServingCandidate], rules: ElectionRules) -> str:
    """Why no node can serve: the reasons of the first nodes of the driver."""
    if not candidates:
        return "no edge node runs it"
    reasons = ((node, _why_not(node, candidates, rules)) for node in sorted(candidates))
    told = [f"edge node {node} {why or 'is not elected yet'}" for node, why in reasons]
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
    """Whether a pattern fits a node with these labels. None: the hub does not know the labels."""
    if not pattern.startswith(_LABEL):
        return fnmatchcase(node, pattern)
    key, value = _label_of(pattern)
    return labels is not None and key in labels and value in {None, labels[key]}


def patterns_of(driver: str, sets: Iterable[NodeSet]) -> tuple[str, ...]:
    return tuple(pattern for each in sets if each.driver == driver for pattern in each.patterns)


_PATTERN: Final = re.compile(r"[a-z0-9.*?-]{1,253}")  # a node's name (RFC 1123), with wildcards
_LABEL: Final = "label:"  # the beginning of a pattern that is a label: no node's name has a colon
SHOWN: Final = 5  # a message names at most this many nodes


def _why_not(node: str, candidates: Mapping[str, ServingCandidate], rules: ElectionRules) -> str:
    candidate = candidates.get(node)
    if candidate is None:
        return "is not known any more"
    if rules.lacks(candidate.labels):
        return "has labels that the hub has not read from the cluster yet"
    return candidate.unfit if rules.admits(node, candidate) else "is not among --candidates"


def _is_pattern(text: str) -> bool:
    if not text.startswith(_LABEL):
        return _PATTERN.fullmatch(text) is not None
    key, value = _label_of(text)
    return is_label(key, value or "")


def _label_of(pattern: str) -> tuple[str, str | None]:
    key, equals, value = pattern.removeprefix(_LABEL).partition("=")
    return key, value if equals else None  # None fits any value
