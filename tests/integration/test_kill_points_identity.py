"""kill -9 at every step of a join and of a renewal, of the node's process or of the hub: nobody is locked out."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.store.fault_points import VARIABLE
from tests.kit.bridge import REDIAL_LIMIT_S, Agent
from tests.kit.fault_points import IDENTITY, ISSUE, some_always
from tests.kit.joined_edge import JoinBridge
from tests.kit.operator import hub_state
from tests.kit.waiting import wait_for

_KILLED = -signal.SIGKILL


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path) -> Iterator[JoinBridge]:
    with JoinBridge(short_dir, tmp_path) as bridge:
        bridge.start_hub("--cert-ttl=1m")
        yield bridge


@pytest.mark.slow
@pytest.mark.parametrize("point", some_always(IDENTITY))
def test_a_node_that_is_killed_amid_its_join_and_its_renewal_is_no_copy_and_spends_one_use(
    bridge: JoinBridge, point: str
) -> None:
    node, token = bridge.node("n1"), bridge.token()
    assert node.join(token, fault_point=point).returncode == _KILLED
    done = node.join(token)
    if point == "identity.after-store":  # nothing was left to do
        assert "and keeps that identity" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
    agent = bridge.start_joined(node)
    agent.wait_connected()
    agent.kill()
    node.make_due()
    agent.process.environment = os.environ | {VARIABLE: point}
    agent.start(wait=False)
    assert agent.process.wait_exit() == _KILLED
    agent.process.environment = None
    node.make_due()  # also if the certificate is stored: one more renewal
    agent.start()
    check(bridge, agent)


@pytest.mark.slow
@pytest.mark.parametrize("point", some_always(ISSUE))
def test_a_hub_that_is_killed_amid_a_join_and_a_renewal_locks_nobody_out_and_spends_one_use(
    bridge: JoinBridge, point: str
) -> None:
    hub, node, token = bridge.hub, bridge.node("n1"), bridge.token()
    restart_hub(bridge, point)
    while node.join(token).returncode:
        assert hub.process.wait_exit() == _KILLED
        restart_hub(bridge)
    agent = bridge.start_joined(node)
    if hub.process.environment is not None:  # it dies when the node connects, or has died after its answer
        assert hub.process.wait_exit() == _KILLED
        restart_hub(bridge)
    agent.wait_connected()
    agent.kill()
    restart_hub(bridge, point)
    node.make_due()
    agent.start()
    assert hub.process.wait_exit() == _KILLED
    restart_hub(bridge)
    check(bridge, agent)


def restart_hub(bridge: JoinBridge, point: str = "") -> None:
    """Kill the hub, and start it again; with a fault point it dies there."""
    bridge.hub.kill()
    bridge.hub.process.environment = os.environ | {VARIABLE: point} if point else None
    bridge.hub.start()


def check(bridge: JoinBridge, agent: Agent) -> None:
    """The node has renewed and is connected, also with a hub that knows only what is on its disk."""
    hub = bridge.hub
    wait_for(
        lambda: hub.logged("generation 2 of the certificate") or hub.logged("generation 3 of the certificate"),
        what="renewed certificate in use",
        timeout_s=REDIAL_LIMIT_S,
        instead=lambda: f"{agent.process.log_tail()}\n{hub.process.log_tail()}",
    )
    agent.wait_connected()
    restart_hub(bridge)
    agent.wait_connected()
    wait_for(lambda: connected(bridge), what="node at the hub", instead=agent.process.log_tail)
    wait_for(lambda: agent.status()["problems"] == [], what="end of its problems", instead=agent.process.log_tail)
    assert hub_state(hub.uds)["problems"] == []
    assert not hub.audited("copy")
    assert not hub.audited("conflict")
    (token,) = json.loads(bridge.operate("token", "list", "-o", "json"))["tokens"]
    assert (token["used"], token["state"]) == (1, "used up")


def connected(bridge: JoinBridge) -> bool:
    return any(node["connected"] for node in hub_state(bridge.hub.uds)["nodes"])
