"""What unit tests share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from common import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For a test that configures the log of its process: afterwards the log is as it was, for the tests that follow."""
    root, bridge = logging.getLogger(), logging.getLogger(logs.ROOT)
    handlers, level = list(root.handlers), bridge.level
    yield
    root.handlers[:] = handlers
    bridge.setLevel(level)
    if logs._lines is not None:
        logs._lines.close()
    logs._lines = None
