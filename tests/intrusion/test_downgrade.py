"""A peer asks for less than the bridge's protocols offer: no side goes below TLS 1.3 and its oldest wire version."""

import ssl
from pathlib import Path

import pytest

from common.messages import Reason
from tests.kit.bridge import Hub
from tests.kit.certificates import Authority
from tests.kit.intruder import gets_in
from tests.kit.operator import by_hand
from tests.kit.stranger import Stranger, hello, upgrade_request


def test_tls_below_1_3_is_refused(hub: Hub, authority: Authority) -> None:
    tls = authority.edge("n1").client()
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        Stranger(hub.address, tls=tls)


def test_a_port_with_tls_speaks_no_plain_text(hub: Hub) -> None:
    with Stranger(hub.address) as stranger:
        stranger.send(upgrade_request())
        assert b"HTTP" not in stranger.read_to_end()
    assert not gets_in(hub, "n1")


@pytest.mark.parametrize(("version", "oldest"), [(0, 0), (99, 98)])
def test_a_wire_version_that_this_side_does_not_speak_is_refused(insecure: Hub, version: int, oldest: int) -> None:
    with Stranger(insecure.address) as stranger:
        stranger.upgrade()
        stranger.frames(hello("edge", "n1", version=version, oldest=oldest))
        reason, why = stranger.last_word()
    assert reason == Reason.PROTOCOL_ERROR
    assert "upgrade the older" in why


@pytest.mark.parametrize("subprotocol", ["", "chat", "csi-bridge.v0"])
def test_another_websocket_subprotocol_is_refused(insecure: Hub, subprotocol: str) -> None:
    with Stranger(insecure.address) as stranger:
        stranger.send(upgrade_request(subprotocol))
        assert stranger.read_to_end().startswith(b"HTTP/1.1 400 ")


def test_no_websocket_extension_is_agreed_on(insecure: Hub) -> None:
    """Compression would make a bomb of a small frame, and tell lengths of secrets (RFC 7692, section 8)."""
    with Stranger(insecure.address) as stranger:
        stranger.send(upgrade_request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
        stranger.frames(hello("operator", "o"))
        answer = stranger.read_to_end()
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Extensions" not in answer


def test_an_agent_sends_no_name_over_plain_text_to_a_network(tmp_path: Path) -> None:
    ended = by_hand(
        "edge", "run", "--node=n1", "--hub=ws://192.0.2.1:10350", "--insecure", f"--state-dir={tmp_path / 'edge'}"
    )
    assert ended.returncode == 2
    assert "plain ws:// is for loopback addresses with --insecure" in ended.stderr
