"""Waits for conditions, by looking again and again: `wait_for` in functions, `until` and `settle` in coroutines."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Between two looks lies a tenth of the time waited so far, within these bounds: a look takes the processor from what it
# waits for.
_SHORTEST_S, _LONGEST_S = 0.05, 0.5
_SHORTEST_IN_LOOP_S = 0.005

_TURNS_AT_ONCE = 100
"""The turns of the loop that `until` takes before it sleeps: enough for conditions without threads and processes."""

_MOST_TURNS = 5_000  # the turns after which `settle` gives up: some task never rests


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
    """Return the first true result of `look`, which is called again and again. It must not raise for "not yet".

    Raises:
        NeverCameError: `timeout_s` is over. Its message is "there was no <name> within 30 s" with the name from the
            call, and the result of `instead`.
    """
    began = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise NeverCameError(f"there was no {what} within {timeout_s:g} s\n{instead()}".rstrip())
        time.sleep(min(max(waited / 10, _SHORTEST_S), _LONGEST_S))


async def until(
    look: Callable[[], object], what: str = "such state", *, within_s: float = 30.0, instead: Callable[[], object] = str
) -> None:
    """Let the loop go on until `look` returns something true, or an awaitable of something true.

    Args:
        look: called again and again; must not raise for "not yet".
        what: ends the sentence "there was no … within 30 s".
        within_s: how long to wait.
        instead: called once, on failure: a text for the reader of the failure.

    Raises:
        NeverCameError: `look` was never true.
    """
    began, turns = time.monotonic(), 0
    while True:
        found = look()
        if await found if inspect.isawaitable(found) else found:
            return
        waited = time.monotonic() - began
        if waited > within_s:
            raise NeverCameError(f"there was no {what} within {within_s:g} s\n{instead()}".rstrip())
        turns += 1
        await asyncio.sleep(0 if turns < _TURNS_AT_ONCE else min(max(waited / 10, _SHORTEST_IN_LOOP_S), _LONGEST_S))


async def settle() -> None:
    """Let the loop go on until no task can run without time passing, a thread, or another process.

    Raises:
        NeverCameError: some task never rests.
    """
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # asyncio tells it to nobody
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if not ready:
            return
    raise NeverCameError(f"the loop never came to rest: {ready}")
