"""The token bucket: a burst at once, and then its rate."""

from __future__ import annotations

from common.token_bucket import Bucket


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(a_second=2.0, burst=3.0, at=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
