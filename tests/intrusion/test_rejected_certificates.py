"""An agent with a certificate that the hub rejects: both sides say why, by the name of TLS's alert."""

from pathlib import Path

import pytest

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority, Pem
from tests.kit.operator import by_hand, hub_state
from tests.kit.waiting import wait_for


def expired(authority: Authority, _elsewhere: Path) -> Pem:
    return authority.issue("system:node:n1", "system:nodes", file="expired", lifetime_s=-60)


def foreign(authority: Authority, elsewhere: Path) -> Pem:
    pem = Authority(elsewhere, name="another CA").edge("n1")
    return Pem(authority.path, pem.cert, pem.key)


@pytest.mark.parametrize(
    ("issue", "alert", "why"),
    [
        (expired, "certificate expired", "certificate has expired"),
        (foreign, "unknown ca", "unable to get local issuer"),
    ],
)
def test_a_rejected_agent_and_the_hub_both_say_why(
    bridge: Bridge, authority: Authority, tmp_path: Path, issue: object, alert: str, why: str
) -> None:
    assert callable(issue)
    hub = bridge.start_hub(*authority.hub().flags)
    flags = [f"--hub=wss://{hub.address}", *issue(authority, tmp_path).flags]
    agent = bridge.start_agent("n1", flags=flags)
    agent.wait_logged(f"the peer refuses this side's certificate, with the TLS alert '{alert}'")
    refused = wait_for(lambda: hub_state(hub.uds)["refused"], what="refusal in the hub's state")
    assert refused[0]["role"] == ""
    assert why in refused[0]["why"]
    shown = by_hand("nodes", f"--hub=unix://{hub.uds}").stdout
    assert "a peer without a hello from 127.0.0.1:" in shown
    assert why in shown
    assert "REFUSED: 1 peer" in by_hand("status", f"--hub=unix://{hub.uds}").stdout
