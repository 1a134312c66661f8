"""What the tests of placement share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.placement.world import World, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Three nodes whose vendor has no topology of its own."""
    world = World(tmp_path, report("n1"), report("n2"), report("n3"))
    yield world
    await world.placement.close()
