"""The comparison of two runs of the same specs, and the document of it: docs/upstream-e2e.md."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from tests.e2e.upstream.suite import LEFT_OUT, Outcome, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXPLANATIONS: dict[str, str] = {}
"""Part of a spec's name → why it fails also without the bridge."""

_INTRODUCTION = """\
# Kubernetes' own storage tests, direct and through the bridge

Kubernetes v1.36.3 has tests for any CSI driver (`test/e2e`, External Storage). They ran twice on the same node, a stock
kubelet with containerd, and on the same driver, dirdriver with `--fs=image`: once with the stock sidecars on the
driver's own socket and no bridge, and once with the sidecars on the proxy driver's socket, the hub in between, and the
agent beside the kubelet (`--registration=observe`).

This file is made by `make e2e-upstream`, which fails if a spec does not end the same way in both.
"""


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        direct: the specs of the run on the driver's own socket, by name.
        bridge: those of the run through the bridge.
    """

    direct: Mapping[str, Spec]
    bridge: Mapping[str, Spec]

    @property
    def names(self) -> list[str]:
        """The specs of either run, in order."""
        return sorted({*self.direct, *self.bridge})

    def faults(self) -> list[str]:
        """What is wrong with it, a line each: specs that ended otherwise, and failures that nobody has explained."""
        return [f"{name}: {fault}" for name in self.names if (fault := self._fault(name))]

    def document(self) -> str:
        """The document, in Markdown."""
        return "\n".join(self._lines()) + "\n"

    def _fault(self, name: str) -> str:
        direct, bridge = _outcome(self.direct, name), _outcome(self.bridge, name)
        if direct != bridge:
            why = "".join(
                f"\n    {spec.why}" for run in (self.direct, self.bridge) if (spec := run.get(name)) and spec.why
            )
            return f"{direct} direct, {bridge} through the bridge{why}"
        if direct == Outcome.FAILED and not _explanation(name):
            return f"failed both ways, and nothing explains it\n    {self.direct[name].why}"
        return ""

    def _lines(self) -> Iterator[str]:
        skipped = [
            name for name in self.names if _outcome(self.direct, name) == _outcome(self.bridge, name) == Outcome.SKIPPED
        ]
        ran = [name for name in self.names if name not in skipped]
        yield _INTRODUCTION
        yield "| | direct | through the bridge |"
        yield "|---|---|---|"
        for outcome in Outcome:
            yield f"| {outcome} | {_count(self.direct, outcome)} | {_count(self.bridge, outcome)} |"
        differing = [name for name in self.names if _outcome(self.direct, name) != _outcome(self.bridge, name)]
        yield ""
        yield f"Specs that end differently: {len(differing) or 'none'}."
        yield ""
        yield "Not run, by their names:"
        yield ""
        yield from (f"* `{part}`: {why}" for part, why in LEFT_OUT.items())
        explained = {
            name: why for name in ran if _outcome(self.direct, name) == Outcome.FAILED and (why := _explanation(name))
        }
        if explained:
            yield ""
            yield "## What fails also without the bridge"
            yield ""
            yield from (f"* {name}: {why}" for name, why in explained.items())
        yield ""
        yield "## Spec by spec"
        yield ""
        yield "| spec | direct | bridge |"
        yield "|---|---|---|"
        for name in ran:
            yield f"| {_cell(name)} | {_outcome(self.direct, name)} | {_outcome(self.bridge, name)} |"
        yield ""
        yield "## What the suite skips itself"
        yield ""
        yield "In both runs, for the reason that the suite gives."
        reasons = {name: self.direct[name].why for name in skipped}
        for why, names in groupby(sorted(skipped, key=lambda it: (reasons[it], it)), key=reasons.__getitem__):
            yield ""
            yield f"**{_cell(why)}**"
            yield ""
            yield from (f"* {name}" for name in names)


def _outcome(run: Mapping[str, Spec], name: str) -> str:
    return run[name].outcome if name in run else "absent"


def _count(run: Mapping[str, Spec], outcome: Outcome) -> int:
    return sum(spec.outcome == outcome for spec in run.values())


def _explanation(name: str) -> str:
    return next((why for part, why in EXPLANATIONS.items() if part in name), "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
