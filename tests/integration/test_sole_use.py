"""A volume of one writer without an attachment, and two nodes whose pods want it: real agents, a real driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.status import Code
from tests.kit.bridge import Agent
from tests.kit.edge_node import DRIVER, NODE, EdgeNode, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.operator import by_hand, node_state
from tests.kit.peers.testdriver import start_testdriver
from tests.kit.waiting import let_pass, wait_for

pytestmark = needs_mounts

SECOND = "n2"
_FLAGS = ("--no-attach", "--no-topology")


class Pair:
    """Two nodes of one hub, over the storage of one directory."""

    def __init__(self, first: EdgeNode, second: EdgeNode) -> None:
        self.first, self.second = first, second
        first.start(driver_flags=_FLAGS)
        second.driver = start_testdriver(
            second._supervisor,
            second.directory,
            name=DRIVER,
            node_id=SECOND,
            flags=_FLAGS,
            shared_state=first.driver.state,
        )
        flags = (f"--root-dir={second.root}",)
        hub = first.bridge.hub
        second.agent = Agent(SECOND, hub.address, [second.driver.socket], second.directory, second._logs, flags)
        second.bridge.members.append(second.agent)
        second._commands = {second.agent.process: second.agent.process.command}
        second.agent.start()
        first.write(*volume("data", first.make_volume("data", shared=True)), file="data")

    def run(self, node: EdgeNode) -> None:
        name = NODE if node is self.first else SECOND
        self.first.write(pod(f"web-{name}", "data", nodeName=name), file=f"web-{name}")

    def end(self, node: EdgeNode) -> None:
        self.first.remove(f"web-{NODE if node is self.first else SECOND}")

    def wait_refused(self, node: EdgeNode, why: str) -> None:
        """Wait until the node's only volume waits for the hub, for this reason."""
        name = f"web-{NODE if node is self.first else SECOND}"
        wait_for(
            lambda: any(why in it["error"] for it in node.volumes(name)),
            what=why,
            instead=lambda: f"{node.volumes(name)}\n{self.first.bridge.log_tails()}",
        )


@pytest.fixture
def pair(short_dir: Path, tmp_path: Path) -> Iterator[Pair]:
    directories = [short_dir / "a", short_dir / "b"]
    for directory in directories:
        directory.mkdir()
    with EdgeNode(directories[0], tmp_path) as first, EdgeNode(directories[1], tmp_path / "second") as second:
        yield Pair(first, second)


@pytest.mark.slow
def test_the_second_node_waits_and_gets_the_volume_when_the_first_has_let_go(pair: Pair) -> None:
    pair.run(pair.first)
    pair.first.wait_published("web-n1")
    pair.run(pair.second)
    pair.wait_refused(
        pair.second,
        "the hub has not confirmed yet that this node uses the volume (volumesInUse): it was refused: node n1 has the "
        "volume; one node at a time may have it (attachRequired: false): delete its pods that use it",
    )
    assert (pair.first.volumes("web-n1")[0]["state"], pair.second.calls()) == ("published", [])
    pair.end(pair.first)
    pair.second.wait_published("web-n2")
    (unstaged,) = [call for call in pair.first.calls() if call.method == "NodeUnstageVolume"]
    (staged,) = [call for call in pair.second.calls() if call.method == "NodeStageVolume"]
    assert unstaged.code == Code.OK.name
    assert unstaged.start < staged.start


@pytest.mark.slow
def test_a_node_that_is_away_keeps_the_volume_until_it_is_fenced(pair: Pair) -> None:
    hub = pair.first.bridge.hub
    pair.run(pair.second)
    pair.second.wait_published("web-n2")
    pair.second.agent.kill()
    wait_for(lambda: not node_state(hub.uds, SECOND)["connected"], what="a node that is away")
    pair.end(pair.second)
    pair.run(pair.first)
    pair.wait_refused(pair.first, "node n2 has the volume, and it is offline since")
    hub.kill()
    hub.start()
    pair.wait_refused(pair.first, "node n2 has the volume, and it is offline since")
    let_pass(1.5)
    assert pair.first.calls() == []
    assert by_hand("fence", SECOND, "--yes", f"--hub=unix://{hub.uds}").returncode == 0
    wait_for(
        lambda: "is staged on node n2" in pair.first.volumes("web-n1")[0]["error"],
        what="the refusal of n1's driver, which knows by itself",
        instead=pair.first.tell,
    )
    assert pair.first.calls()
