"""Waits: back-off, deadlines of many calls, and the token bucket."""

from common.links import uplink
from common.links.backoff import Backoff
from common.observe.token_bucket import Bucket
from common.session.deadlines import Deadlines


def test_each_wait_is_twice_the_one_before_up_to_the_limit() -> None:
    backoff = Backoff(first_s=2.5, most_s=16.0)
    assert [backoff.wait_s(failures) for failures in range(1, 6)] == [2.5, 5.0, 10.0, 16.0, 16.0]


def test_the_jitter_has_the_last_word() -> None:
    backoff = Backoff(first_s=2.0, most_s=10.0, jitter=lambda wait_s: wait_s / 2)
    assert [backoff.wait_s(failures) for failures in (1, 9)] == [1.0, 5.0]


def test_failures_without_end_are_no_number_too_large() -> None:
    assert Backoff(first_s=1e-3, most_s=60.0).wait_s(10**9) == 60.0


def test_dials_wait_from_one_second_to_one_that_doubles_up_to_thirty() -> None:
    for failures, longest_s in ((1, 2.0), (2, 4.0), (9, 30.0)):
        waits = [uplink.REDIAL.wait_s(failures) for _ in range(200)]
        assert 1.0 <= min(waits) < max(waits) <= longest_s


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
    assert len(deadlines._heap) <= 70


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(a_second=2.0, burst=3.0, at=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
