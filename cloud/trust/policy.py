"""A policy: rules that say which nodes may report which drivers, and which proxy drivers may call which drivers.

Rules:

* A rule allows. Nothing forbids, so the order of the rules has no meaning.
* A section that the policy has is complete: the hub refuses a report or a call that none of its rules allows. A section
  that it does not have allows everything, as without a policy.
* A rule with a topology allows only reports whose every segment is in it. A report without segments claims no place, so
  such a rule allows it, too. The bridge's own segment, which is the node's name, needs no rule.
* A verdict says the line of the rule that allows, or the nearest reason why none does.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from common.topology import NODE_SEGMENT

OWN_NAME: Final = "{node}"
"""Stands in a value of a topology for the name of the reporting node. No value of a label has a brace."""

_SHOWN_CHARS: Final = 100
"""A peer's own text is cut here."""

_MOST_VERDICTS: Final = 4_096
"""Verdicts about calls that are kept: many more than the pairs of proxy driver and driver of a large site."""


class Patterns:
    """Names and globs: `*` stands for any text, `?` for one character."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Of these texts. They have no `[`, which would begin a set of characters."""
        self.texts = tuple(texts)
        self._exact = frozenset(text for text in texts if not _is_glob(text))
        self._globs = [re.compile(fnmatch.translate(text)) for text in texts if _is_glob(text)]

    def match(self, name: str) -> bool:
        """Whether one of them is the name, or matches it."""
        return name in self._exact or any(glob.match(name) for glob in self._globs)

    def __str__(self) -> str:
        """The texts, for a sentence."""
        return ", ".join(self.texts)


def _is_glob(text: str) -> bool:
    return "*" in text or "?" in text


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: each of `names` may report, or call, each of `drivers`.

    Attributes:
        line: its line in the file.
        names: node names, or the identities of proxy drivers.
        drivers: driver names.
        topology: for nodes, the values that are allowed by key; both are globs. None: every topology.
    """

    line: int
    names: Patterns
    drivers: Patterns
    topology: tuple[tuple[Patterns, Patterns], ...] | None = None

    def stray(self, node: str, segments: Mapping[str, str]) -> str:
        """The first segment that this rule does not allow, as `KEY=VALUE`; empty if it allows all."""
        if self.topology is None:
            return ""
        for key, value in segments.items():
            if (key, value) != (NODE_SEGMENT, node) and not self._has(node, key, value):
                return f"{_shown(key)}={_shown(value)}"
        return ""

    def _has(self, node: str, key: str, value: str) -> bool:
        found = (values for keys, values in self.topology or () if keys.match(key))
        return any(values.match(value) or (value == node and OWN_NAME in values.texts) for values in found)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question.

    Attributes:
        allowed: whether the policy allows it.
        why: the rule that allows it, or the reason, as a part of a sentence: `line 4 of /etc/policy.yaml`.
        line: the line of the rule that allows it; 0 if there is none.
    """

    allowed: bool
    why: str
    line: int = 0


class Rules:
    """The rules of one section. A file may have thousands, so those for one name are found by a table."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._all = list(rules)
        self._named: dict[str, list[Rule]] = {}
        self._with_globs = []
        for rule in self._all:
            for text in filter(lambda text: not _is_glob(text), rule.names.texts):
                self._named.setdefault(text, []).append(rule)
            if any(map(_is_glob, rule.names.texts)):
                self._with_globs.append(rule)

    def __iter__(self) -> Iterator[Rule]:
        """All rules, in the order of the file."""
        return iter(self._all)

    def __len__(self) -> int:
        """How many rules there are."""
        return len(self._all)

    def of(self, name: str) -> list[Rule]:
        """The rules for one name, in the order of the file."""
        found = {id(rule): rule for rule in self._named.get(name, ())}
        found |= {id(rule): rule for rule in self._with_globs if rule.names.match(name)}
        return sorted(found.values(), key=lambda rule: rule.line)


@dataclass(frozen=True, eq=False)
class Policy:
    """The rules of one file.

    Attributes:
        source: the file's path, for verdicts; empty without a file.
        nodes: which nodes may report which drivers; None: each node may report every driver.
        proxies: which proxy drivers may call which drivers; None: each may call its own, as admission checks.
    """

    source: str = ""
    nodes: Rules | None = None
    proxies: Rules | None = None
    _calls: dict[tuple[str, str], Verdict] = field(default_factory=dict, init=False, repr=False)

    def allows_report(self, node: str, driver: str, segments: Mapping[str, str]) -> Verdict:
        """Whether a node may report a driver.

        Args:
            node: the node's name.
            driver: the driver's name.
            segments: the topology of the report.
        """
        if self.nodes is None:
            return Verdict(allowed=True, why=self._free("nodes"))
        near = ""
        for rule in self.nodes.of(node):
            if not rule.drivers.match(driver):
                continue
            if not (stray := rule.stray(node, segments)):
                return self._by(rule)
            near = near or f"line {rule.line} of {self.source} does not allow its topology {stray}"
        return Verdict(allowed=False, why=near or f"no rule of {self.source} allows it to report this driver")

    def allows_call(self, identity: str, driver: str) -> Verdict:
        """Whether a proxy driver may call a driver.

        Args:
            identity: the name in its certificate; `uid:N` on the hub's UNIX socket.
            driver: the driver's name.
        """
        found = self._calls.get((identity, driver))
        if found is None:
            found = self._judge_call(identity, driver)
            if len(self._calls) < _MOST_VERDICTS:
                self._calls[identity, driver] = found
        return found

    def drivers_of(self, node: str) -> list[str]:
        """The drivers, and globs of drivers, that the rules for a node name."""
        return [text for rule in (self.nodes.of(node) if self.nodes is not None else ()) for text in rule.drivers.texts]

    def callers_of(self, driver: str) -> list[str]:
        """The identities, and globs of identities, that may call a driver; without rules its own proxy driver."""
        if self.proxies is None:
            return [driver]
        return sorted({text for rule in self.proxies if rule.drivers.match(driver) for text in rule.names.texts})

    def summary(self) -> str:
        """The number of rules of each section, for people."""
        return "; ".join(
            f"{name}: {'everything is allowed' if rules is None else f'{len(rules)} rules'}"
            for name, rules in (("nodes", self.nodes), ("proxies", self.proxies))
        )

    def _judge_call(self, identity: str, driver: str) -> Verdict:
        if self.proxies is None:
            return Verdict(allowed=True, why=self._free("proxies"))
        allowing = (rule for rule in self.proxies.of(identity) if rule.drivers.match(driver))
        rule = next(allowing, None)
        if rule is not None:
            return self._by(rule)
        why = f"no rule of {self.source} allows {_shown(identity)} to call driver {_shown(driver)}"
        return Verdict(allowed=False, why=why)

    def _by(self, rule: Rule) -> Verdict:
        return Verdict(allowed=True, why=f"line {rule.line} of {self.source}", line=rule.line)

    def _free(self, section: str) -> str:
        return f"{self.source} has no section {section}" if self.source else "the hub runs without --policy"


def _shown(text: str) -> str:
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    return text if text.isprintable() else ascii(text)[1:-1]
