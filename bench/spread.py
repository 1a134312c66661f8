"""A spread: the samples of one quantity, and the interval in which their median lies.

The interval needs no assumption about the noise: between the k-th smallest and the k-th largest of n samples lies the
median of all possible samples, with a probability that only n and k decide. Of five samples the smallest and the
largest enclose it in 94 of 100 cases.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

LEAST = 5
"""The fewest samples with an interval of this confidence."""

_CONFIDENCE = 0.9
_MOST = 15
_NARROW = 0.04
"""An interval is narrow if neither end is further from the median than this share of it."""


@dataclass(frozen=True)
class Spread:
    """What some samples tell.

    Attributes:
        median: of the samples.
        low: the lower end of the interval.
        high: its upper end.
    """

    median: float
    low: float
    high: float

    @property
    def narrow(self) -> bool:
        """Whether more samples would hardly change the median."""
        reach = abs(self.median) * _NARROW
        return self.high - self.median <= reach and self.median - self.low <= reach


def spread_of(samples: Sequence[float], *, blur: float = 0.0) -> Spread:
    """Return the spread of at least one sample.

    Args:
        samples: in any order.
        blur: the share by which results of the same code differ from one run to another. Where there are enough samples
            for an interval, it counts up to the precision with which a run is content.
    """
    middle, ranked = median(samples), sorted(samples)
    k = _rank(len(ranked)) if len(ranked) >= LEAST else 1
    reach = abs(middle) * (blur if len(ranked) < LEAST else min(blur, _NARROW))
    return Spread(middle, min(ranked[k - 1], middle - reach), max(ranked[-k], middle + reach))


def _rank(count: int) -> int:
    """Return the largest k whose interval has the confidence."""
    k, missed = 0, 0.0
    while missed <= 1 - _CONFIDENCE:
        missed += 2 * comb(count, k) / 2**count
        k += 1
    return k - 1


def repeat(
    measure: Callable[[], Mapping[str, float]],
    *,
    limit_s: float,
    judged: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[float]]:
    """Measure until each quantity is known well enough, at least five times, and return the samples of each.

    Args:
        measure: returns one sample of each quantity.
        limit_s: ends a measurement that stays noisy, once it has five samples.
        judged: the quantities whose intervals have to be narrow; empty: all.
        clock: monotonic seconds.
    """
    until = clock() + limit_s
    found: dict[str, list[float]] = {}
    while True:
        for name, value in measure().items():
            found.setdefault(name, []).append(value)
        count = len(next(iter(found.values())))
        if count >= _MOST or (count >= LEAST and (clock() >= until or _known(found, judged or tuple(found)))):
            return found


def _known(found: Mapping[str, list[float]], names: Sequence[str]) -> bool:
    return all(spread_of(found[name]).narrow for name in names)
