"""Strangers dribble: whatever step of the handshake they stretch, all steps together have the hello's time."""

import time

import pytest

from common.messages import encode
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.intruder import client_hello
from tests.kit.stranger import Stranger, hello, upgrade_request, websocket_frame
from tests.kit.waiting import let_pass

LIMIT_S = 0.8


def end_of(stranger: Stranger, hub: Hub, data: bytes, *, began: float) -> float:
    """Dribble bytes until the hub ends the connection; return the seconds since it began."""
    for byte in data:
        stranger.send(bytes([byte]))
        let_pass(0.05)
        if any(stranger.address in line["msg"] for line in hub.lines()):
            return time.monotonic() - began
    raise AssertionError("the hub heard all of it")


@pytest.mark.parametrize("step", ["ClientHello", "upgrade", "hello"])
def test_a_dribbled_step_ends_with_the_hellos_time(bridge: Bridge, authority: Authority, step: str) -> None:
    flags = authority.hub().flags if step == "ClientHello" else []
    hub = bridge.start_hub(*flags, f"--hello-timeout={int(LIMIT_S * 1000)}ms")
    began = time.monotonic()
    with Stranger(hub.address) as stranger:
        if step == "hello":
            stranger.upgrade()
        data = {
            "ClientHello": client_hello(authority),
            "upgrade": upgrade_request(),
            "hello": websocket_frame(encode(hello("edge", "n1"))),
        }
        assert end_of(stranger, hub, data[step], began=began) < LIMIT_S + 1.0


def test_the_steps_share_one_limit(bridge: Bridge, authority: Authority) -> None:
    """Three quarters of the time pass before TLS, and three quarters after it."""
    hub = bridge.start_hub(*authority.hub().flags, f"--hello-timeout={int(LIMIT_S * 1000)}ms")
    tls = authority.edge("n1").client()
    with Stranger(hub.address) as stranger:
        began = time.monotonic()
        let_pass(0.75 * LIMIT_S)
        stranger._socket = tls.wrap_socket(stranger._socket, server_hostname="localhost")
        assert stranger.read_to_end() == b""
    assert time.monotonic() - began < 1.5 * LIMIT_S
