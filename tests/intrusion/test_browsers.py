"""A web page in a browser dials a hub that checks no certificate: the hub refuses it, and warns of its own state."""

import pytest

from tests.kit.bridge import Hub
from tests.kit.certificates import Authority
from tests.kit.operator import by_hand, hub_state
from tests.kit.stranger import Stranger, upgrade_request


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://hub"])
def test_a_browser_gets_no_session(insecure: Hub, origin: str) -> None:
    for to in (insecure.address, insecure.uds):
        with Stranger(to) as stranger:
            stranger.send(upgrade_request(Origin=origin))
            assert stranger.read_to_end().startswith(b"HTTP/1.1 403 ")
    assert "has an Origin" in hub_state(insecure.uds)["refused"][0]["why"]


def test_a_browser_with_a_certificate_gets_no_session(hub: Hub, authority: Authority) -> None:
    with Stranger(hub.address, tls=authority.edge("n1").client()) as stranger:
        stranger.send(upgrade_request(Origin="http://evil.example"))
        assert stranger.read_to_end().startswith(b"HTTP/1.1 403 ")


def test_a_hub_without_tls_warns_at_its_start_and_in_its_status_and_one_with_tls_does_not(
    hub: Hub, insecure: Hub
) -> None:
    (line,) = insecure.logged("--insecure: ")
    assert line["level"] == "warning"
    shown = by_hand("status", f"--hub=unix://{insecure.uds}").stdout
    assert "PROBLEM: --insecure: links without TLS prove no name" in shown
    assert hub.logged("--insecure: ") == []
    assert hub_state(hub.uds)["problems"] == []
