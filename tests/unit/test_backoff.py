"""A back-off: the kubelet's distances between tries."""

from __future__ import annotations

from edge.backoff import Backoff


def test_the_distance_doubles_up_to_two_minutes_and_two_seconds() -> None:
    backoff, now, waits = Backoff(), 0.0, []
    for _ in range(11):
        backoff.failed(now)
        waits.append(backoff.ready_at - now)
        now = backoff.ready_at
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122, 122]
    assert backoff.failures == 11


def test_what_it_needs_having_changed_it_may_be_tried_at_once_and_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.failed(100.0)
    backoff.retry_now()
    assert backoff.ready_at == 0.0
    backoff.failed(100.0)
    assert backoff.ready_at == 100.5
