"""Limits that no session could work with are refused where they are made, by the rule that also judges a peer's."""

import pytest

from common.session.limits import Limits, flaw


def test_the_defaults_work() -> None:
    assert flaw(Limits()) == ""


def test_a_session_window_must_hold_the_largest_message_beside_a_quarter_that_may_be_owed() -> None:
    with pytest.raises(ValueError, match="its session window is too small for its largest message"):
        Limits(max_message_bytes=1_000, session_window_bytes=1_418)  # (1000 + 64) * 4 / 3 = 1418.7
    Limits(max_message_bytes=1_000, session_window_bytes=1_419)


def test_something_must_be_allowed_at_all() -> None:
    for limits in ({"max_streams": 0}, {"stream_window_bytes": 0}):
        with pytest.raises(ValueError, match="it allows no stream, or nothing on one"):
            Limits(**limits)
