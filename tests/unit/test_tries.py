"""The tries of a step: the kubelet's distances between them."""

from edge.wanted.tries import Tries


def test_the_distance_doubles_up_to_two_minutes_and_two_seconds() -> None:
    tries, now, waits = Tries(), 0.0, []
    for _ in range(11):
        tries.failed(now)
        waits.append(tries.ready_at - now)
        now = tries.ready_at
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122, 122]
    assert tries.failures == 11


def test_what_it_needs_having_changed_it_may_be_tried_at_once_and_begins_anew() -> None:
    tries = Tries()
    for _ in range(5):
        tries.failed(100.0)
    tries.retry_now()
    assert (tries.ready_at, tries.failures) == (0.0, 5)
    tries.failed(100.0)
    assert (tries.ready_at, tries.failures) == (100.5, 6)
