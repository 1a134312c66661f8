"""kill -9 at each fault point that only a block volume has, and at those of a volume that grows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.dirdriver.support import needs_loops
from tests.support.edge_node import EdgeNode
from tests.support.fault_points import live_through

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_loops

_BLOCK = [
    *(f"stage.{point}" for point in ("before-dir", "before-data", "after-data", "after-dir", "after-call")),
    *(f"publish.{point}" for point in (
        "before-dir", "after-dir", "before-call", "after-call", "before-bind", "after-bind", "after-link", "after-loop",
        "before-result")),
    *(f"unpublish.{point}" for point in (
        "before-loop", "after-loop", "after-link", "after-unbind", "after-map", "before-call", "after-call",
        "after-clean")),
    *(f"unstage.{point}" for point in ("before-call", "after-call", "before-clean", "after-clean")),
]  # fmt: skip

_GROWING = [
    "expand.before-intent", "expand.after-intent", "expand.before-call", "expand.after-call", "expand.before-result",
    "expand.after-result", "facts.before-claim", "facts.after-claim",
]  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeNode]:
    with (
        tempfile.TemporaryDirectory(prefix="csi-") as directory,
        EdgeNode(Path(directory), tmp_path_factory.mktemp("logs")) as node,
    ):
        node.start()
        yield node


@pytest.mark.parametrize("point", _BLOCK)
def test_a_block_volume_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, block=True)


@pytest.mark.parametrize("point", _GROWING)
def test_a_volume_that_grows_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, grow=True)
