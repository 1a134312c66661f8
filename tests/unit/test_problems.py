"""Which problems of a node count, and when they are told."""

from collections.abc import Awaitable, Callable

import pytest

from edge.reports.problems import Problems


class AllSeenError(Exception):
    """All looks of a test are done."""


def finding(*looks: list[str]) -> Callable[[], Awaitable[list[str]]]:
    left = iter(looks)

    async def look() -> list[str]:
        try:
            return next(left)
        except StopIteration:
            raise AllSeenError from None

    return look


async def test_a_problem_counts_when_it_has_lasted_and_is_logged_once_and_each_change_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge.reports.problems.LOOK_S", 0.0)
    told: list[list[str]] = []
    looks = (["passing"], ["lasting"], ["lasting"], ["lasting", "later"], ["later"], [], ["later"], ["later"])
    problems = Problems()
    with pytest.raises(AllSeenError):
        await problems.run(finding(*looks), changed=lambda: told.append(problems.standing))
    assert told == [["lasting"], ["later"], [], ["later"]]
    assert caplog.messages == ["lasting", "later", "later"]
