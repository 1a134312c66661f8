"""A peer repeats itself: a second Drain breaks the rules, and lines about one peer are counted after the first ones."""

from pathlib import Path

import pytest

from common.messages import Ack, Chunk, Drain, End, Kind, Open, Priority, encode
from tests.kit.bridge import Bridge
from tests.kit.stranger import Stranger, hello, websocket_frame
from tests.kit.waiting import wait_for


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


@pytest.mark.slow
def test_a_node_that_breaks_the_rules_of_its_streams_again_and_again_gets_some_lines(
    bridge: Bridge, tmp_path: Path
) -> None:
    hub = bridge.start_hub(f"--manifests={tmp_path}")
    with Stranger(hub.address) as stranger:
        stranger.greet(hello("edge", "n1"))
        for number in range(150):
            opened = Open(2 * number + 1, Kind.FACTS, Priority.SYNC, "", "", "", "", 0)
            stranger.frames(opened, Chunk(opened.stream, 0, b"no message of a sync"))
            while not any(isinstance(frame, End) for frame in stranger.next_frames()):
                pass
            stranger.frames(Ack(opened.stream, delivered=True))
    hub.stop()
    lines = hub.logged("node n1 broke the rules of a sync")
    assert len(lines) < 120
    assert lines[-1]["msg"].endswith(f" … and {150 - len(lines)} more")
