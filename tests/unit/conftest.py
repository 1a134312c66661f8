"""What several files of these tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.edge_volumes import EdgeVolumes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def edge() -> AsyncIterator[EdgeVolumes]:
    made = EdgeVolumes()
    yield made
    await made.manager.close(0.0)
