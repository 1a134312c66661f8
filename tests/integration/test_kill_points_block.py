"""kill -9 at each fault point that only a block volume has, and at those that it has in another place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.edge_node import EdgeNode
from tests.kit.fault_points import BLOCK, live_through, some_always
from tests.kit.needs import needs_loops

pytestmark = [needs_loops, pytest.mark.slow]


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeNode]:
    with EdgeNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start()
        yield node


@pytest.mark.parametrize("point", some_always(BLOCK))
def test_a_block_volume_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, block=True)
