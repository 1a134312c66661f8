"""The generations of a node's certificate: which one counts, copies, and a hub restored from a backup."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from cloud.trust.audit import Event
from cloud.trust.generations import MOST_PENDING, MOST_VOID, Generations, OnCopy
from cloud.trust.trust_store import Certificate, State, TrustStore
from common.errors import HandshakeRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kit.audit import Line


@dataclass(frozen=True)
class Shown:
    """A certificate of node n1."""

    generation: int
    key: str
    address: str = "10.0.0.7:1"
    serial: int = 42
    not_after: float = 2e9
    proved_at: float = math.inf

    @property
    def uris(self) -> tuple[str, ...]:
        name = "csi-bridge:node:n1"
        return (name, f"csi-bridge:generation:{self.generation}") if self.generation else (name,)


class World:
    def __init__(self, directory: Path, on_copy: OnCopy = OnCopy.LOCK) -> None:
        self.directory = directory
        self.store = TrustStore(directory)
        self.generations = Generations(self.store, on_copy=on_copy, now=lambda: 1_000.0, monotonic=lambda: 1_000.0)
        self.cut: list[str] = []
        self.generations.on_locked = lambda node, _why: self.cut.append(node)

    async def issue(self, key: str, *, token: str = "") -> Shown:
        number = self.generations.next_of("n1")
        await self.store.add_certificate(Certificate("n1", number, key, "2a", 0.0, 2e9, State.PENDING, token, b"pem"))
        self.generations.limit_pending("n1")
        return Shown(number, key)

    def come(self, shown: Shown) -> None:
        """Be admitted with this certificate."""
        self.generations.examine("n1", shown)
        self.generations.authenticated("n1", shown)

    def refusal(self, shown: Shown) -> HandshakeRefused:
        with pytest.raises(HandshakeRefused) as refused:
            self.come(shown)
        return refused.value

    def states(self) -> dict[int, State]:
        return {number: it.state for number, it in self.store.certificates["n1"].items()}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.close()


async def test_the_present_key_counts_until_the_next_one_has_authenticated(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(first)
    assert world.states() == {1: State.CURRENT, 2: State.PENDING}
    world.come(second)
    assert world.states() == {1: State.VOID, 2: State.CURRENT}


async def test_a_node_may_skip_a_certificate_whose_answer_was_lost(world: World) -> None:
    world.come(await world.issue("k1"))
    await world.issue("k2")
    third = await world.issue("k3")
    world.come(third)
    assert world.states() == {1: State.VOID, 2: State.VOID, 3: State.CURRENT}


async def test_a_later_certificate_stays_pending_when_an_earlier_one_is_used(world: World) -> None:
    world.come(await world.issue("k1"))
    second, third = await world.issue("k2"), await world.issue("k3")
    world.come(second)
    assert world.states() == {1: State.VOID, 2: State.CURRENT, 3: State.PENDING}
    world.come(third)


async def test_a_void_key_that_appears_again_locks_the_node_and_ends_its_links(
    audit_lines: list[Line], world: World
) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(second)
    assert "somebody has a copy of its keys" in world.refusal(first).why
    assert world.cut == ["n1"]
    assert "is locked" in world.refusal(second).why
    assert [event for event, *_ in audit_lines if event is Event.COPY] == [Event.COPY]
    assert any("edge node n1 is locked" in problem for problem in world.generations.problems())


async def test_a_lock_outlives_the_hub(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(second)
    world.refusal(first)
    await world.store.close()
    world.store = TrustStore(world.directory)
    world.generations = Generations(world.store, on_copy=OnCopy.LOCK)
    assert "is locked" in world.refusal(second).why


async def test_with_alarm_the_void_key_is_refused_and_the_node_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, OnCopy.ALARM)
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(second)
    assert "was replaced by a later one" in world.refusal(first).why
    assert (world.cut, next(iter(world.generations.problems()))[:32]) == ([], "a certificate of edge node n1 th")
    world.come(second)
    assert await world.generations.allow("n1")
    assert list(world.generations.problems()) == []
    await world.store.close()


async def test_after_allow_the_newest_key_counts_and_the_void_one_locks_no_more(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(second)
    world.refusal(first)
    assert await world.generations.allow("n1")
    world.come(second)
    world.refusal(first)
    world.come(second)
    third = await world.issue("k3")
    world.come(third)
    world.refusal(second)
    assert "is locked" in world.refusal(third).why, "a key that became void later locks the node again"


async def test_a_node_that_joins_again_after_a_copy_is_unlocked_and_the_copies_are_void(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    thief = await world.issue("k2")
    world.come(thief)
    world.refusal(first)
    joined = await world.issue("k3", token="5f")
    world.come(joined)
    world.refusal(thief)
    world.come(joined)
    assert world.generations.locked("n1") is None


async def test_the_old_machine_of_a_node_that_joined_again_locks_nothing(world: World) -> None:
    old = await world.issue("k1", token="5f")
    world.come(old)
    new = await world.issue("k2", token="60")
    world.come(new)
    assert "join again with a new token" in world.refusal(old).why
    world.come(new)


async def test_a_lock_holds_for_a_certificate_from_a_renewal_under_way(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(second)
    third = await world.issue("k3")
    world.refusal(first)
    assert "is locked" in world.refusal(third).why


async def test_a_lock_holds_for_a_certificate_that_is_being_stored(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.come(second)
    under_way = asyncio.create_task(world.issue("k3"))
    await asyncio.sleep(0)  # until it waits for the disk
    world.refusal(first)
    assert "is locked" in world.refusal(await under_way).why


async def test_a_key_that_tls_took_before_it_was_replaced_is_refused_and_locks_nothing(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    delayed = replace(first, proved_at=999.0)
    second = await world.issue("k2")
    world.come(second)
    assert "was replaced" in world.refusal(delayed).why
    world.come(second)
    assert world.cut == []


async def test_allow_of_a_node_without_copies_says_so(world: World) -> None:
    assert not await world.generations.allow("n1")


async def test_a_generation_above_all_known_ones_becomes_the_current_one(world: World) -> None:
    """The hub was restored from a backup, and the node has renewed since then."""
    world.come(await world.issue("k1"))
    world.come(Shown(7, "k7"))
    assert world.states() == {1: State.VOID, 7: State.CURRENT}
    assert world.generations.next_of("n1") == 8


async def test_two_keys_of_one_generation_are_a_copy(world: World) -> None:
    """After a restore, a copy of generation 1 has renewed, and so has had the node before the restore."""
    world.come(await world.issue("k1"))
    world.come(await world.issue("the copy's"))
    assert "somebody has a copy" in world.refusal(Shown(2, "the node's")).why


async def test_a_certificate_without_a_generation_counts_only_before_the_node_has_joined(world: World) -> None:
    world.come(Shown(0, "file"))
    first = await world.issue("k1")
    world.come(Shown(0, "file"))
    world.come(first)
    assert "has joined, and this certificate has no generation" in world.refusal(Shown(0, "file")).why
    assert world.cut == [], "an operator may have put an old file back: no alarm"


async def test_a_hello_that_was_refused_for_another_reason_voids_nothing(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    second = await world.issue("k2")
    world.generations.examine("n1", second)
    world.come(first)


async def test_a_connected_node_may_show_its_own_key_or_one_from_its_renewal(world: World) -> None:
    joined = await world.issue("k1", token="5f")
    world.come(joined)
    await world.issue("k2")
    await world.issue("k3", token="5f")
    follows = world.generations.follows
    assert follows("n1", "k1", "k1")
    assert follows("n1", "k1", "k2")
    assert not follows("n1", "k1", "k3"), "a machine that joined anew is another machine"
    assert not follows("n1", "k1", "k9")
    assert not follows("n2", "k1", "k2")


async def test_an_announced_key_may_follow_the_key_that_announced_it(world: World) -> None:
    world.generations.announce("n1", "a", "b")
    assert world.generations.follows("n1", "a", "b")
    assert not world.generations.follows("n1", "c", "b")
    assert not world.generations.follows("n1", "b", "a")


async def test_certificates_that_are_asked_for_and_not_used_are_few(world: World) -> None:
    first = await world.issue("k1")
    world.come(first)
    for number in range(2, 60):
        await world.issue(f"k{number}")
    assert len(world.states()) == 1 + MOST_PENDING + MOST_VOID
    world.come(first)
    world.come(Shown(59, "k59"))


async def test_generations_of_one_node_do_not_touch_another(world: World) -> None:
    world.come(await world.issue("k1"))
    world.generations.examine("n2", Shown(0, "file"))
    assert not world.generations.has_joined("n2")


@pytest.mark.parametrize("uris", [("csi-bridge:generation:1", "csi-bridge:generation:2"), ("csi-bridge:generation:x",)])
async def test_a_certificate_with_an_odd_generation_is_refused(world: World, uris: tuple[str, ...]) -> None:
    class Odd(Shown):
        uris = ()

    odd = Odd(0, "k")
    type(odd).uris = uris  # type: ignore[assignment]  # a class of this test
    assert "generation" in world.refusal(odd).why


async def test_after_a_crash_between_two_writes_the_newest_current_one_counts(world: World) -> None:
    first, second = await world.issue("k1"), await world.issue("k2")
    world.come(first)
    world.store.put_certificate(replace(world.store.certificates["n1"][2], state=State.CURRENT))
    world.come(second)
    world.refusal(first)
