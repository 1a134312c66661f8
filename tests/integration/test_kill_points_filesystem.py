"""kill -9 at each fault point of a filesystem volume's life."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.edge_node import EdgeNode, csi_driver
from tests.kit.fault_points import FILESYSTEM, live_through, some_always
from tests.kit.needs import needs_mounts

pytestmark = needs_mounts


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeNode]:
    with EdgeNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start()
        node.write(csi_driver(fsGroupPolicy="File"), file="driver")
        yield node


@pytest.mark.parametrize("point", some_always(FILESYSTEM))
def test_a_filesystem_volume_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, securityContext={"fsGroup": 4711})
