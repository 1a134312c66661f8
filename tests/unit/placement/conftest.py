"""What the tests of placement share."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.csi.reports import DriverReport
from tests.kit.placed_nodes import Placed, Placing, report


@pytest.fixture
async def placed(tmp_path: Path) -> AsyncIterator[Placing]:
    """Makes nodes with placement over them, and closes it."""
    made: list[Placed] = []

    def make(*reports: DriverReport, **how: Any) -> Placed:
        made.append(Placed(tmp_path, *reports, **how))
        return made[-1]

    yield make
    for world in made:
        await world.close()


@pytest.fixture
async def world(placed: Placing) -> Placed:
    """Three nodes whose vendor has no topology of its own."""
    return placed(report("n1"), report("n2"), report("n3"))
