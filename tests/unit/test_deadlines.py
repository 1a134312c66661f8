"""Deadlines of many calls, for one timer."""

from common.deadlines import Deadlines


def test_the_deadlines_that_have_passed_come_earliest_first_and_once() -> None:
    deadlines = Deadlines()
    for when, number in ((3.0, 1), (1.0, 3), (2.0, 5)):
        deadlines.add(when, number, {1, 3, 5})
    assert deadlines.first == 1.0
    assert deadlines.passed(2.0) == [3, 5]
    assert deadlines.passed(2.0) == []
    assert deadlines.first == 3.0


def test_no_deadlines_have_no_first_one() -> None:
    deadlines = Deadlines()
    assert deadlines.first is None
    deadlines.add(1.0, 1, {1})
    deadlines.clear()
    assert deadlines.first is None


def test_the_deadlines_of_ended_calls_are_dropped_when_they_are_many() -> None:
    deadlines = Deadlines()
    for number in range(1_000):
        deadlines.add(float(number), number, {number})
    assert len(deadlines) <= 70
