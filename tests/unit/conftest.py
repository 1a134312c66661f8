"""What several files of these tests share."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.edge_volumes import EdgeVolumes


@pytest.fixture
async def edge() -> AsyncIterator[EdgeVolumes]:
    made = EdgeVolumes()
    yield made
    await made.manager.close(0.0)
