"""The demo does not tell that all is well when it is not."""

import asyncio

import pytest

from cli.demo.stage import DemoError
from cli.demo.story import _refusal


async def test_a_call_that_is_answered_and_should_have_been_refused_fails_the_demo() -> None:
    with pytest.raises(DemoError, match="answered that should have been refused"):
        await _refusal(asyncio.sleep(0))
