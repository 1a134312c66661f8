"""Fixtures: processes of the test driver, each test's own."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.testdriver.support import Running
from tests.kit.leftovers import clear


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory with a path short enough for sockets; what a failed test left mounted there is taken away."""
    with tempfile.TemporaryDirectory(prefix="dir-") as name, contextlib.ExitStack() as stack:
        path = Path(name).resolve()
        stack.callback(clear, path)
        yield path


@pytest.fixture
def start(root: Path) -> Iterator[Callable[..., Running]]:
    """Starts drivers with flags and the keyword arguments of `Running`; stops them at the end."""
    with contextlib.ExitStack() as stack:

        def started(*flags: str, **settings: Any) -> Running:
            driver = Running(root, *flags, **settings)
            stack.callback(driver.stop)
            return driver.start()

        yield started


@pytest.fixture
def driver(start: Callable[..., Running]) -> Running:
    """A driver with its default switches."""
    return start()


@pytest.fixture
def pod(root: Path) -> Path:
    """A directory where a CO puts staging and target paths."""
    path = root / "pod"
    path.mkdir()
    return path
