"""A peer sends a frame so slowly that it never ends: the hub ends the link."""

import time

from common.messages import Ping, encode
from tests.kit.bridge import Bridge
from tests.kit.stranger import Stranger, hello, websocket_frame
from tests.kit.waiting import let_pass


def test_bytes_that_dribble_inside_a_frame_do_not_keep_a_link_open(bridge: Bridge) -> None:
    hub = bridge.start_hub("--keepalive=500ms")
    with Stranger(hub.address) as stranger:
        stranger.greet(hello("edge", "n1"))
        began = time.monotonic()
        for byte in websocket_frame(encode(Ping(1)) * 1_000):
            stranger.send(bytes([byte]))
            let_pass(0.05)
            if hub.logged("edge n1 is gone") or time.monotonic() - began > 5:
                break
    hub.wait_logged("bytes of a message in")
    assert time.monotonic() - began < 4
