"""Waiting for something another process does, by looking again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_INTERVAL_S = 0.05


class NeverCameError(AssertionError):
    """What was waited for did not come in time; the message says what, and what there was instead."""


def let_pass(seconds: float) -> None:
    """Let some time pass, where a test wants to strike at a moment that nothing announces."""
    time.sleep(seconds)


def wait_for(
    look: Callable[[], T | None],
    *,
    what: str,
    timeout_s: float = 30.0,
    instead: Callable[[], object] = lambda: "",
) -> T:
    """What `look` returns as soon as it is true.

    Args:
        look: asked every 50 ms; must not raise for "not yet".
        what: ends the sentence "there was no … within 30 s".
        timeout_s: how long to wait.
        instead: asked once, on failure: what the reader of the failure should see.

    Raises:
        NeverCameError: `look` was never true.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NeverCameError(f"there was no {what} within {timeout_s:g} s\n{instead()}".rstrip())
        time.sleep(_INTERVAL_S)
