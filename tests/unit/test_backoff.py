"""A back-off: waits that grow up to a limit."""

from __future__ import annotations

from common import uplink
from common.backoff import Backoff


def test_each_wait_is_a_multiple_of_the_one_before_up_to_the_limit() -> None:
    backoff = Backoff(first_s=0.5, most_s=10.0, factor=3.0)
    assert [backoff.wait_s(failures) for failures in range(1, 6)] == [0.5, 1.5, 4.5, 10.0, 10.0]


def test_the_jitter_has_the_last_word() -> None:
    backoff = Backoff(first_s=2.0, most_s=10.0, jitter=lambda wait_s: wait_s / 2)
    assert [backoff.wait_s(failures) for failures in (1, 9)] == [1.0, 5.0]


def test_failures_without_end_are_no_number_too_large() -> None:
    assert Backoff(first_s=1e-3, most_s=60.0).wait_s(10**9) == 60.0


def test_dials_wait_from_one_second_to_one_that_doubles_up_to_thirty() -> None:
    for failures, longest_s in ((1, 2.0), (2, 4.0), (9, 30.0)):
        waits = [uplink.REDIAL.wait_s(failures) for _ in range(200)]
        assert 1.0 <= min(waits) < max(waits) <= longest_s
