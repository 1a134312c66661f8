"""An earlier result: what became better or worse since, and what is only noise.

Two results differ if their intervals (`bench.spread`) do not touch. Figures are found by their names.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.figure import Figure
from bench.spread import Spread


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


def read_result(path: Path) -> dict[str, Figure]:
    """Return the figures of a stored result by name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no result of the bench.
    """
    try:
        figures = [Figure(**row) for row in json.loads(path.read_text())["figures"]]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no result of the bench: {error!r}") from error
    return {figure.name: figure for figure in figures}


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
