"""A spread: where the median of some samples lies, and when more samples are not worth their time."""

from collections.abc import Iterator, Mapping

import pytest

from bench.spread import Spread, repeat, spread_of


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(5, 1.0, 5.0), (7, 1.0, 7.0), (8, 2.0, 7.0), (11, 3.0, 9.0), (15, 4.0, 12.0)],
)
def test_the_more_samples_the_more_of_the_extreme_ones_are_left_out(count: int, low: float, high: float) -> None:
    found = spread_of([float(number) for number in range(count, 0, -1)])

    assert (found.low, found.high) == (low, high)


def test_one_outlier_of_eight_samples_changes_nothing() -> None:
    assert spread_of([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 90.0]) == Spread(1.0, 1.0, 1.0)


def test_a_single_sample_is_as_uncertain_as_its_blur() -> None:
    assert spread_of([50.0], blur=0.1) == Spread(50.0, 45.0, 55.0)
    assert spread_of([50.0]) == Spread(50.0, 50.0, 50.0)


def test_few_samples_are_at_least_as_uncertain_as_they_differ() -> None:
    assert spread_of([40.0, 50.0, 70.0], blur=0.1) == Spread(50.0, 40.0, 70.0)


def test_repeats_of_one_run_that_agree_say_little_about_another_run() -> None:
    assert spread_of([100.0] * 5, blur=0.1) == Spread(100.0, 96.0, 104.0), (
        "a run ends when it knows its median within 4 %"
    )
    assert spread_of([90.0, 100.0, 100.0, 100.0, 110.0], blur=0.1) == Spread(100.0, 90.0, 110.0)


def _noise(*values: float) -> Iterator[Mapping[str, float]]:
    return iter([{"ratio": value, "other": value * value} for value in values])


def _clock(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += step_s


def test_five_equal_samples_are_enough() -> None:
    rounds = _noise(*[4.0] * 20)

    assert repeat(lambda: next(rounds), limit_s=60) == {"ratio": [4.0] * 5, "other": [16.0] * 5}


def test_a_noisy_measurement_is_repeated_until_its_interval_is_narrow() -> None:
    rounds = _noise(4.0, 5.0, *[4.0] * 20)

    found = repeat(lambda: next(rounds), limit_s=1e9)

    assert len(found["ratio"]) == 8, "of eight samples one on each side is left out"


def test_only_the_judged_quantity_has_to_be_known() -> None:
    rounds = iter([{"ratio": 4.0, "other": float(number)} for number in range(20)])

    assert len(repeat(lambda: next(rounds), limit_s=1e9, judged=["ratio"])["other"]) == 5


def test_what_stays_noisy_ends_after_fifteen_samples() -> None:
    rounds = _noise(*[1.0, 9.0] * 20)

    assert len(repeat(lambda: next(rounds), limit_s=1e9)["ratio"]) == 15


def test_what_stays_noisy_ends_at_the_limit_but_never_before_five_samples() -> None:
    rounds, seconds = _noise(*[1.0, 9.0] * 20), _clock(100.0)

    assert len(repeat(lambda: next(rounds), limit_s=60, clock=lambda: next(seconds))["ratio"]) == 5
