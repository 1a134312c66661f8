"""An earlier result: what became better or worse since, and what is only noise.

Two results differ if their intervals (`bench.spread`) do not touch. An interval is at least as wide as runs of the same
code differ. Figures are found by their names.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.spread import Spread

BUSY_PERCENT = 10.0
"""On two cores other work of this share makes a call through three processes several times slower."""


@dataclass(frozen=True)
class Comparison:
    """One figure of two runs.

    Attributes:
        name: of the figure.
        before: its earlier spread.
        now: its spread.
        verdict: `better`, `worse` or `noise`.
    """

    name: str
    before: Spread
    now: Spread
    verdict: str

    def __str__(self) -> str:
        """The row for people."""
        return f"{self.verdict:<6}  {self.name}: {_told(self.before)} -> {_told(self.now)}"


@dataclass(frozen=True)
class Result:
    """A stored result.

    Attributes:
        figures: by name.
        record: all of it, as stored.
    """

    figures: Mapping[str, Figure]
    record: Mapping[str, Any]

    def doubts(self, now: Mapping[str, Any]) -> list[str]:
        """Return what spoils a comparison with the record of a later run."""
        found = []
        if (machine := self.record.get("machine")) != now["machine"]:
            found.append(f"the earlier result is of another machine: {machine}")
        if self.record.get("coarse") != now["coarse"]:
            found.append("the earlier result has another load generator, so times of a call do not compare")
        if (busy := self.record.get("busy_percent", 0.0)) > BUSY_PERCENT:
            found.append(f"other work took {busy:.0f} % of the machine in the earlier run")
        return found


def read_result(path: Path) -> Result:
    """Return a stored result.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no result of the bench.
    """
    try:
        record = json.loads(path.read_text())
        figures = [Figure(**row) for row in record["figures"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of the bench: {error!r}") from error
    return Result({figure.name: figure for figure in figures}, record)


def compare(earlier: Mapping[str, Figure], found: Iterable[Figure]) -> list[Comparison]:
    """Return a row for each figure that both runs have with samples."""
    rows = []
    for figure in found:
        before = earlier[figure.name].spread if figure.name in earlier else None
        now = figure.spread
        if before is not None and now is not None:
            verdict = _verdict(before, now, more_is_better=figure.more_is_better)
            rows.append(Comparison(figure.name, before, now, verdict))
    return rows


def _verdict(before: Spread, now: Spread, *, more_is_better: bool) -> str:
    if now.low <= before.high and before.low <= now.high:
        return "noise"
    return "better" if (now.median > before.median) is more_is_better else "worse"


def _told(spread: Spread) -> str:
    return f"{spread.median:.4g} ({spread.low:.4g} to {spread.high:.4g})"
