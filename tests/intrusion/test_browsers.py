"""A web page in a browser dials a hub that checks no certificate: the hub refuses it, and warns of its own state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.intruder import client_of
from tests.kit.operator import by_hand, hub_state
from tests.kit.stranger import Stranger, upgrade_request

if TYPE_CHECKING:
    from tests.kit.bridge import Bridge
    from tests.kit.certificates import Authority


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://hub"])
def test_a_browser_gets_no_session(bridge: Bridge, origin: str) -> None:
    hub = bridge.start_hub()
    for to in (hub.address, hub.uds):
        with Stranger(to) as stranger:
            stranger.send(upgrade_request(Origin=origin))
            assert stranger.read_to_end().startswith(b"HTTP/1.1 403 ")
    assert "has an Origin" in hub_state(hub.uds)["refused"][0]["why"]


def test_a_browser_with_a_certificate_gets_no_session(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    with Stranger(hub.address, tls=client_of(authority, authority.edge("n1"))) as stranger:
        stranger.send(upgrade_request(Origin="http://evil.example"))
        assert stranger.read_to_end().startswith(b"HTTP/1.1 403 ")


def test_a_hub_without_tls_warns_at_its_start_and_in_its_status(bridge: Bridge) -> None:
    hub = bridge.start_hub()
    (line,) = hub.logged("--insecure: ")
    assert line["level"] == "warning"
    shown = by_hand("status", f"--hub=unix://{hub.uds}").stdout
    assert "PROBLEM: --insecure: links without TLS prove no name" in shown


def test_a_hub_with_tls_does_not_warn(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    assert hub.logged("--insecure: ") == []
    assert hub_state(hub.uds)["problems"] == []
