"""A teller and a learner against each other: hypothesis draws what happens, the world checks every word of it.

`CSI_BRIDGE_EXAMPLES=10 pytest tests/unit/sync/test_sync_model.py` looks ten times as far.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.objects.objects import Object, Ref, Stamp
from tests.kit.examples import examples
from tests.kit.synced_sides import Synced

KINDS = ("Pod", "Secret", "Event")
REFS = [Ref(kind, "default", f"{kind.lower()}-{number}") for kind in KINDS for number in range(4)]
SECRETS = [ref for ref in REFS if ref.kind == "Secret"]  # of these it may be unknown what there is

SIZES = [2, 40, 200, 900, 4_000]


def stand_in(ref: Ref, version: int, size: int) -> Object | None:
    """What is said in place of an object that nobody knows, if anything is."""
    return Object(ref, Stamp("", str(version)), b"y" * size) if size else None


ACTIONS = {
    "put": 10, "drop": 2, "lose": 2, "tell": 12, "learn": 12, "deliver_down": 14, "deliver_up": 14, "store": 12,
    "settle": 0.3, "cut": 0.3, "connect": 0.5, "restart": 0.2,
}  # fmt: skip
"""What happens to a sync, and how often."""


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
def test_the_copy_becomes_the_truth_whatever_happens_to_the_stream() -> None:
    seen: Counter[str] = Counter()

    @given(
        budget=st.sampled_from([0, 100, 500, 10_000]),
        wanted=st.sampled_from([None, 50, 2_000]),
        seed=st.integers(0, 2**32),
    )
    @examples(40, shrink=False)
    def run(budget: int, wanted: int | None, seed: int) -> None:
        chance = Random(seed)
        world = Synced(budget_bytes=budget, wanted_bytes=wanted)
        world.connect()
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
