"""A line limit: a burst for each peer and kind of line, some more each minute, and a count of the rest."""

import pytest

from common import line_limit
from common.line_limit import BURST, LINES_A_MINUTE, LineLimit


def admitted(limit: LineLimit[int], peer: str, count: int, *, now: float, kind: str = "k") -> int:
    """How many of so many lines the limit admits."""
    return sum(limit.admits(peer, kind, number, now) for number in range(count))


def test_a_peer_gets_a_burst_and_then_some_lines_a_minute() -> None:
    limit: LineLimit[int] = LineLimit()
    assert admitted(limit, "n1", 500, now=0.0) == BURST
    assert admitted(limit, "n1", 500, now=60.0) == LINES_A_MINUTE
    assert admitted(limit, "n1", 500, now=3_600.0) == BURST


def test_the_last_held_line_comes_with_the_number_of_the_others_once() -> None:
    limit: LineLimit[int] = LineLimit()
    admitted(limit, "n1", BURST + 4_312, now=0.0)
    assert limit.holds
    assert limit.take_held() == [(BURST + 4_311, 4_311)]
    assert limit.take_held() == []
    assert not limit.holds


def test_peers_and_kinds_have_allowances_of_their_own() -> None:
    limit: LineLimit[int] = LineLimit()
    admitted(limit, "n1", 500, now=0.0)
    assert admitted(limit, "n2", 1, now=0.0) == 1
    assert admitted(limit, "n1", 1, now=0.0, kind="other") == 1


def test_invented_peers_share_one_allowance_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_limit, "MOST_BUCKETS", 10)
    limit: LineLimit[int] = LineLimit()
    assert sum(limit.admits(f"p{number}", "k", number, 0.0) for number in range(1_000)) == 10 + BURST
    assert len(limit._buckets) == 11
    assert limit.take_held() == [(999, 1_000 - 10 - BURST - 1)]


def test_silent_peers_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_limit, "MOST_BUCKETS", 10)
    limit: LineLimit[int] = LineLimit()
    for number in range(10):
        limit.admits(f"p{number}", "k", number, 0.0)
    assert admitted(limit, "new", 500, now=600.0) == BURST
    assert len(limit._buckets) == 1
