"""Fixtures: processes of the example driver."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.testdriver.conftest import pod, root, start
from tests.integration.testdriver.support import Running

__all__ = ["driver", "pod", "root", "start"]


@pytest.fixture
def driver(start: Callable[..., Running]) -> Running:
    """The example driver."""
    settings: dict[str, Any] = {"example": True}
    return start(**settings)
