"""The agent does for a driver's volumes what the real kubelet's records say, or differs as a rule wants it.

About ten scenarios are played in every run; where the peers are required, as in CI, and where slow tests run, all are,
and docs/kubelet-parity.md is what came of it. CSI_BRIDGE_WRITE_PARITY=1 writes it anew.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kit.needs import needs_loops
from tests.peers.kubelet import catalog
from tests.peers.kubelet.agent_node import AgentNode
from tests.peers.kubelet.comparer import compare
from tests.peers.kubelet.differences import unseen, unwanted
from tests.peers.kubelet.normal_form import Record
from tests.peers.kubelet.parity import document
from tests.peers.kubelet.play import play
from tests.peers.kubelet.scenario import Scenario

_AT_ONCE = 10  # an agent plays more scenarios side by side than a whole cluster does

_DOCUMENT = Path(__file__).parents[2] / "docs" / "kubelet-parity.md"

pytestmark = [needs_loops, pytest.mark.timeout(1200)]


@pytest.fixture
def node(place: Path) -> Iterator[AgentNode]:
    node = AgentNode(place / "n")
    try:
        node.start()
        yield node
    finally:
        node.stop()


def _play(scenarios: Sequence[Scenario], node: AgentNode, place: Path) -> tuple[dict[str, Record], list[str]]:
    """Our records, and what is otherwise than it should be."""
    records: dict[str, Record] = {}
    wrong: list[str] = []
    for played in play(scenarios, node=node, directory=place, at_once=_AT_ONCE):
        name = played.scenario.name
        if played.error is not None:
            wrong.append(f"{name} failed: {played.error}")
            continue
        records[name] = played.record
        wrong += [str(difference) for difference in unwanted(compare(catalog.read(name), played.record))]
    return records, wrong


def test_the_agent_does_what_the_kubelet_does(node: AgentNode, place: Path) -> None:
    assert not "\n".join(_play([catalog.BY_NAME[name] for name in catalog.ALWAYS], node, place)[1])


@pytest.mark.slow
def test_the_agent_does_in_every_scenario_what_the_kubelet_does(node: AgentNode, place: Path) -> None:
    records, wrong = _play(catalog.SCENARIOS, node, place)
    assert not "\n".join(wrong)
    found = [it for name, ours in records.items() for it in compare(catalog.read(name), ours)]
    assert [str(it) for it in unseen(found) if not it.passing] == []
    text = document(records)
    if os.environ.get("CSI_BRIDGE_WRITE_PARITY") == "1":
        _DOCUMENT.write_text(text)
    assert _DOCUMENT.read_text() == text
