"""The comparison of two runs of the same specs, and the document of it: docs/upstream-e2e.md."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

from tests.e2e.upstream.suite import LEFT_OUT, Outcome, Spec

_INTRODUCTION = """\
# Kubernetes' own storage tests, direct and through the bridge

This page is for vendors and operators: does a driver work through the bridge as it does without the bridge? Kubernetes
v1.36.3 has a test suite for any CSI driver (`test/e2e`, External Storage); each test is a *spec*. `make e2e-upstream`
runs the suite twice on one node (stock kubelet, containerd), with `tests/kit/testdriver` (`--fs=image`):

* **direct**: the stock sidecars call the driver's own socket;
* **bridge**: the sidecars call the proxy driver's socket. The hub forwards each call to the agent, which runs beside
  the kubelet (`--registration=observe`).

The command writes this file, and fails if a spec fails, or does not end the same way in both runs.
"""


@dataclass(frozen=True)
class Comparison:
    """Two runs."""

    direct: Mapping[str, Spec]  # the specs of the run on the driver's own socket, by name
    bridge: Mapping[str, Spec]  # those of the run through the bridge

    @property
    def names(self) -> list[str]:
        """The specs of either run, in order."""
        return sorted({*self.direct, *self.bridge})

    def faults(self) -> list[str]:
        """What is wrong with it, a line each: specs that failed, or ended in two ways."""
        return [f"{name}: {fault}" for name in self.names if (fault := self._fault(name))]

    def document(self, day: date) -> str:
        """The page about runs of this day."""
        return "\n".join(self._lines(day)) + "\n"

    def _fault(self, name: str) -> str:
        direct, bridge = _outcome(self.direct, name), _outcome(self.bridge, name)
        if direct != bridge:
            why = "".join(
                f"\n    {spec.why}" for run in (self.direct, self.bridge) if (spec := run.get(name)) and spec.why
            )
            return f"{direct} direct, {bridge} through the bridge{why}"
        if direct == Outcome.FAILED:
            return f"failed both ways\n    {self.direct[name].why}"
        return ""

    def _lines(self, day: date) -> Iterator[str]:
        yield _INTRODUCTION
        yield f"The last run, on {day}:"
        yield ""
        yield "| | direct | bridge |"
        yield "|---|---|---|"
        for outcome in Outcome:
            yield f"| {outcome} | {_count(self.direct, outcome)} | {_count(self.bridge, outcome)} |"
        differing = [name for name in self.names if _outcome(self.direct, name) != _outcome(self.bridge, name)]
        yield ""
        yield f"Specs that end differently: {len(differing) or 'none'}."
        if differing:
            yield ""
            yield "| spec | direct | bridge |"
            yield "|---|---|---|"
            for name in differing:
                yield f"| {_cell(name)} | {_outcome(self.direct, name)} | {_outcome(self.bridge, name)} |"
        yield ""
        yield "Not run, by the label in the spec's name:"
        yield ""
        yield from (f"* `{part}`: {why}" for part, why in LEFT_OUT.items())
        yield ""
        yield "## By test pattern"
        yield ""
        yield "Specs that end the same way in both runs, of the patterns that this driver supports:"
        yield ""
        yield "| pattern | tests | passed | skipped |"
        yield "|---|---|---|---|"
        same = [name for name in self.names if name not in differing]
        for pattern, grouped in groupby(sorted(same, key=_pattern), key=_pattern):
            names = list(grouped)
            if any(not self._ends(name, Outcome.SKIPPED) for name in names):
                yield self._row(pattern, names)
        skipped = Counter(_reason(self.direct[name].why) for name in same if self._ends(name, Outcome.SKIPPED))
        if skipped:
            yield ""
            yield "## Reasons to skip"
            yield ""
            yield "The suite skips these specs itself, with these messages:"
            yield ""
            yield "| message | specs |"
            yield "|---|---|"
            yield from (f"| {_cell(why)} | {number} |" for why, number in sorted(skipped.items()))

    def _row(self, pattern: str, names: Sequence[str]) -> str:
        skipped = sum(self._ends(name, Outcome.SKIPPED) for name in names)
        tests = ", ".join(dict.fromkeys(_tests(name) for name in names))
        return f"| {_cell(pattern)} | {_cell(tests)} | {len(names) - skipped} | {skipped} |"

    def _ends(self, name: str, outcome: Outcome) -> bool:
        return _outcome(self.direct, name) == _outcome(self.bridge, name) == outcome


_PATTERN = re.compile(r"\[Testpattern: (?P<pattern>[^]]*)\]\s*(?P<tests>[\w-]*)")


def _pattern(name: str) -> str:
    """`[Testpattern: Dynamic PV (ext4)] volumes should …` → `Dynamic PV (ext4)`; any other name is its own pattern."""
    found = _PATTERN.match(name)
    return found["pattern"] if found else name


def _tests(name: str) -> str:
    """`[Testpattern: Dynamic PV (ext4)] volumes should …` → `volumes`."""
    found = _PATTERN.match(name)
    return found["tests"] if found else ""


def _reason(why: str) -> str:
    return re.sub(r"\s*--?\s*skipping$", "", why).rstrip(".")


def _outcome(run: Mapping[str, Spec], name: str) -> str:
    return run[name].outcome if name in run else "absent"


def _count(run: Mapping[str, Spec], outcome: Outcome) -> int:
    return sum(spec.outcome == outcome for spec in run.values())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
