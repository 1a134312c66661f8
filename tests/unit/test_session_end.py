"""The end of a session: drain, goodbye, a lost link, and silence afterwards."""

from collections.abc import Callable

import pytest

from common.errors import TunnelClosed
from common.messages import Ping, encode
from tests.kit.events import Failed, Opened, PeerDraining, Released
from tests.unit.wire.pair import OK, SessionPair, Side, open_session, sent_frames

DRAINED = ("drained", "edge agent restarts, and every call is finished")


def test_a_drain_lets_open_streams_finish_and_then_ends_the_session() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    pair.edge.session.drain("edge agent restarts")
    pair.settle()
    assert pair.hub.one(PeerDraining) == PeerDraining("edge agent restarts")
    pair.edge.session.end(number, OK)
    pair.settle()
    assert pair.edge.closed is None
    pair.hub.session.acknowledge(number, delivered=True)
    pair.settle()
    assert pair.edge.one(Released) == Released(number, delivered=True)
    assert pair.edge.closed == pair.hub.closed == DRAINED


def test_no_stream_is_opened_towards_a_draining_peer() -> None:
    pair = SessionPair()
    pair.call()
    pair.settle()
    pair.edge.session.drain("x")
    pair.settle()
    with pytest.raises(TunnelClosed) as caught:
        pair.call()
    assert not caught.value.sent
    assert caught.value.why == "the peer is shutting down"


@pytest.mark.parametrize(
    "end",
    [
        lambda edge: edge.session.drain("x"),
        lambda edge: edge.session.goodbye("stopped", "killed by an operator"),
        lambda edge: edge.session.receive(b"\xc1", 1_000.0),
    ],
    ids=["drained", "stopped", "by a broken rule"],
)
def test_a_stream_that_crosses_the_goodbye_was_never_served_and_its_opener_knows(end: Callable[[Side], None]) -> None:
    pair = SessionPair()
    number = pair.call()
    under_way = pair.hub.session.to_send()
    end(pair.edge)
    pair.edge.session.receive(under_way, pair.now)
    pair.pump()
    failed = pair.hub.one(Failed)
    assert isinstance(failed.error, TunnelClosed)
    assert (failed.stream, failed.error.sent, pair.edge.all(Opened)) == (number, False, [])


def test_any_goodbye_tells_what_was_never_served() -> None:
    pair = SessionPair()
    served = pair.call()
    pair.settle()
    late = pair.call()
    under_way = pair.hub.session.to_send()
    pair.edge.session.goodbye("stopped", "killed by an operator")
    pair.edge.session.receive(under_way, pair.now)
    pair.pump()
    sent = {event.stream: event.error.sent for event in pair.hub.all(Failed) if isinstance(event.error, TunnelClosed)}
    assert sent == {served: True, late: False}


def test_after_the_goodbye_of_a_peer_that_does_not_tell_everything_that_left_counts_as_served() -> None:
    session = open_session()
    session.open(2, now=0.0)
    sent_frames(session)
    session.receive(b"\x93\x01\xa7drained\xa3bye", 0.0)
    (failed, _) = session.events()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, TunnelClosed)
    assert failed.error.sent


def test_a_goodbye_ends_both_ends_with_its_words() -> None:
    pair = SessionPair()
    pair.hub.session.goodbye("drained", "hub restarts")
    pair.pump()
    assert pair.hub.closed == pair.edge.closed == ("drained", "hub restarts")
    assert pair.hub.session.next_tick() is pair.edge.session.next_tick() is None


def test_after_a_lost_link_nothing_comes_out_and_nothing_goes_in() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    pair.hub.session.lost("cable cut")
    assert pair.hub.closed == ("link-lost", "cable cut")
    pair.hub.events()
    session = pair.hub.session
    session.lost("again")
    session.goodbye("x", "y")
    session.drain("x")
    session.send(number, b"x")
    session.end(number, OK)
    session.cancel(number)
    session.acknowledge(number, delivered=True)
    session.consumed(number, 100_000)
    session.receive(encode(Ping(1)), pair.now)
    session.receive(b"garbage", pair.now)
    session.tick(pair.now + 1_000)
    with pytest.raises(TunnelClosed):
        session.open(2, now=pair.now)
    assert session.events() == []
    assert session.to_send() == b""
    assert session.open_streams == 0
