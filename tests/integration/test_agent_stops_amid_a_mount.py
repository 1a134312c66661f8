"""An agent that is stopped while a driver is at work on a volume."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.edge_node import DRIVER, EdgeNode, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.requests import create
from tests.kit.waiting import wait_for

pytestmark = needs_mounts


@pytest.fixture
def node(short_dir: Path, tmp_path: Path) -> Iterator[EdgeNode]:
    with EdgeNode(short_dir, tmp_path) as node:
        yield node


def test_a_driver_that_hangs_is_left_with_its_call_cancelled_and_the_next_agent_goes_on(node: EdgeNode) -> None:
    node.start("--drain-timeout=300ms")
    handles = [node.make_volume(name) for name in ("data", "more")]
    with node.bridge.start_proxy(DRIVER).sidecar() as sidecar:
        node.bridge.wait_routed(sidecar)
        node.driver.set_faults("NodeStageVolume=hang", "CreateVolume=hang")
        call = sidecar.start("CreateVolume", create("another"))
        wait_for(
            lambda: node.agent.status()["operations"],
            what="operation under way",
            timeout_s=20.0,
            instead=lambda: f"{call.done and call.outcome()} {node.bridge.log_tails()[-6000:]}",
        )
    node.write(*volume("data", handles[0]), *volume("more", handles[1]), pod("web", "data", "more"), file="web")
    wait_for(
        lambda: [each["state"] for each in node.volumes("web")] == ["staging", "staging"],
        what="two stages under way",
        timeout_s=20.0,
        instead=node.tell,
    )
    # It says so already as it makes ready for the call: an agent stopped there does not ask the driver.
    wait_for(lambda: _stages(node) == ["", ""], what="two stages at the driver", timeout_s=20.0, instead=node.tell)
    node.agent.ask_to_stop()
    assert node.agent.process.wait_exit() == 0, node.agent.process.log_tail()
    assert node.agent.complaints() == []
    assert not [line for line in node.agent.lines() if "bug" in line["msg"]]
    # The driver may note it only when the agent is gone.
    cancelled = ["CANCELLED", "CANCELLED"]
    wait_for(lambda: _stages(node) == cancelled, what="end of both stages", timeout_s=20.0, instead=node.tell)
    node.driver.set_faults()
    node.restart_agent()
    node.wait_published("web", count=2)
    node.remove("web")
    node.wait_clean()


def _stages(node: EdgeNode) -> list[str]:
    """How each stage ended that the driver was asked for; empty while it is under way."""
    return [call.code for call in node.driver.calls("NodeStageVolume")]
