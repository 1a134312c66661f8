"""What the hub writes of a node's problems: each pod's Event once while Kubernetes keeps it, and a condition."""

from collections.abc import Sequence
from typing import Any

import pytest

from cloud.kinds.nodes import PROBLEM, state_of
from cloud.kinds.rules.fields import Fields
from cloud.kube.client import RESOURCES
from cloud.nodes.known_node import KnownNode, Moment
from cloud.nodes.node_records import StoredNode
from cloud.nodes.visit import Visit
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.upsync.node_problems import NodeProblems
from tests.kit.cluster_objects import entries, pod
from tests.kit.fake_api import FakeApi
from tests.kit.trusting import TRUSTING


class Written:
    """The writer of one node with one pod that waits, at a time that a test sets. It is the hub's nodes, too."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put({"kind": "Node", "metadata": {"name": "n1"}})
        objects, source = self.api._objects["Node"], Source()
        source.update(
            {ref: it.item for ref, it in entries(pod("web", claims=("data",))).items()},
            ready=True,
        )
        source.node_state = lambda _node: state_of(Fields(objects["", "n1"]))  # type: ignore[method-assign]  # a fake
        self.told: Sequence[str] | None = ["full"]
        self.now = 0.0
        self.writer = NodeProblems(
            self.api,
            source,
            self,  # type: ignore[arg-type]  # all of the nodes that it needs
            Closures(source, TRUSTING),
            now=lambda: self.now,
        )

    def of(self, node: str) -> KnownNode:
        visit = Visit(node, None, 0.0, problems=self.told) if self.told is not None else None  # type: ignore[arg-type]  # nobody asks for its link
        return KnownNode(StoredNode(node), Moment(0.0, 0.0), visit=visit)

    async def look(self, at: float) -> list[str]:
        """The requests of a look at this time, without those that read."""
        self.now = at
        del self.api.asked[:]
        await self.writer._write("n1")
        return [it.split()[0] for it in self.api.asked if not it.startswith("get")]


@pytest.fixture
def written() -> Written:
    return Written()


async def test_an_event_is_written_once_for_each_text_and_again_when_kubernetes_has_dropped_it(
    written: Written,
) -> None:
    assert await written.look(0) == ["patch", "create"]
    assert await written.look(30) == []
    written.told = ["full", "hung"]
    assert await written.look(60) == ["patch", "create"]
    assert await written.look(3_600) == []
    assert await written.look(3_700) == ["create"]


async def test_solved_problems_end_the_condition_and_those_of_a_node_that_is_away_stay(written: Written) -> None:
    async def condition() -> Any:
        (found,) = (await written.api.get(RESOURCES["Node"], "n1"))["status"]["conditions"]
        assert found["type"] == PROBLEM
        return found["status"]

    await written.look(0)
    written.told = None
    assert await written.look(30) == []
    assert await condition() == "True"
    written.told = []
    assert await written.look(60) == ["patch"]
    assert await condition() == "False"
