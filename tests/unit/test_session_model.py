"""Two sessions against each other: hypothesis draws what happens, the traffic model checks every word of it.

`CSI_BRIDGE_EXAMPLES=10 pytest tests/unit/test_session_model.py` looks ten times as far.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from common.session.limits import Limits
from tests.kit.events import Event
from tests.kit.examples import examples
from tests.unit.wire.traffic import Call, Traffic

SIDES = st.sampled_from(["hub", "edge"])
PICK = st.integers(0, 30)
TIMEOUTS = st.sampled_from([None, None, 1.0, 12.0])
SIZES = st.sampled_from([0, 1, 2, 30, 99, 100, 101, 250, 299, 300, 301])
LIMITS = st.builds(
    Limits,
    chunk_bytes=st.sampled_from([20, 100, 1_000]),
    max_message_bytes=st.just(300),
    stream_window_bytes=st.sampled_from([1, 100, 364, 2_000]),
    session_window_bytes=st.sampled_from([486, 700, 2_000]),  # (300 + 64) * 4 / 3 is the least
    max_streams=st.sampled_from([1, 3, 8]),
    keepalive_s=st.just(10.0),
    hello_timeout_s=st.just(5.0),
)


class SessionModel(RuleBasedStateMachine):
    """What may happen to two sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic: Traffic

    @initialize(hub=LIMITS, edge=LIMITS)
    def connect(self, hub: Limits, edge: Limits) -> None:
        self.traffic = Traffic(hub, edge)

    def call(self, pick: int) -> Call | None:
        calls = list(self.traffic.calls.values())
        return calls[-1 - pick % len(calls)] if calls else None

    @rule(side=SIDES, is_free=st.booleans())
    def free(self, side: str, is_free: bool) -> None:
        self.traffic.free(side, is_free=is_free)

    @rule(
        side=SIDES,
        priority=st.integers(0, 3),
        timeout_s=TIMEOUTS,
        first=st.none() | SIZES,
        sizes=st.lists(SIZES, max_size=3),
    )
    def open(self, side: str, priority: int, timeout_s: float | None, first: int | None, sizes: list[int]) -> None:
        call = self.traffic.open(side, priority, timeout_s, first)
        for size in sizes if call else []:
            assert call is not None
            self.traffic.send(call, up=True, size=size)

    @rule(pick=PICK, up=st.booleans(), sizes=st.lists(SIZES, min_size=1, max_size=4))
    def send(self, pick: int, up: bool, sizes: list[int]) -> None:
        if call := self.call(pick):
            for size in sizes:
                self.traffic.send(call, up=up, size=size)

    @rule(pick=PICK, code=st.sampled_from([0, 14, 4_711]), last=st.none() | SIZES)
    def end(self, pick: int, code: int, last: int | None) -> None:
        if call := self.call(pick):
            self.traffic.end(call, code, last)

    @rule(pick=PICK, delivered=st.booleans())
    def acknowledge(self, pick: int, delivered: bool) -> None:
        if call := self.call(pick):
            self.traffic.acknowledge(call, delivered=delivered)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if call := self.call(pick):
            self.traffic.cancel(call)

    @rule(side=SIDES, places=st.lists(PICK, min_size=1, max_size=5))
    def consume(self, side: str, places: list[int]) -> None:
        for place in places:
            self.traffic.consume(side, place)

    @rule(side=SIDES, most=st.integers(1, 8))
    def pull(self, side: str, most: int) -> None:
        self.traffic.pull(side, most)

    @rule(side=SIDES, most=st.integers(1, 8))
    def deliver(self, side: str, most: int) -> None:
        self.traffic.deliver(side, most)

    @rule(most=st.integers(1, 20))
    def flow(self, most: int) -> None:
        self.traffic.flow(most)

    @rule()
    def consume_all(self) -> None:
        self.traffic.consume_all()

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0, 10.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.traffic.wait(seconds)

    @rule(side=SIDES, how=st.sampled_from(["lose", "cut", "goodbye", "drain", "drain"]))
    @precondition(lambda self: len(self.traffic.calls) > 3)
    def part(self, side: str, how: str) -> None:
        if how == "cut":
            self.traffic.cut()
        else:
            getattr(self.traffic, how)(side)

    @rule()
    @precondition(lambda self: any(party.closed for party in self.traffic.parties.values()))
    def reconnect(self) -> None:
        self.traffic.connect()

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.finish()


@pytest.mark.hypothesis  # it draws its examples inside
def test_every_stream_ends_once_whole_and_paid_for_whatever_happens_to_the_link() -> None:
    run_state_machine_as_test(SessionModel, settings=examples(75, steps=60))


ACTIONS = {
    "open": 10, "send": 30, "end": 5, "acknowledge": 8, "cancel": 2, "consume": 14, "pull": 10, "deliver": 10,
    "flow": 8, "free": 1, "wait": 1.5, "drain": 0.06, "goodbye": 0.06, "lose": 0.06, "cut": 0.06,
}  # fmt: skip
"""What happens in dense traffic, and how often."""


def happen(traffic: Traffic, action: str, chance: Random) -> None:
    side = chance.choice(["hub", "edge"])
    live = [call for call in traffic.calls.values() if call.alive]
    call = chance.choice(live[-16:]) if live else None
    size = chance.choice([0, 1, 30, 99, 100, 101, 250, 300, 301])
    match action:
        case "open":
            traffic.open(
                side, chance.randint(0, 3), chance.choice([None, None, 5.0, 60.0]), chance.choice([None, size])
            )
        case "free":
            traffic.free(side, is_free=chance.random() < 0.5)
        case "consume":
            traffic.consume(side, chance.randrange(10))
        case "pull" | "deliver":
            getattr(traffic, action)(side, chance.randint(1, 6))
        case "flow":
            traffic.flow(chance.randint(1, 10))
        case "wait":
            traffic.wait(chance.choice([0.1, 0.5, 1.0, 9.0]))
        case "drain" | "goodbye" | "lose":
            getattr(traffic, action)(side)
        case "cut":
            traffic.cut()
        case "send" if call:
            traffic.send(call, up=chance.random() < 0.5, size=size)
        case "end" if call:
            traffic.end(call, last=chance.choice([None, size]))
        case "cancel" if call:
            traffic.cancel(call)
        case "acknowledge" if call:
            traffic.acknowledge(call, delivered=chance.random() < 0.5)


@pytest.mark.slow
def test_the_same_holds_in_long_and_dense_traffic() -> None:
    seen: Counter[str] = Counter()

    @given(hub=LIMITS, edge=LIMITS, seed=st.integers(0, 2**32))
    @examples(80, shrink=False, whole=True)
    def run(hub: Limits, edge: Limits, seed: int) -> None:
        chance = Random(seed)
        traffic = Traffic(hub, edge)
        for action in chance.choices(list(ACTIONS), list(ACTIONS.values()), k=4_000):
            happen(traffic, action, chance)
            if any(party.closed for party in traffic.parties.values()) and chance.random() < 0.2:
                traffic.connect()
        traffic.finish()
        seen.update(traffic.seen)

    run()
    for event in Event.__args__:  # a model that hardly ever comes to an event proves nothing about it
        assert seen[event.__name__] >= 50, seen
