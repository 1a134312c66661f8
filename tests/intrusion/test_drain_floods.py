"""A peer repeats itself: a second Drain breaks the rules, and lines about one peer are counted after the first ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.messages import Drain, encode
from tests.kit.stranger import Stranger, hello, websocket_frame
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from tests.kit.bridge import Bridge


def test_64_000_drains_write_a_few_lines(bridge: Bridge) -> None:
    hub = bridge.start_hub()
    with Stranger(hub.address) as stranger:
        stranger.greet(hello("edge", "n1"))
        stranger.send(websocket_frame(encode(Drain("x")) * 1_000) * 64)
        stranger.read_to_end()
    hub.wait_logged("edge n1 is gone: Drain: twice")
    assert len(hub.logged("is draining")) == 1


def test_a_peer_that_is_refused_again_and_again_gets_some_lines_and_a_count(bridge: Bridge) -> None:
    hub = bridge.start_hub()
    for _ in range(300):
        with Stranger(hub.address) as stranger:
            stranger.upgrade()
            stranger.frames(hello("operator", "o"))
            stranger.receive()
    hub.stop()
    lines = hub.logged("refused operator o from 127.0.0.1:")
    assert len(lines) < 120
    assert lines[-1]["msg"].endswith(f" … and {300 - len(lines)} more")


def test_a_peer_that_invents_names_gets_as_few_lines_in_the_audit_log(bridge: Bridge) -> None:
    hub = bridge.start_hub()
    for number in range(300):
        with Stranger(hub.address) as stranger:
            stranger.upgrade()
            stranger.frames(hello("operator", f"o{number}"))
            stranger.receive()
    hub.stop()
    lines = hub.audited("refusal")
    assert len(lines) < 120
    assert lines[-1]["msg"] == f"refusal … and {300 - len(lines)} more"
    assert (lines[-1]["who"], lines[-1]["reason"]) == ("o299", "role")


def test_lines_about_one_peer_hide_no_line_about_another(bridge: Bridge) -> None:
    hub = bridge.start_hub()
    for _ in range(150):
        with Stranger(hub.address) as stranger:
            stranger.greet(hello("edge", "n1"))
    with Stranger(hub.address) as stranger:
        stranger.greet(hello("edge", "n2"))
        wait_for(lambda: hub.logged("edge n2 is connected"), what="line about n2")
    assert 100 <= len(hub.logged("edge n1 is connected")) < 110
