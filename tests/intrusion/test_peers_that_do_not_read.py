"""A peer that reads nothing: its link ends, and the hub closes the connection."""

import psutil

from common.messages import Ping
from tests.kit.bridge import Bridge
from tests.kit.stranger import Stranger, hello
from tests.kit.waiting import wait_for


def test_the_connection_of_a_peer_that_reads_nothing_is_closed_a_keepalive_after_its_link(bridge: Bridge) -> None:
    hub = bridge.start_hub("--keepalive=500ms")
    process = psutil.Process(hub.process.pid)
    with Stranger(hub.uds) as stranger:
        stranger.greet(hello("operator", "o"))
        connected = process.num_fds()
        for number in range(60):
            stranger.frames(*map(Ping, range(1_000 * number, 1_000 * number + 1_000)))
        wait_for(lambda: process.num_fds() < connected, what="closed connection", timeout_s=10)
