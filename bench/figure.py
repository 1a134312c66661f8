"""A figure: one row of the bench's tables, with the samples that a later run can be compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.spread import Spread, spread_of

_BLUR = 0.1
"""By this share a figure with few samples differs from one run to another on a quiet machine."""


class NotMeasured(Exception):
    """The measurement failed, so a number would mean nothing; the message is the reason."""


@dataclass
class Figure:
    """One row of a table.

    Attributes:
        name: the measured quantity, for people. It names the row in stored results, too.
        measured: the number with its unit.
        target: the target; empty for a figure without one.
        met: whether the target is met; None without one.
        details: the numbers behind it.
        samples: the number itself, once for each repeat; empty: two runs cannot be compared.
        more_is_better: of the number; False: less is better.
        blur: the share by which the number differs between runs of the same code.
        peers: the same quantity of others in the same run, by their name, with its unit.
    """

    name: str
    measured: str
    target: str = ""
    met: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    more_is_better: bool = False
    blur: float = _BLUR
    peers: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`ok`, `missed`, or nothing without a target."""
        return "" if self.met is None else "ok" if self.met else "missed"

    @property
    def spread(self) -> Spread | None:
        """The spread of its samples; None without any."""
        return spread_of(self.samples, blur=self.blur) if self.samples else None


def of_samples(
    name: str,
    samples: Sequence[float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
    digits: int = 2,
    peers: dict[str, str] | None = None,
) -> Figure:
    """Return the figure of a repeated measurement: its median, the interval of the median, and its verdict.

    Args:
        name: of the quantity.
        samples: one number of each repeat.
        unit: follows the number.
        at_most: the target, if less is better.
        at_least: the target, if more is better.
        note: more for people, in parentheses.
        digits: behind the point.
        peers: the quantity of others.
    """
    spread = spread_of(samples)
    interval = f"{spread.low:.{digits}f} to {spread.high:.{digits}f}"
    measured = (
        f"{spread.median:.{digits}f} {unit}, {interval}" if len(samples) > 1 else f"{spread.median:.{digits}f} {unit}"
    )
    figure = Figure(name, f"{measured} ({note})" if note else measured)
    figure.samples, figure.more_is_better, figure.peers = list(samples), at_least is not None, peers or {}
    if at_most is not None:
        figure.target, figure.met = f"<= {at_most:g} {unit}", spread.median <= at_most
    if at_least is not None:
        figure.target, figure.met = f">= {at_least:g} {unit}", spread.median >= at_least
    return figure


def at_share(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by this share of all."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def spread_ms(seconds: Sequence[float]) -> dict[str, int]:
    """Return the percentiles of some times in milliseconds, for a figure's details."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(at_share(seconds, share) * 1000) for name, share in shares.items()}
