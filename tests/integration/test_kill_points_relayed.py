"""kill -9 of the agent at each fault point of a direct volume beside a kubelet, which tries again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.fault_points import BLOCK, DEFERRED, check_calls, some_always
from tests.kit.needs import needs_loops
from tests.kit.relaying_node import RelayingNode

pytestmark = needs_loops

_TEXT = "written by the guest\n"

_ENGINES = {"publish.after-cdi", "unpublish.after-cdi"}  # no container engine asks the agent for devices here

_RECORDED = [f"{step}.{point}" for step in ("stage", "publish", "unpublish", "unstage")
             for point in ("before-intent", "after-intent", "before-result", "after-result")]  # fmt: skip

POINTS = [point for point in dict.fromkeys((*DEFERRED, *BLOCK, *_RECORDED)) if point not in _ENGINES]


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayingNode]:
    with RelayingNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start()
        yield node


@pytest.mark.parametrize("point", some_always(POINTS))
def test_a_direct_volume_beside_a_kubelet_survives_a_death_at(node: RelayingNode, point: str) -> None:
    name = point.replace(".", "-")
    before = len(node.calls())
    node.make(name)
    node.agent.kill()
    node.restart_agent(fault_point=point)
    deaths = node.deaths
    node.mount(name)
    with node.guest(name) as inside:
        (inside / "file").write_text(_TEXT)
    node.unmount(name)
    assert node.deaths == deaths + 1, f"the agent died {node.deaths - deaths} times at {point}"
    calls = node.calls()[before:]
    passed_on = [call for call in calls if str(node.layout.beside_kubelet) not in str(call.fields)]
    # The agent keeps no record of what it has undone, so the repetition is the driver's to answer.
    assert [call.method for call in passed_on] == ["NodeUnstageVolume"] * (point == "unstage.after-result")
    # A kubelet that has heard no answer stages again.
    check_calls(
        [call for call in calls if call not in passed_on], point.replace("stage.after-result", "stage.after-call")
    )
    node.put(name, pod_name=f"{name}-again")
    node.mount(name, pod_name=f"{name}-again")
    with node.guest(f"{name}-again", name) as inside:
        assert (inside / "file").read_text() == _TEXT
    node.unmount(name, pod_name=f"{name}-again")
    node.remove(name)
