"""A teller and a learner against each other: hypothesis draws what happens, the world checks every word of it.

`CSI_BRIDGE_EXAMPLES=10 pytest tests/unit/sync/test_sync_model.py` looks ten times as far.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from common.objects import Object, Ref, Stamp
from tests.kit.examples import examples
from tests.kit.synced_sides import Synced

KINDS = ("Pod", "Secret", "Event")
REFS = [Ref(kind, "default", f"{kind.lower()}-{number}") for kind in KINDS for number in range(4)]
SECRETS = [ref for ref in REFS if ref.kind == "Secret"]
"""Of these it may be unknown what there is."""

SIZES = [2, 40, 200, 900, 4_000]


def stand_in(ref: Ref, version: int, size: int) -> Object | None:
    """What is said in place of an object that nobody knows, if anything is."""
    return Object(ref, Stamp("", str(version)), b"y" * size) if size else None


class SyncModel(RuleBasedStateMachine):
    """What may happen to a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Synced
        self.version = 0
        self.seen: Counter[str] = Counter()

    @initialize(budget=st.sampled_from([0, 100, 500, 10_000]), wanted=st.sampled_from([None, 50, 2_000]))
    def begin(self, budget: int, wanted: int | None) -> None:
        self.world = Synced(budget_bytes=budget, wanted_bytes=wanted)
        self.world.connect()

    @rule(ref=st.sampled_from(REFS), uid=st.integers(0, 1), size=st.sampled_from(SIZES), refused=st.integers(0, 9))
    def put(self, ref: Ref, uid: int, size: int, refused: int) -> None:
        self.version += 1
        body = (b"refuse" if not refused else b"").ljust(size, b"x")
        # A uid never comes back: it is made of the old one and what is new about it.
        known = self.world.truth.uids.get(ref)
        new = "" if ref.kind == "Event" else f"u{self.version}"
        name = known if known is not None and uid else new
        self.world.put(Object(ref, Stamp(name, str(self.version)), body), whole=self.version % 3 == 0)

    @rule(ref=st.sampled_from(REFS))
    def drop(self, ref: Ref) -> None:
        self.world.drop(ref)

    @rule(ref=st.sampled_from(SECRETS), size=st.sampled_from([0, *SIZES]))
    def lose(self, ref: Ref, size: int) -> None:
        self.version += 1
        self.world.lose(ref, stand_in(ref, self.version, size), whole=self.version % 3 == 0)

    @rule(times=st.integers(1, 3))
    def tell(self, times: int) -> None:
        for _ in range(times):
            self.world.tell()

    @rule(times=st.integers(1, 3))
    def learn(self, times: int) -> None:
        for _ in range(times):
            self.world.learn()

    @rule()
    def deliver_down(self) -> None:
        self.world.deliver_down()

    @rule()
    def deliver_up(self) -> None:
        self.world.deliver_up()

    @rule(count=st.integers(1, 5))
    def store(self, count: int) -> None:
        self.world.store(count)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule()
    def cut(self) -> None:
        self.world.cut()

    @rule()
    def connect(self) -> None:
        self.world.connect()

    @rule()
    def restart(self) -> None:
        self.world.restart()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.connect()
            self.world.settle()
            self.world.check_converged()


@pytest.mark.hypothesis  # it draws its examples inside
def test_the_copy_becomes_the_truth_whatever_happens_to_the_stream() -> None:
    run_state_machine_as_test(SyncModel, settings=examples(75, steps=60))


ACTIONS = {
    "put": 10, "drop": 2, "lose": 2, "tell": 12, "learn": 12, "deliver_down": 14, "deliver_up": 14, "store": 12,
    "cut": 0.3, "connect": 0.5, "restart": 0.2,
}  # fmt: skip
"""What happens to a busy sync, and how often."""


def happen(world: Synced, action: str, chance: Random, version: int) -> None:
    ref = chance.choice(REFS)
    match action:
        case "put":
            known = world.truth.uids.get(ref)
            uid = known if known is not None and chance.random() < 0.7 else f"u{version}"
            body = (b"refuse" if chance.random() < 0.1 else b"").ljust(chance.choice(SIZES), b"x")
            stamp = Stamp("" if ref.kind == "Event" else uid, str(version))
            world.put(Object(ref, stamp, body), whole=chance.random() < 0.3)
        case "drop":
            world.drop(ref)
        case "lose":
            secret = chance.choice(SECRETS)
            world.lose(secret, stand_in(secret, version, chance.choice([0, *SIZES])), whole=chance.random() < 0.3)
        case "store":
            world.store(chance.randint(1, 4))
        case _:
            getattr(world, action)()


@pytest.mark.hypothesis  # it draws its examples inside
def test_the_same_holds_in_a_long_and_busy_sync() -> None:
    seen: Counter[str] = Counter()

    @given(budget=st.sampled_from([0, 100, 500, 10_000]), seed=st.integers(0, 2**32))
    @examples(40, shrink=False)
    def run(budget: int, seed: int) -> None:
        chance = Random(seed)
        world = Synced(budget_bytes=budget)
        for version, action in enumerate(chance.choices(list(ACTIONS), list(ACTIONS.values()), k=2_000), 1):
            happen(world, action, chance, version)
        world.connect()
        world.settle()
        world.check_converged()
        seen.update(world.sent + world.said)

    run()
    for word in ("Digest", "Differ", "Held", "HeldAll", "Put", "Drop", "InStep", "Stored", "Refused",
                 "Compared", "Confirmed", "Untold", "in step", "held and lost"):  # fmt: skip
        assert seen[word] >= 15, seen  # a model that hardly ever comes to a word proves nothing about it


@pytest.mark.hypothesis  # it draws its examples inside
def test_states_that_come_back_are_told_again() -> None:
    """Versions are opaque: an object may be again as it was before."""

    @given(changes=st.lists(st.tuples(st.sampled_from(REFS[:3]), st.integers(0, 2), st.integers(0, 6)), max_size=40))
    @examples(100)
    def run(changes: list[tuple[Ref, int, int]]) -> None:
        world = Synced(budget_bytes=200, monotonic=False)
        world.connect()
        steps = [world.tell, world.learn, world.deliver_down, world.deliver_up, lambda: world.store(1), world.restart]
        for ref, state, step in changes:
            world.put(Object(ref, Stamp("u", str(state)), str(state).encode()))
            for _ in range(2):
                steps[step % len(steps)]()
            if world.teller is None:
                world.connect()
        world.settle()
        world.check_converged()

    run()
