"""Strangers without a certificate hold connections open: no agent is locked out, and the hub's memory comes back."""

import socket

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.intruder import client_hello, connections, gets_in, resident_bytes
from tests.kit.operator import hub_state
from tests.kit.waiting import wait_for

ELSEWHERE = "127.0.0.2"


def test_silent_connections_take_no_place_of_an_agent(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags, "--max-connections=100")
    tls = authority.edge("n1").client()
    with connections(hub, 120):
        assert gets_in(hub, "n1", tls)


def test_a_flood_from_one_address_locks_no_other_address_out(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags, "--max-handshakes=20")
    tls = authority.edge("n1").client()
    with connections(hub, 60, host=ELSEWHERE, saying=client_hello(authority)):
        for _ in range(5):
            assert gets_in(hub, "n1", tls)
    (refused,) = hub_state(hub.uds)["refused"]
    assert refused["address"].startswith(f"{ELSEWHERE}:")
    assert refused["why"].endswith("20 connections without a hello is the limit (--max-handshakes)")


def test_agents_behind_the_flooding_address_get_in_before_the_floods_time_is_over(
    bridge: Bridge, authority: Authority
) -> None:
    hub = bridge.start_hub(*authority.hub().flags, "--max-handshakes=20", "--hello-timeout=5s")
    tls = authority.edge("n1").client()
    with connections(hub, 60) as flood:
        wait_for(lambda: gets_in(hub, "n1", tls), what="place for an agent", timeout_s=4.0)
        assert any(_is_open(one) for one in flood)


def test_a_silent_connection_takes_hardly_any_memory(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    assert gets_in(hub, "n1", authority.edge("n1").client())
    before = resident_bytes(hub)
    with connections(hub, 1_000):
        assert gets_in(hub, "n1", authority.edge("n1").client())
        assert resident_bytes(hub) - before < 10 << 20


def test_the_memory_of_half_open_handshakes_is_given_back(bridge: Bridge, authority: Authority) -> None:
    """Each takes 50 KB: as long as they last, 1,000 take 50 MB."""
    hub = bridge.start_hub(*authority.hub().flags, "--hello-timeout=60s")
    tls = authority.edge("n1").client()
    assert gets_in(hub, "n1", tls)
    before = resident_bytes(hub)
    with connections(hub, 1_000, saying=client_hello(authority)):
        wait_for(lambda: resident_bytes(hub) - before > 30 << 20, what="handshakes under way", timeout_s=60.0)
    wait_for(
        lambda: resident_bytes(hub) - before < 15 << 20,
        what="memory as before",
        timeout_s=60.0,
        instead=lambda: resident_bytes(hub) - before,
    )


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
