"""An attacker with a certificate of a node, signed by the bridge's CA, while the node's own agent is connected."""

import ssl
from collections.abc import Iterator

import pytest

from common.messages import Ping, Pong, Reason
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.intruder import refusal_of
from tests.kit.operator import hub_state
from tests.kit.stranger import Stranger, hello

INSTANCE = "the-agents-own-instance"


@pytest.fixture
def hub(bridge: Bridge, authority: Authority) -> Hub:
    return bridge.start_hub(*authority.hub().flags, "--keepalive=60s")


@pytest.fixture
def stolen(authority: Authority) -> ssl.SSLContext:
    """The attacker's certificate, which is an earlier one of the node."""
    return authority.edge("n1").client()


@pytest.fixture
def agent(hub: Hub, authority: Authority, stolen: ssl.SSLContext) -> Iterator[Stranger]:  # it is the earlier one
    with Stranger(hub.address, tls=authority.edge("n1").client()) as agent:
        agent.greet(hello("edge", "n1", instance=INSTANCE))
        yield agent


def is_served(agent: Stranger) -> bool:
    agent.frames(Ping(7))
    return Pong(7) in (agent.receive() or [])


def test_a_refused_claimant_of_a_node_hears_nothing_of_the_connected_agent(
    hub: Hub, stolen: ssl.SSLContext, agent: Stranger
) -> None:
    told = refusal_of(hub.address, hello("edge", "n1", instance="the-attackers"), tls=stolen)
    assert told.reason == Reason.CONFLICT
    assert INSTANCE not in told.message
    assert agent.address not in told.message


@pytest.mark.parametrize("boot", [1, 2, 2**60])
@pytest.mark.parametrize("beside", [False, True])
def test_a_stolen_instance_id_without_the_agents_key_evicts_nobody_and_earns_no_hint(
    hub: Hub, stolen: ssl.SSLContext, agent: Stranger, boot: int, beside: bool
) -> None:
    guess = refusal_of(hub.address, hello("edge", "n1", instance="a guess", boot=boot), tls=stolen)
    told = refusal_of(hub.address, hello("edge", "n1", instance=INSTANCE, boot=boot, beside=beside), tls=stolen)
    assert told == guess
    assert is_served(agent)
    (shown,) = hub_state(hub.uds)["nodes"]
    assert shown["conflict"].endswith("its key is another one, and its certificate is no later one")


def test_an_earlier_boot_with_another_key_hears_the_same(hub: Hub, stolen: ssl.SSLContext, agent: Stranger) -> None:
    told = refusal_of(hub.address, hello("edge", "n1", instance=INSTANCE, boot=0), tls=stolen)
    assert told == refusal_of(hub.address, hello("edge", "n1", instance="a guess", boot=0), tls=stolen)
    assert told.reason == Reason.CONFLICT
