"""The conformance suite of claim stores: two hubs write to one store at once, and neither overwrites the other.

Each implementation of `cloud.placement.claim_store.ClaimStore` has to pass it: add a `Pair` for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cloud.placement import memory_rows, sqlite_rows
from cloud.placement.claim_rules import Writer
from cloud.placement.claim_store import FORGOTTEN, LISTED_BYTES, NO_ID, NO_NAME, Claimed, HeldBy, Holding, ListsTooLarge
from cloud.placement.memory_rows import MemoryRows
from cloud.placement.requests import SNAPSHOT, VOLUME, Thing
from cloud.placement.sqlite_claims import SqliteClaims
from tests.unit.placement.memory_claims import MemoryClaims, Shelf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cloud.placement.claim_store import ClaimStore, IdEntry, NameEntry

D = "d.example"
NAME = "CreateVolume pvc-1"
VOL, OTHER = Thing(VOLUME, "vol-1"), Thing(VOLUME, "vol-2")


@pytest.fixture(params=["sqlite", "memory", "memory, with other turns"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[ClaimStore, ClaimStore]]:
    """The stores of two hubs."""
    first: ClaimStore
    second: ClaimStore
    if request.param == "sqlite":
        first, second = (SqliteClaims(tmp_path, owner=owner, alone=False) for owner in "ab")
    else:
        shelf = Shelf((0, 1, 2) if request.param == "memory" else (3, 0, 1, 0, 2))
        first, second = MemoryClaims(shelf, "a"), MemoryClaims(shelf, "b")
    yield first, second
    await first.close()
    await second.close()


@pytest.fixture(params=["sqlite", "sqlite, alone", "memory"])
async def one(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClaimStore]:
    """The store of one hub."""
    store: ClaimStore = MemoryClaims(Shelf(), "a")
    if request.param != "memory":
        store = SqliteClaims(tmp_path, owner="a", alone=request.param.endswith("alone"))
    yield store
    await store.close()


async def entry(store: ClaimStore, name: str = NAME, driver: str = D) -> NameEntry:
    return (await store.look(driver, name, ())).name


async def id_entry(store: ClaimStore, thing: Thing = VOL) -> IdEntry:
    return (await store.look(D, "", [thing])).ids[thing]


async def make(store: ClaimStore, node: str, *things: Thing, name: str = NAME) -> None:
    """A create has made things."""
    expected = (await store.look(D, "", things)).ids
    done = await store.record(D, node, {thing: Holding(name) for thing in things}, expected)
    assert isinstance(done, Claimed)


async def delete(store: ClaimStore, node: str, thing: Thing = VOL, *, at: float = 1_000.0) -> None:
    expected = (await store.look(D, "", [thing])).ids
    done = await store.record(D, node, {thing: Holding(NAME, at)}, expected)
    assert isinstance(done, Claimed)


# -------------------- reading --------------------


async def test_a_glance_sees_what_a_look_sees_or_says_that_it_has_to_wait(one: ClaimStore) -> None:
    await make(one, "n1", VOL)
    one.hold_later(D, "CreateVolume pvc-2", "n2")
    for name in (NAME, "CreateVolume pvc-2", ""):
        seen = one.glance(D, name, [VOL, OTHER])
        assert seen is None or seen == await one.look(D, name, [VOL, OTHER])


async def test_a_store_that_is_alone_never_has_to_wait_for_a_glance(tmp_path: Path) -> None:
    store = SqliteClaims(tmp_path)
    assert store.glance(D, NAME, [VOL]) is not None
    await store.close()


# -------------------- names --------------------


async def test_of_many_claims_of_two_hubs_all_that_succeed_are_for_one_node(
    pair: tuple[ClaimStore, ClaimStore],
) -> None:
    async def claim(number: int) -> str:
        """The node that has the name in the end, as one caller finds out."""
        store, node = pair[number % 2], f"n{number % 3}"
        while True:
            expected = await entry(store)
            held = expected.nodes[0] if expected.nodes else node
            if isinstance(await store.claim(D, NAME, held, expected), Claimed):
                return held

    assert len(set(await asyncio.gather(*map(claim, range(12))))) == 1


async def test_a_claim_by_an_old_entry_changes_nothing_and_shows_the_present_one(
    pair: tuple[ClaimStore, ClaimStore],
) -> None:
    first = await pair[0].claim(D, NAME, "n1", NO_NAME)
    again = await pair[1].claim(D, NAME, "n1", NO_NAME)
    assert again == HeldBy(first.entry) == HeldBy(await entry(pair[1]))
    assert isinstance(await pair[1].claim(D, NAME, "n1", again.entry), Claimed)


async def test_a_name_is_free_only_when_each_hub_has_ended_its_own_hold(pair: tuple[ClaimStore, ClaimStore]) -> None:
    first = await pair[0].claim(D, NAME, "n1", NO_NAME)
    await pair[1].claim(D, NAME, "n1", first.entry)
    assert (await entry(pair[0])).holds.keys() == {"a", "b"}
    pair[1].free_later(D, NAME)
    assert isinstance(await pair[1].claim(D, NAME, "n2", await entry(pair[1])), HeldBy)
    pair[0].free_later(D, NAME)
    assert await entry(pair[0]) == NO_NAME
    assert isinstance(await pair[1].claim(D, NAME, "n2", NO_NAME), Claimed)


async def test_no_node_claims_a_name_that_another_one_has_made_something_under(
    pair: tuple[ClaimStore, ClaimStore],
) -> None:
    await make(pair[0], "n1", VOL)
    held = await entry(pair[1])
    assert (held.nodes, held.holds) == (["n1"], {})
    assert isinstance(await pair[1].claim(D, NAME, "n2", held), HeldBy)
    await delete(pair[1], "n1")
    assert isinstance(await pair[1].claim(D, NAME, "n2", NO_NAME), Claimed)


async def test_a_doubt_is_kept_whoever_else_holds_the_name_and_both_show(pair: tuple[ClaimStore, ClaimStore]) -> None:
    await pair[0].claim(D, NAME, "n1", NO_NAME)
    pair[1].hold_later(D, NAME, "n2")
    assert (await entry(pair[1])).nodes == ["n1", "n2"]
    await pair[1].close()
    assert (await entry(pair[0])).nodes == ["n1", "n2"]


async def test_a_hold_that_is_made_again_is_not_ended_by_the_end_of_the_one_before(one: ClaimStore) -> None:
    await one.claim(D, NAME, "n1", NO_NAME)
    one.free_later(D, NAME)
    claimed = await one.claim(D, NAME, "n2", NO_NAME)
    assert (claimed.entry.nodes, (await entry(one)).nodes) == (["n2"], ["n2"])


def test_the_late_end_of_a_hold_does_not_end_the_next_one() -> None:
    rows = MemoryRows()
    assert isinstance(Writer(rows, "a", 2).claim(D, NAME, "n1", NO_NAME), Claimed)
    Writer(rows, "a", 1).free(D, NAME)
    assert rows.name(D, NAME).nodes == ["n1"]
    Writer(rows, "a", 3).free(D, NAME)
    assert rows.name(D, NAME) == NO_NAME


async def test_a_hubs_own_later_writes_are_seen_by_it_at_once(one: ClaimStore) -> None:
    one.hold_later(D, NAME, "n1")
    assert (await entry(one)).nodes == ["n1"]
    one.free_later(D, NAME)
    assert await entry(one) == NO_NAME
    one.record_later(D, "n1", VOL, NAME)
    assert ((await entry(one)).nodes, (await id_entry(one)).made) == (["n1"], ["n1"])


# -------------------- ids --------------------


async def test_of_two_hubs_whose_nodes_made_one_id_alone_one_records_it_and_the_other_sees_that(
    pair: tuple[ClaimStore, ClaimStore],
) -> None:
    expected = {VOL: await id_entry(pair[0])}
    results = await asyncio.gather(
        pair[0].record(D, "n1", {VOL: Holding(NAME)}, expected, alone=True),
        pair[1].record(D, "n2", {VOL: Holding(NAME)}, expected, alone=True),
    )
    assert sorted(type(result).__name__ for result in results) == ["Claimed", "HeldBy"]
    made = (await id_entry(pair[0])).made
    assert [result.entry[VOL].made for result in results] == [made, made]
    assert len(made) == 1


async def test_an_id_that_another_node_is_known_to_have_made_does_not_keep_a_node_from_recording_it_again(
    pair: tuple[ClaimStore, ClaimStore],
) -> None:
    await make(pair[0], "n1", VOL)
    await make(pair[1], "n2", VOL)
    both = {VOL: await id_entry(pair[0])}
    assert isinstance(await pair[0].record(D, "n2", {VOL: Holding(NAME)}, both, alone=True), Claimed)


async def test_a_holding_that_has_changed_since_is_not_overwritten(pair: tuple[ClaimStore, ClaimStore]) -> None:
    await make(pair[0], "n1", VOL)
    old = {VOL: await id_entry(pair[1])}
    await delete(pair[0], "n1")
    result = await pair[1].record(D, "n1", {VOL: Holding(NAME)}, old)
    assert isinstance(result, HeldBy)
    assert result.entry[VOL].deleted == (await id_entry(pair[1])).deleted == ["n1"]


async def test_things_are_recorded_together_or_not_at_all(pair: tuple[ClaimStore, ClaimStore]) -> None:
    await make(pair[0], "n1", OTHER)
    result = await pair[1].record(D, "n1", {VOL: Holding("x"), OTHER: Holding("x")}, {VOL: NO_ID, OTHER: NO_ID})
    assert isinstance(result, HeldBy)
    assert await id_entry(pair[0]) == NO_ID


async def test_of_many_records_of_two_hubs_none_is_lost(pair: tuple[ClaimStore, ClaimStore]) -> None:
    async def record(number: int) -> None:
        store, node = pair[number % 2], f"n{number % 4}"
        while True:
            old = await id_entry(store)
            names = old.holders[node].name if node in old.holders else ""
            result = await store.record(D, node, {VOL: Holding(f"{names}{number:x}")}, {VOL: old})
            if isinstance(result, Claimed):
                return

    await asyncio.gather(*map(record, range(12)))
    found = (await id_entry(pair[0])).holders
    assert {node: "".join(sorted(holding.name)) for node, holding in found.items()} == {
        "n0": "048",
        "n1": "159",
        "n2": "26a",
        "n3": "37b",
    }


async def test_a_success_that_nobody_took_replaces_no_creation_that_is_recorded(one: ClaimStore) -> None:
    await make(one, "n1", VOL, name="CreateVolume first")
    one.record_later(D, "n1", VOL, "CreateVolume second")
    assert (await id_entry(one)).holders["n1"].name == "CreateVolume first"


async def test_deleted_ids_are_forgotten_after_an_hour_and_no_sooner_also_if_the_clock_was_set_back(
    one: ClaimStore,
) -> None:
    third, fourth = Thing(VOLUME, "vol-3"), Thing(VOLUME, "vol-4")
    await make(one, "n1", VOL, OTHER, third, fourth)
    await delete(one, "n1", VOL, at=90_000.0)
    await delete(one, "n1", OTHER, at=1_000.0)
    await delete(one, "n1", third, at=4_600.0)
    assert (await id_entry(one, OTHER)).deleted == ["n1"]
    await delete(one, "n1", fourth, at=4_601.0)
    assert ((await id_entry(one, OTHER)).holders, (await id_entry(one)).deleted) == ({}, ["n1"])
    await make(one, "n1", OTHER)


async def test_it_counts_the_names_that_each_node_holds_for_open_creates(pair: tuple[ClaimStore, ClaimStore]) -> None:
    first, second = pair
    await first.claim(D, "CreateVolume 1", "n1", NO_NAME)
    await second.claim(D, "CreateVolume 2", "n1", NO_NAME)
    await first.claim(D, "CreateVolume 3", "n2", NO_NAME)
    await first.claim("other.example", "CreateVolume 4", "n2", NO_NAME)
    assert (await second.look(D, "CreateVolume 5", ())).open == {"n1": 2, "n2": 1}
    await second.forget("n1")
    assert (await second.look(D, "CreateVolume 5", ())).open == {"n2": 1}
    first.free_later(D, "CreateVolume 3")
    assert (await first.look(D, "CreateVolume 5", ())).open == {}


async def test_it_tells_when_the_oldest_of_the_last_deletions_was(
    one: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (memory_rows, sqlite_rows):
        monkeypatch.setattr(module, "MOST_GONE", 2)
    await make(one, "n1", VOL, OTHER, third := Thing(VOLUME, "vol-3"))
    found = []
    for number, thing in enumerate((VOL, OTHER, third)):
        await delete(one, "n1", thing, at=1_000.0 + number)
        found.append((await one.look(D, "", [VOL])).gone_since)
    assert found == [0.0, 1_000.0, 1_001.0]
    assert (await one.look("other.example", "", [VOL])).gone_since == 0.0


# -------------------- lists --------------------


async def test_the_lists_of_one_node_are_bounded_together(
    pair: tuple[ClaimStore, ClaimStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud.placement.claim_rules.MOST_LISTED_BYTES", 10 * (LISTED_BYTES + 3))
    ten = [Thing(VOLUME, f"v-{number}") for number in range(10)]
    store = pair[0]
    for again in range(2):
        await store.listed(D, "n1", VOLUME, ten, began=float(again))
    with pytest.raises(ListsTooLarge):
        await store.listed("e.example", "n1", VOLUME, ten[:1], began=0.0)
    with pytest.raises(ListsTooLarge):
        await store.listed(
            D, "n1", VOLUME, [*ten[1:], *(Thing(VOLUME, f"w-{number}") for number in range(2))], began=0.0
        )
    await store.listed("e.example", "n2", VOLUME, ten, began=0.0)
    assert (await id_entry(pair[1], ten[0])).listed == ["n1"]
    await store.listed(D, "n1", VOLUME, [], began=0.0)
    await store.listed("e.example", "n1", VOLUME, ten[:1], began=0.0)


async def test_a_list_replaces_the_nodes_list_before_and_nothing_that_a_hub_saw(
    pair: tuple[ClaimStore, ClaimStore],
) -> None:
    made, listed, gone, snapshot = VOL, OTHER, Thing(VOLUME, "gone"), Thing(SNAPSHOT, "vol-2")
    await make(pair[0], "n1", made)
    await make(pair[0], "n1", gone)
    await pair[0].listed(D, "n1", VOLUME, [made, listed], began=500.0)
    await pair[0].listed(D, "n1", SNAPSHOT, [snapshot], began=500.0)
    await delete(pair[1], "n1", gone, at=1_000.0)
    assert (await id_entry(pair[1], listed)).listed == ["n1"]
    await pair[1].listed(D, "n1", VOLUME, [gone], began=900.0)
    found = (await pair[0].look(D, "", [made, listed, gone, snapshot])).ids
    assert [found[made].made, found[listed].listed, found[gone].deleted, found[snapshot].listed] == [
        ["n1"],
        [],
        ["n1"],
        ["n1"],
    ]
    await pair[1].listed(D, "n1", VOLUME, [gone], began=1_001.0)
    assert (await id_entry(pair[0], gone)).has("n1")


async def test_it_tells_the_nodes_that_have_things_and_those_that_have_listed(one: ClaimStore) -> None:
    await make(one, "n1", VOL)
    await one.listed(D, "n2", VOLUME, [], began=0.0)
    found = await one.look(D, "", ())
    assert (set(found.nodes), set(found.lists)) == ({"n1"}, {("n2", VOLUME)})
    assert (await one.look("other.example", "", ())).nodes == set()


# -------------------- everything of a node --------------------


@pytest.mark.parametrize("driver", ["", D])
async def test_what_is_forgotten_is_all_of_a_node_and_nothing_of_another(
    pair: tuple[ClaimStore, ClaimStore], driver: str
) -> None:
    await make(pair[0], "n1", VOL, name="CreateVolume made")
    await make(pair[0], "n2", VOL, name="CreateVolume kept")
    await pair[0].claim(D, NAME, "n1", NO_NAME)
    await pair[0].listed(D, "n1", VOLUME, [OTHER], began=0.0)
    assert await pair[1].knows("n1", D)
    assert not await pair[1].knows("n1", "other.example")
    await pair[1].forget("n1", "other.example")
    assert await pair[0].knows("n1")
    assert (await pair[0].look(D, "", ())).lists == {("n1", VOLUME)}
    await pair[1].forget("n1", driver)
    assert [await pair[0].knows(node, driver) for node in ("n1", "n2")] == [False, True]
    assert await entry(pair[0]) == await entry(pair[0], "CreateVolume made") == NO_NAME
    assert await pair[0].existing() == [(D, VOL, "n2")]
    assert (await pair[0].look(D, "", ())).lists == {("n1", FORGOTTEN)}
    await pair[0].forget("n1")
    assert (await pair[1].look(D, "", ())).lists == {("n1", FORGOTTEN)}
    await pair[0].forget("n1", is_given_up=True)
    assert (await pair[1].look(D, "", ())).lists == set()


async def test_a_node_that_lists_again_is_not_forgotten_with_its_things_any_more(one: ClaimStore) -> None:
    await make(one, "n1", VOL)
    await delete(one, "n2", OTHER)
    for node in ("n1", "n2"):
        await one.forget(node)
    assert (await one.look(D, "", ())).lists == {("n1", FORGOTTEN)}
    await one.listed(D, "n1", VOLUME, [], began=0.0)
    assert (await one.look(D, "", ())).lists == {("n1", VOLUME)}


async def test_what_exists_is_what_is_made_or_listed_and_not_deleted(one: ClaimStore) -> None:
    await make(one, "n1", VOL)
    await one.listed(D, "n2", VOLUME, [OTHER], began=0.0)
    assert set(await one.existing()) == {(D, VOL, "n1"), (D, OTHER, "n2")}
    await delete(one, "n1")
    assert await one.existing() == [(D, OTHER, "n2")]


async def test_a_hold_of_before_a_restart_can_be_ended(tmp_path: Path) -> None:
    for is_first in (True, False):
        store = SqliteClaims(tmp_path)
        if is_first:
            await make(store, "n1", VOL)
            await store.claim(D, "CreateVolume other", "n1", NO_NAME)
        else:
            store.free_later(D, "CreateVolume other")
        await store.close()
    store = SqliteClaims(tmp_path)
    assert await entry(store, "CreateVolume other") == NO_NAME
    await store.close()


@pytest.mark.parametrize("alone", [True, False])
async def test_an_entry_keeps_its_age_until_it_ends(tmp_path: Path, alone: bool) -> None:
    clock = [100.0]
    store = SqliteClaims(tmp_path, owner="a", alone=alone, now=lambda: clock[0])
    await store.claim(D, NAME, "n1", NO_NAME)
    await store.record(D, "n1", {VOL: Holding(NAME)}, {VOL: NO_ID})
    store.record_later(D, "n1", OTHER, NAME)
    clock[0] = 200.0
    await store.claim(D, NAME, "n1", await entry(store))
    store.hold_later(D, NAME, "n1")
    store.record_later(D, "n1", OTHER, NAME)
    await store.listed(D, "n1", VOLUME, [VOL, OTHER, Thing(VOLUME, "new")], began=200.0)
    for _ in range(2):
        seen = await store.ledger()
        assert [hold.since for _, _, hold in seen.holds] == [100.0]
        ages = {thing.id: holding.since for (_, thing, _), holding in seen.holdings}
        assert ages == {"vol-1": 100.0, "vol-2": 100.0, "new": 200.0}
        await store.close()
        store = SqliteClaims(tmp_path, owner="a", now=lambda: clock[0])
    await store.close()


async def test_a_thing_that_is_made_again_after_its_deletion_is_young() -> None:
    rows = MemoryRows()
    Writer(rows, "a", 1, now=100.0).record_made(D, "n1", VOL, NAME)
    rows.set_holding(D, VOL, "n1", Holding(NAME, gone=150.0, owner="a", epoch=2, since=100.0))
    Writer(rows, "a", 3, now=200.0).record_made(D, "n1", VOL, NAME)
    assert rows.id(D, VOL).holders["n1"].since == 200.0


async def test_the_ledger_is_read_in_parts_and_a_create_that_ends_meanwhile_is_not_missed() -> None:
    rows = MemoryRows()
    writer = Writer(rows, "a", 1)
    for number in range(2_500):
        writer.record_made(D, "n1", Thing(VOLUME, f"vol-{number}"), f"CreateVolume pvc-{number}")
    writer.claim(D, "CreateVolume new", "n1", NO_NAME)
    parts = rows.ledger()
    (_, name, hold), *_ = next(parts).holds
    writer.free(D, "CreateVolume new")
    writer.record_made(D, "n1", Thing(VOLUME, "new"), "CreateVolume new")
    rows.set_holding(D, Thing(VOLUME, "vol-7"), "n1", None)
    later = list(parts)
    assert (name, hold.node) == ("CreateVolume new", "n1")
    assert [len(part.holdings) for part in later] == [1_000, 1_000, 500]
    assert not any(part.holds for part in later)
