"""Waits for an effect of another process, by looking again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_INTERVAL_S = 0.05


class NeverCameError(AssertionError):
    """The effect did not come in time; the message names it, and shows the state instead."""


def let_pass(seconds: float) -> None:
    """Let some time pass, where a test acts at a moment that no event announces."""
    time.sleep(seconds)


def wait_for(
    look: Callable[[], T | None],
    *,
    what: str,
    timeout_s: float = 30.0,
    instead: Callable[[], object] = lambda: "",
) -> T:
    """Return the first true result of `look`, which is called every 50 ms. It must not raise for "not yet".

    Raises:
        NeverCameError: `timeout_s` is over. Its message is "there was no <name> within 30 s" with the name from the
            call, and the result of `instead`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NeverCameError(f"there was no {what} within {timeout_s:g} s\n{instead()}".rstrip())
        time.sleep(_INTERVAL_S)
