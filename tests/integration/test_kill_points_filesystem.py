"""kill -9 at each fault point of a filesystem volume's life."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.dirdriver.support import needs_mounts
from tests.support.edge_node import EdgeNode, csi_driver
from tests.support.fault_points import live_through

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_mounts

_POINTS = [
    *(f"stage.{point}" for point in (
        "before-intent", "after-intent", "before-dir", "after-dir", "before-data", "before-rename", "after-data",
        "before-call", "after-call", "before-result", "after-result")),
    *(f"publish.{point}" for point in (
        "before-intent", "after-intent", "before-dir", "after-dir", "before-data", "before-rename", "after-data",
        "before-call", "after-call", "before-ownership", "after-ownership", "before-result", "after-result")),
    *(f"unpublish.{point}" for point in (
        "before-intent", "after-intent", "before-call", "after-call", "before-clean", "after-target",
        "after-data-removed", "after-clean", "before-result", "after-result")),
    *(f"unstage.{point}" for point in (
        "before-intent", "after-intent", "before-call", "after-call", "before-clean", "after-target",
        "after-data-removed", "after-clean", "before-result", "after-result")),
]  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeNode]:
    with (
        tempfile.TemporaryDirectory(prefix="csi-") as directory,
        EdgeNode(Path(directory), tmp_path_factory.mktemp("logs")) as node,
    ):
        node.start()
        node.write(csi_driver(fsGroupPolicy="File"), file="driver")
        yield node


@pytest.mark.parametrize("point", _POINTS)
def test_a_filesystem_volume_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, securityContext={"fsGroup": 4711})
