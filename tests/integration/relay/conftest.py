"""Every test of the relay runs on asyncio's own loop and on uvloop, which the processes use."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a limit end the process of a test on uvloop: what a signal's handler raises there ends no test."""
    for item in items:
        if "uvloop" in item.name:
            item.add_marker(pytest.mark.timeout(120, method="thread"))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vendor.sock"
