"""Admitted peers open streams of other roles, call other drivers, and answer streams that are not theirs."""

import pytest

from common.messages import Chunk, End, Kind, Open, Priority, Reason
from common.status import Code
from tests.kit.bridge import Hub
from tests.kit.certificates import Authority
from tests.kit.stranger import Stranger, hello

MINE = {
    "edge": {Kind.REPORT, Kind.SYNC, Kind.FACTS, Kind.OBSERVE, Kind.RENEW},
    "driver": {Kind.CALL, Kind.WATCH},
}
"""The kinds that each role may open."""


@pytest.mark.parametrize("role", MINE)
def test_a_role_opens_its_own_kinds_of_streams_alone(hub: Hub, authority: Authority, role: str) -> None:
    pem = authority.edge("n1") if role == "edge" else authority.driver("n1")
    kinds = [kind for kind in [*Kind, 99] if kind not in MINE[role]]
    with Stranger(hub.address, tls=pem.client()) as stranger:
        stranger.greet(hello(role, "n1"))
        for number, kind in enumerate(kinds):
            stranger.frames(Open(2 * number + 1, kind, Priority.CALL, "n1", "/csi.v1.Node/NodeGetInfo", "n2", "", 0))
            if kind == Kind.CALL:  # which is refused when its request is whole
                stranger.frames(Chunk(2 * number + 1, 0, b""))
            end = stranger.next_end()
            assert end.code == Code.UNIMPLEMENTED, kind
            assert f"this hub does not serve it to the role {role}" in end.message


def test_a_proxy_driver_calls_and_watches_its_own_driver_alone(hub: Hub, authority: Authority) -> None:
    with Stranger(hub.address, tls=authority.driver("mine.example").client()) as stranger:
        stranger.greet(hello("driver", "mine.example"))
        stranger.frames(Open(1, Kind.CALL, Priority.CALL, "other.example", "/csi.v1.Identity/Probe", "", "", 0))
        stranger.frames(Chunk(1, 0, b""))
        refused = stranger.next_end()
        assert (refused.code, refused.origin) == (Code.UNAVAILABLE, "hub")
        assert "may call only its own driver" in refused.message
        stranger.frames(Open(3, Kind.WATCH, Priority.CONTROL, "other.example", "", "", "", 0))
        assert "may call only its own driver" in stranger.next_end().message


def test_a_node_answers_no_stream_of_another_link(hub: Hub, authority: Authority) -> None:
    tls = authority.edge("n2").client()
    for frame, why in (
        (Chunk(2, 0, b"forged"), "Chunk: stream 2 is not open"),
        (End(2, 0, "", "vendor"), "End: stream 2 is not open"),
        (Open(2, Kind.REPORT, 0, "", "", "", "", 0), "Open: stream id 2 is not a new one of the peer's"),
    ):
        with Stranger(hub.address, tls=tls) as stranger:
            stranger.greet(hello("edge", "n2"))
            stranger.frames(frame)
            assert stranger.last_word() == (Reason.PROTOCOL_ERROR, why)
