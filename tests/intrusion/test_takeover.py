"""An attacker with a certificate of a node, signed by the bridge's CA, while the node's own agent is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from common.messages import Goodbye, Hello, Ping, Pong, Reason
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority, Pem
from tests.kit.operator import hub_state
from tests.kit.stranger import Stranger, hello

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSTANCE = "the-agents-own-instance"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def hub(short_dir: Path, tmp_path: Path, authority: Authority) -> Iterator[Hub]:
    with Bridge(short_dir, tmp_path) as bridge:
        yield bridge.start_hub(*authority.hub().flags, "--keepalive=60s")


@pytest.fixture
def stolen(authority: Authority) -> Pem:
    return authority.edge("n1")


@pytest.fixture
def agent(hub: Hub, authority: Authority, stolen: Pem) -> Iterator[Stranger]:  # it is the earlier one
    with Stranger(hub.address, tls=authority.edge("n1").client()) as agent:
        agent.greet(hello("edge", "n1", instance=INSTANCE))
        yield agent


def refused(hub: Hub, stolen: Pem, said: Hello) -> Goodbye:
    """The hub's answer to a hello of the attacker, who has an earlier certificate of the node."""
    with Stranger(hub.address, tls=stolen.client()) as attacker:
        attacker.upgrade()
        attacker.frames(said)
        answer = attacker.all_frames()[0]
    assert isinstance(answer, Goodbye), f"the attacker is admitted: {answer}"
    return answer


def is_served(agent: Stranger) -> bool:
    agent.frames(Ping(7))
    return Pong(7) in (agent.receive() or [])


def test_a_refused_claimant_of_a_node_hears_nothing_of_the_connected_agent(
    hub: Hub, stolen: Pem, agent: Stranger
) -> None:
    told = refused(hub, stolen, hello("edge", "n1", instance="the-attackers"))
    assert told.reason == Reason.CONFLICT
    assert INSTANCE not in told.message
    assert agent.address not in told.message


@pytest.mark.parametrize("boot", [1, 2, 2**60])
@pytest.mark.parametrize("beside", [False, True])
def test_a_stolen_instance_id_without_the_agents_key_evicts_nobody_and_earns_no_hint(
    hub: Hub, stolen: Pem, agent: Stranger, boot: int, beside: bool
) -> None:
    guess = refused(hub, stolen, hello("edge", "n1", instance="a guess", boot=boot))
    told = refused(hub, stolen, hello("edge", "n1", instance=INSTANCE, boot=boot, beside=beside))
    assert told == guess
    assert is_served(agent)
    (shown,) = hub_state(hub.uds)["nodes"]
    assert shown["conflict"].endswith("its key is another one, and its certificate is no later one")


def test_an_earlier_boot_with_another_key_hears_the_same(hub: Hub, stolen: Pem, agent: Stranger) -> None:
    told = refused(hub, stolen, hello("edge", "n1", instance=INSTANCE, boot=0))
    assert told == refused(hub, stolen, hello("edge", "n1", instance="a guess", boot=0))
    assert told.reason == Reason.CONFLICT
