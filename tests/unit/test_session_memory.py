"""What a session costs: idle, after many calls, and with a peer that wants it to cost much."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from common.messages import Chunk, Open, encode
from common.session.limits import Limits
from tests.kit.events import Message
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import SMALL, SessionPair, hello_of, open_session


class Measured:
    """Bytes that Python allocated while it was measured: `held` at the end, `peak` above the start."""

    held: int
    peak: int


@contextmanager
def measured() -> Iterator[Measured]:
    result = Measured()
    gc.collect()
    tracemalloc.start()
    try:
        yield result
        result.peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        result.held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def welcomed(number: int) -> RecordedSession:
    """A hub's session with an idle edge node, its hello decoded as from a wire."""
    session = RecordedSession(HUB, dialler=False, limits=LIMITS, now=0.0)
    session.receive(encode(replace(hello_of(), name=f"node-{number}", instance=f"{number:032x}")), 0.0)
    session.accept(1)
    session.to_send()
    session.events()
    return session


LIMITS = Limits(max_message_bytes=1_000, session_window_bytes=4_000)
HUB = hello_of("hub", "hub-1")
IDLE_SESSION_BYTES = 4_096  # a fifth of the 20 KB that the hub may spend on an idle edge


def test_an_idle_session_is_small() -> None:
    welcomed(0)
    with measured() as memory:
        sessions = [welcomed(number) for number in range(1_000)]
    assert len(sessions) == 1_000
    assert memory.held / 1_000 < IDLE_SESSION_BYTES, f"{memory.held / 1_000:.0f} bytes per idle session"


def growth(once: Callable[[], object], warm_up: int, times: int) -> int:
    """Bytes that are held after so many times more than after the warm-up."""
    for _ in range(warm_up):
        once()
    with measured() as memory:
        for _ in range(times):
            once()
    return memory.held


def test_finished_calls_leave_nothing_behind() -> None:
    pair = SessionPair()

    def once() -> None:
        pair.answered_call()
        pair.hub.seen.clear()
        pair.edge.seen.clear()
        pair.hub.looked_at = pair.edge.looked_at = 0

    assert growth(once, 100, 1_000) < 2_000


def test_deadlines_of_finished_calls_are_forgotten() -> None:
    pair = SessionPair()
    longest = 0
    for count in range(100_000):
        number = pair.hub.session.open(2, now=pair.now, timeout_s=600.0)
        if count % 1_000 == 0:
            pair.pump()
        pair.hub.session.cancel(number)
        longest = max(longest, len(pair.hub.session._deadlines._heap))
    assert longest <= 64 + 2 * SMALL.max_streams + 1


def test_calls_given_up_while_the_link_is_stalled_leave_nothing_behind() -> None:
    session = open_session()
    session.send(session.open(2, now=0.0), b"x" * 500)

    def once() -> None:
        number = session.open(2, now=0.0, timeout_s=5.0)
        session.send(number, b"y" * 500)
        session.cancel(number)

    assert growth(once, 200, 2_000) < 20_000  # the heap of deadlines breathes; one call alone holds 1,500


def test_a_message_in_tiny_pieces_holds_little_more_than_its_bytes() -> None:
    size = 100_000
    limits = replace(SMALL, max_message_bytes=size, session_window_bytes=2 * size)
    session = open_session(limits, max_message_bytes=size, session_window_bytes=2 * size)
    session.receive(encode(Open(1, 2, 1, "", "", "", "", 0)), 0.0)
    chunks = [encode(Chunk(1, left, b"ab")) for left in range(size - 2, -2, -2)]
    wire = [b"".join(chunks[start : start + 1_000]) for start in range(0, len(chunks), 1_000)]
    del chunks
    with measured() as memory:
        for data in wire[:-1]:
            session.receive(data, 0.0)
    assert memory.held < 1.5 * size
    session.receive(wire[-1], 0.0)
    message = session.events()[-1]
    assert message == Message(1, b"ab" * (size // 2))


def test_a_large_message_is_not_copied_on_its_way_out() -> None:
    size = 4_000_000
    session = open_session(Limits(), max_message_bytes=size, session_window_bytes=8_000_000)
    number = session.open(2, now=0.0)
    payload = bytes(size)
    with measured() as memory:
        session.send(number, payload)
        while session.to_send():
            pass
    assert memory.peak < 200_000
