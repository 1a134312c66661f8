"""The claims of a hub: memory and file have the same, whatever overlaps; and what lists, deletions and orders leave."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloud.claims.book import LISTED_BYTES, Book
from cloud.claims.claim import Mark
from cloud.claims.claims import Claims
from cloud.claims.ledger import OpenName
from cloud.claims.rules import SNAPSHOT, VOLUME, Thing
from cloud.records.records import Body, Change, RecordKind
from cloud.records.sqlite import SqliteRecords
from common.errors import CallError, SettingsError
from common.store.database_writer import WriteFailed
from tests.kit.examples import examples
from tests.kit.memory_records import MemoryRecords
from tests.kit.placed_nodes import Disk, claimed, kept, record
from tests.kit.waiting import settle

D = "d.example"
NAME = "CreateVolume pvc-1"
VOL, OTHER = Thing(VOLUME, "vol-1"), Thing(VOLUME, "vol-2")
NODES = ("n1", "n2")
MANY = 1_000_000
CLOSED = WeakSet[Claims]()
REFUSALS = "may have carried out|does not know which edge node|cannot record which edge node"

NODE, NAMES, THING = st.sampled_from(NODES), st.sampled_from(("a", "b")), st.sampled_from((VOL, OTHER))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, NODE, THING, st.sampled_from(["made", "nothing", "doubt", "final"])),
        st.tuples(st.just("pin"), NAMES, NODE, THING, st.sampled_from(["taken", "untaken", "doubt", "final"])),
        st.tuples(st.just("delete"), NODE, THING),
        st.tuples(st.just("record"), NODE, THING, NAMES),
        st.tuples(st.just("listed"), NODE, st.lists(THING, max_size=2)),
        st.tuples(st.just("forget"), NODE),
        st.tuples(st.sampled_from(["settle", "written", "leave", "full", "empty", "whole"])),
        st.tuples(st.just("cut"), st.integers(0, 2)),
    ),
    max_size=25,
)


class Cut:
    """Records of which a write may leave the first few (`Records`)."""

    def __init__(self, records: SqliteRecords) -> None:
        self.most = MANY  # how many, if a write has more
        self.take, self.put, self.watch = records.take, records.put, records.watch
        self.close, self._whole = records.close, records.write

    def write(self, changes: Iterable[Change]) -> asyncio.Future[None]:
        changes = list(changes)
        end = self._whole(changes[: self.most])
        return end if len(changes) <= self.most else asyncio.ensure_future(self._fail(end))

    async def _fail(self, end: asyncio.Future[None]) -> None:
        await end
        raise WriteFailed(Path("state.db"), "cut")


def opened(directory: Path, **how: Any) -> Claims:
    return Claims(SqliteRecords(directory), **how)


async def close(claims: Claims) -> None:
    """The hub ends."""
    if claims in CLOSED:
        return
    CLOSED.add(claims)
    await claims._records.close()


class Overlap:
    """Changes of one hub's claims that overlap."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.records = Cut(SqliteRecords(directory, retry_s=60.0))
        self.claims = Claims(self.records, now=self.clock)
        self.disk = Disk(directory)
        self.tasks: list[asyncio.Task[Any]] = []

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def create(self, name: str, node: str, thing: Thing, how: str) -> None:
        if set(self.claims.book(D).holders(name)) <= {node}:
            self.begin(self._create(name, node, thing, how))

    async def _create(self, name: str, node: str, thing: Thing, how: str) -> None:
        if not set(self.claims.book(D).holders(name)) <= {node}:
            return
        attempt = self.claims.begin(D, name, node)
        try:
            await claimed(self.claims, D, attempt)
        except BaseException:
            self.claims.end_attempt(D, attempt, in_doubt=None)
            raise
        attempt.send()
        if how in ("made", "nothing"):
            made = self.claims.record_made(D, attempt, node, [thing] if how == "made" else [])
            await kept(self.claims, made, attempt.claim)
        else:
            self.claims.end_attempt(D, attempt, in_doubt=how == "doubt")

    def pin(self, name: str, node: str, thing: Thing, how: str) -> None:
        if not set(self.claims.book(D).holders(name)) <= {node}:
            return
        attempt = self.claims.begin(D, name, node)
        attempt.send()
        if how == "untaken":
            self.claims.record_unacknowledged(D, attempt, node, [thing])
        else:
            self.claims.end_attempt(D, attempt, in_doubt=how == "doubt")

    def delete(self, node: str, thing: Thing) -> None:
        self.begin(kept(self.claims, self.claims.record_deleted(D, node, [thing], is_pinned_by_hand=False)))

    def record(self, node: str, thing: Thing, name: str) -> None:
        if set(self.claims.book(D).holders(name)) <= {node}:
            record(self.claims, D, node, thing, name)

    def listed(self, node: str, things: list[Thing]) -> None:
        self.begin(self.claims.record_list(D, node, VOLUME, things, began=self.now - 3.0, at=0.0))

    def forget(self, node: str) -> None:
        self.begin(self.claims.forget(node))

    async def settle(self) -> None:
        await settle()

    async def written(self) -> None:
        """Until all that began is written."""
        for task in self.tasks:
            if not task.done():
                await asyncio.wait([task])

    async def leave(self) -> None:
        """The last caller goes."""
        await settle()
        if self.tasks:
            self.tasks[-1].cancel()

    async def full(self) -> None:
        self.disk.fill()

    async def empty(self) -> None:
        self.disk.empty()

    def cut(self, most: int) -> None:
        """From now on a write of more records leaves only so many of them."""
        self.records.most = most

    def whole(self) -> None:
        self.records.most = MANY


def known(book: Book) -> tuple[dict[str, Body | None], dict[str, Mark]]:
    """All that a book and the records of it have."""
    bodies = {name: claim.body() for name, claim in book.claims.items()}
    for body in bodies.values():
        if body is not None:
            body["ids"] = sorted(body.get("ids", ()), key=str)
    return bodies, book.marks


def holders(book: Book) -> set[tuple[str, str]]:
    return {(name, node) for name, it in book.claims.items() for node in it.made_at.union([it.node] * it.is_open)}


@examples(200)
@given(STEPS)
@example(
    [("create", "a", "n1", VOL, "made"), ("written",), ("delete", "n1", VOL), ("settle",), ("record", "n1", VOL, "a")]
)
@example([("delete", "n1", VOL), ("settle",), ("record", "n1", VOL, "a")])
@example([("forget", "n1"), ("settle",), ("record", "n1", VOL, "a"), ("pin", "b", "n1", VOL, "doubt")])
@example([("create", "a", "n1", VOL, "doubt"), ("settle",), ("pin", "a", "n1", VOL, "doubt")])
@example([("create", "a", "n1", VOL, "doubt"), ("written",), ("forget", "n1"), ("pin", "a", "n1", VOL, "doubt")])
@example([("create", "a", "n1", VOL, "made"), ("create", "a", "n1", VOL, "made"), ("leave",)])
@example([("pin", "a", "n1", VOL, "doubt"), ("full",), ("create", "a", "n1", VOL, "final"), ("written",), ("empty",)])
@example([("create", "a", "n1", VOL, "made"), ("settle",), ("forget", "n1"), ("create", "a", "n2", VOL, "final")])
@example([("listed", "n1", []), ("forget", "n1"), ("leave",)])
@example([("create", "a", "n1", VOL, "made"), ("listed", "n1", [VOL])])
@example([("create", "a", "n1", VOL, "made"), ("listed", "n1", [VOL]), ("cut", 0)])
@example([("record", "n1", VOL, "a"), ("record", "n1", OTHER, "b"), ("cut", 2), ("forget", "n1"), ("written",)])
@example([("forget", "n1"), ("record", "n1", VOL, "b"), ("cut", 0), ("forget", "n1"), ("record", "n1", VOL, "a")])
@example([("record", "n1", VOL, "a"), ("cut", 1), ("create", "b", "n1", VOL, "made"), ("written",)])
@example([("delete", "n1", VOL), ("settle",), ("pin", "a", "n1", VOL, "untaken")])
@example([("record", "n1", VOL, "a"), ("pin", "a", "n1", OTHER, "doubt"), ("record", "n1", VOL, "a")])
@example(
    [
        ("record", "n1", VOL, "b"),
        ("create", "b", "n1", VOL, "nothing"),
        ("delete", "n1", VOL),
        ("record", "n2", VOL, "b"),
        ("full",),
        ("written",),
    ]
)
def test_memory_is_what_the_records_have_and_after_a_failed_write_they_hold_each_name_that_memory_holds(
    steps: list[tuple[Any, ...]],
) -> None:
    async def run(directory: Path) -> None:
        overlap = Overlap(directory)
        for what, *values in steps:
            done = getattr(overlap, what)(*values)
            if done is not None:
                await done
        overlap.disk.empty()
        overlap.whole()
        errors = await asyncio.gather(*overlap.tasks, return_exceptions=True)
        refusals = [str(error) for error in errors if isinstance(error, CallError)]
        assert all(re.search(REFUSALS, text) for text in refusals)
        others = {type(error) for error in errors if not isinstance(error, CallError)}
        assert others <= {type(None), asyncio.CancelledError}
        await settle()
        await close(overlap.claims)
        later = opened(directory)
        if not any("cannot record" in text for text in refusals) and not any(
            what in ("full", "cut") for what, *_ in steps
        ):
            assert known(overlap.claims.book(D)) == known(later.book(D))
            assert overlap.claims.book(D).open_counts == later.book(D).open_counts
        assert holders(overlap.claims.book(D)) <= holders(later.book(D))
        assert overlap.claims.book(D).marks == later.book(D).marks
        await close(later)

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        asyncio.run(run(Path(directory)))


# -------------------- one at a time --------------------


@pytest.fixture
async def claims(tmp_path: Path) -> AsyncIterator[Claims]:
    made = opened(tmp_path, now=lambda: 100.0)
    yield made
    await close(made)


async def make(claims: Claims, node: str, *things: Thing, name: str = NAME) -> None:
    """A create has made things."""
    await claims.record_made(D, claims.begin(D, name, node), node, things)


async def doubt(claims: Claims, node: str) -> None:
    """A create has been sent, and has no answer."""
    await claimed(claims, D, attempt := claims.begin(D, NAME, node))
    attempt.send()
    claims.end_attempt(D, attempt, in_doubt=True)


async def delete(claims: Claims, node: str, thing: Thing = VOL, *, at: float = 100.0) -> None:
    claims.now = lambda: at
    await claims.record_deleted(D, node, [thing], is_pinned_by_hand=False)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (NAME, {"state": "made", "ids": [{"kind": "volume", "id": 7, "node": "n1", "since": 0.0}]}),
        (NAME, {"state": "made", "ids": [{"kind": "volume"}]}),
        (NAME, {"state": "unheard of"}),
        ("Node n1", {"state": "made", "node": "n1"}),
    ],
)
async def test_a_claim_that_cannot_be_read_stops_the_hub(tmp_path: Path, name: str, body: dict[str, Any]) -> None:
    records = SqliteRecords(tmp_path)
    await records.write([Change(RecordKind.CLAIM, (D, name), body)])
    await records.close()
    records = SqliteRecords(tmp_path)
    with pytest.raises(SettingsError, match="is damaged"):
        Claims(records)
    await records.close()


async def test_the_records_of_an_earlier_hub_are_read_and_written_with_the_same_keys() -> None:
    made = {"kind": "volume", "id": "vol-1", "node": "n1", "since": 1.0}
    deleted = {"kind": "snapshot", "id": "snap-1", "node": "n2", "since": 2.0, "gone": 3.0}
    bodies: dict[str, Body] = {
        NAME: {"state": "made", "ids": [made]},
        "DeleteSnapshot snap-1": {"state": "deleted", "ids": [deleted]},
        "CreateVolume pvc-2": {"state": "open", "node": "n1", "since": 4.0, "lease_s": 60, "machine": "m"},
    }
    records = MemoryRecords()
    await records.write([Change(RecordKind.CLAIM, (D, name), body) for name, body in bodies.items()])
    await records.write([Change(RecordKind.CLAIM, (D, "Node n3"), {"state": "forgotten", "node": "n3"})])
    await records.write([Change(RecordKind.ELECTION, (D,), {"node": "n1", "epoch": 9, "since": 5.0, "why": "first"})])
    claims = Claims(records)
    book = claims.book(D)
    assert (book.makers(VOL), book.deleted(Thing(SNAPSHOT, "snap-1")), book.open_counts) == (["n1"], ["n2"], {"n1": 1})
    assert (book.marks, claims.elections[D].epoch) == ({"n3": Mark.FORGOTTEN}, 9)
    before = dict(records.kept)
    await claims.write_names(D, [*bodies, "Node n3"])
    await claims.elect(D, claims.elections[D])
    assert records.kept == before


async def test_a_success_that_a_full_disk_did_not_take_leaves_no_doubt_once_another_call_has_recorded_it(
    claims: Claims, tmp_path: Path
) -> None:
    first, second, disk = claims.begin(D, NAME, "n1"), claims.begin(D, NAME, "n1"), Disk(tmp_path)
    for attempt in (first, second):
        await claimed(claims, D, attempt)
        attempt.send()
    disk.fill()
    with pytest.raises(CallError, match="cannot record which edge node"):
        await kept(claims, claims.record_made(D, first, "n1", [VOL]), first.claim)
    disk.empty()
    await claims.record_made(D, second, "n1", [VOL])
    await close(claims)
    later = opened(tmp_path)
    for each in (claims, later):
        assert (holders(each.book(D)), each.book(D).open_counts) == ({(NAME, "n1")}, {})
    await close(later)


async def test_a_thing_that_was_made_again_is_not_deleted_by_an_older_row_that_a_full_disk_has_kept(
    claims: Claims, tmp_path: Path
) -> None:
    await delete(claims, "n1", VOL)  # a create of an earlier hub made it
    attempt, disk = claims.begin(D, NAME, "n1"), Disk(tmp_path)
    await claimed(claims, D, attempt)
    disk.fill()
    with pytest.raises(CallError, match="cannot record which edge node"):
        await kept(claims, claims.record_made(D, attempt, "n1", [VOL]), attempt.claim)
    disk.empty()
    await make(claims, "n1", VOL)
    await close(claims)
    later = opened(tmp_path)
    assert holders(later.book(D)) == {(NAME, "n1")}
    assert (later.book(D).makers(VOL), later.book(D).claims.keys()) == (["n1"], {NAME})
    await close(later)


async def test_a_thing_that_two_records_have_is_gone_from_both_once_it_is_deleted() -> None:
    records = MemoryRecords()
    for name in ("CreateVolume old", NAME):  # the newer one was written, and the older one not yet
        ids = [{"kind": VOLUME, "id": VOL.id, "node": "n1", "since": 1.0}]
        await records.write([Change(RecordKind.CLAIM, (D, name), {"state": "made", "ids": ids})])
    claims = Claims(records, now=lambda: 100.0)
    await delete(claims, "n1")
    await delete(claims, "n1", OTHER, at=4_000.0)  # the first one is more than an hour old
    assert holders(Claims(records).book(D)) == set()


async def test_no_call_is_sent_that_waited_while_its_node_was_forgotten_or_another_one_took_over(
    claims: Claims, tmp_path: Path
) -> None:
    await doubt(claims, "n1")
    with Disk(tmp_path).slow():
        waiting = asyncio.create_task(claimed(claims, D, claims.begin(D, "CreateVolume new", "n1")))
        over = claims.begin(D, "CreateVolume other", "n1")
        taking_over = asyncio.create_task(claimed(claims, D, over))
        await settle()
        claims.begin(D, "CreateVolume other", "n2", stopped_nodes={"n1"})
        forgetting = asyncio.create_task(claims.forget("n1"))
        await settle()
    await forgetting
    for each in (waiting, taking_over):
        with pytest.raises(CallError, match="edge node n1 was forgotten, or another one took over"):
            await each
    assert holders(claims.book(D)) == {("CreateVolume other", "n2")}


async def test_a_pinned_retry_that_is_sent_while_its_node_is_forgotten_keeps_the_name_there(
    claims: Claims, tmp_path: Path
) -> None:
    await doubt(claims, "n1")
    with Disk(tmp_path).slow():
        forgetting = asyncio.create_task(claims.forget("n1"))
        await settle()
        attempt = claims.begin(D, NAME, "n1")
        attempt.send()
    await forgetting
    claims.end_attempt(D, attempt, in_doubt=True)
    await close(claims)
    later = opened(tmp_path)
    assert holders(claims.book(D)) == holders(later.book(D)) == {(NAME, "n1")}
    await close(later)


async def test_no_second_call_of_a_name_begins_at_another_node_unless_the_first_one_surely_runs_no_more(
    claims: Claims,
) -> None:
    first = claims.begin(D, NAME, "n1")
    with pytest.raises(CallError, match="may have carried out"):
        claims.begin(D, NAME, "n2")
    claims.begin(D, NAME, "n1")
    claims.begin(D, NAME, "n2", stopped_nodes={"n1"})
    first.send()
    claims.end_attempt(D, first, in_doubt=True)
    assert (claims.book(D).holders(NAME), claims.book(D).open_counts) == (["n2"], {"n2": 1})


async def test_a_success_that_nobody_took_replaces_no_creation_that_is_recorded(claims: Claims) -> None:
    await make(claims, "n1", VOL, name="CreateVolume first")
    record(claims, D, "n1", VOL, "CreateVolume second")
    assert claims.book(D).holders("CreateVolume first") == ["n1"]
    assert claims.book(D).holders("CreateVolume second") == []


async def test_deleted_ids_are_forgotten_after_an_hour_and_no_sooner_also_if_the_clock_was_set_back(
    claims: Claims,
) -> None:
    third, fourth, book = Thing(VOLUME, "vol-3"), Thing(VOLUME, "vol-4"), claims.book
    await make(claims, "n1", VOL, OTHER, third, fourth)
    await delete(claims, "n1", VOL, at=90_000.0)
    await delete(claims, "n1", OTHER, at=1_000.0)
    await delete(claims, "n1", third, at=4_600.0)
    assert book(D).deleted(OTHER) == ["n1"]
    await delete(claims, "n1", fourth, at=4_601.0)
    assert (book(D).knows(OTHER), book(D).deleted(VOL)) == (False, ["n1"])
    await make(claims, "n1", OTHER)


async def test_it_tells_when_the_oldest_of_the_last_deletions_was(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud.claims.book.MOST_DELETED", 2)
    await make(claims, "n1", VOL, OTHER, third := Thing(VOLUME, "vol-3"))
    found = []
    for number, thing in enumerate((VOL, OTHER, third)):
        await delete(claims, "n1", thing, at=1_000.0 + number)
        found.append(claims.book(D).oldest_counted_deletion)
    assert found == [0.0, 1_000.0, 1_001.0]


async def test_the_lists_of_one_node_are_bounded_together(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.claims.claims.MOST_LISTED_BYTES", 10 * (LISTED_BYTES + 3))
    ten = [Thing(VOLUME, f"v-{number}") for number in range(10)]
    for again in range(2):
        await claims.record_list(D, "n1", VOLUME, ten, began=float(again), at=0.0)
    with pytest.raises(CallError, match="the lists of this node have"):
        await claims.record_list("e.example", "n1", VOLUME, ten[:1], began=0.0, at=0.0)
    with pytest.raises(CallError, match="the lists of this node have"):
        await claims.record_list(
            D, "n1", VOLUME, [*ten[1:], Thing(VOLUME, "w-0"), Thing(VOLUME, "w-1")], began=0.0, at=0.0
        )
    await claims.record_list("e.example", "n2", VOLUME, ten, began=0.0, at=0.0)
    assert claims.book(D).has(ten[0], "n1")
    await claims.record_list(D, "n1", VOLUME, [], began=0.0, at=0.0)
    await claims.record_list("e.example", "n1", VOLUME, ten[:1], began=0.0, at=0.0)


async def test_a_list_replaces_the_nodes_list_before_and_nothing_that_the_hub_saw(claims: Claims) -> None:
    gone, snapshot = Thing(VOLUME, "gone"), Thing(SNAPSHOT, "vol-2")
    await make(claims, "n1", VOL)
    await make(claims, "n1", gone, name="CreateVolume gone")
    await claims.record_list(D, "n1", VOLUME, [VOL, OTHER], began=500.0, at=0.0)
    await claims.record_list(D, "n1", SNAPSHOT, [snapshot], began=500.0, at=0.0)
    await delete(claims, "n1", gone, at=1_000.0)
    book = claims.book(D)
    assert book.listed.keys() == {OTHER, snapshot}
    await claims.record_list(D, "n1", VOLUME, [gone], began=900.0, at=0.0)
    assert (book.listed.keys(), book.makers(VOL), book.deleted(gone)) == ({snapshot}, ["n1"], ["n1"])
    await claims.record_list(D, "n1", VOLUME, [gone], began=1_001.0, at=0.0)
    assert book.makers(gone) == ["n1"]  # under its name
    await delete(claims, "n1", OTHER, at=1_002.0)
    await claims.record_list(D, "n1", VOLUME, [gone, OTHER], began=1_003.0, at=0.0)
    assert (book.makers(OTHER), book.has(OTHER, "n1")) == ([], True)  # nobody saw its creation


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_list_gives_a_deleted_thing_its_name_back_unless_another_node_has_it_by_now(
    claims: Claims, tmp_path: Path, *, is_full: bool
) -> None:
    for name in (NAME, "CreateVolume other"):
        await make(claims, "n1", VOL if name == NAME else OTHER, name=name)
    for thing in (VOL, OTHER):
        await delete(claims, "n1", thing)
    await make(claims, "n2", Thing(VOLUME, "new"), name="CreateVolume other")
    disk = Disk(tmp_path)
    if is_full:
        disk.fill()
        with pytest.raises(CallError, match="cannot record which edge node"):
            await claims.record_list(D, "n1", VOLUME, [VOL, OTHER], began=101.0, at=0.0)
        assert (claims.book(D).lists, claims.book(D).has(OTHER, "n1")) == ({}, False)
        disk.empty()
    listing = asyncio.create_task(claims.record_list(D, "n1", VOLUME, [VOL, OTHER], began=101.0, at=0.0))
    await asyncio.sleep(0)
    assert not claims.book(D).has(OTHER, "n1")  # before the records have the mark
    await listing
    await close(claims)
    later = opened(tmp_path)
    for each in (claims, later):
        assert holders(each.book(D)) == {(NAME, "n1"), ("CreateVolume other", "n2")}
    assert (claims.book(D).has(OTHER, "n1"), later.book(D).marks) == (True, {"n1": Mark.LISTED})
    await close(later)


@pytest.mark.parametrize("driver", ["", D])
async def test_what_is_forgotten_is_all_of_a_node_and_nothing_of_another(claims: Claims, driver: str) -> None:
    book = claims.book
    await make(claims, "n1", VOL, name="CreateVolume made")
    await make(claims, "n2", VOL, name="CreateVolume kept")
    await claimed(claims, D, claims.begin(D, NAME, "n1"))
    await claims.record_list(D, "n1", VOLUME, [OTHER], began=0.0, at=0.0)
    assert claims.knows("n1", D)
    assert not claims.knows("n1", "other.example")
    await claims.forget("n1", "other.example")
    assert (claims.knows("n1"), book(D).lists, book(D).marks) == (True, {("n1", VOLUME): 0.0}, {"n1": Mark.LISTED})
    await claims.forget("n1", driver)
    assert [claims.knows(node, driver) for node in NODES] == [False, True]
    assert holders(book(D)) == {("CreateVolume kept", "n2")}
    assert (claims.existing(), book(D).open_counts) == ([(D, VOL, "n2")], {})
    await claims.forget("n1")
    assert (book(D).lists, book(D).marks) == ({}, {"n1": Mark.FORGOTTEN})
    await claims.forget("n1", is_given_up=True)
    assert book(D).marks == {}


async def test_a_node_that_lists_again_is_not_forgotten_with_its_things_any_more(claims: Claims) -> None:
    await make(claims, "n1", VOL)
    await delete(claims, "n2", OTHER)
    for node in NODES:
        await claims.forget(node)
    assert claims.book(D).marks == {"n1": Mark.FORGOTTEN}
    await claims.record_list(D, "n1", VOLUME, [], began=0.0, at=0.0)
    assert (claims.book(D).lists, claims.book(D).marks) == ({("n1", VOLUME): 0.0}, {})


async def test_a_node_whose_list_told_of_unknown_things_before_the_hubs_restart_had_things_until_its_lists_have_none(
    claims: Claims, tmp_path: Path
) -> None:
    for node in NODES:
        await claims.record_list(D, node, VOLUME, [VOL, OTHER], began=0.0, at=0.0)
    await delete(claims, "n1")
    await delete(claims, "n1", OTHER)
    await close(claims)
    later = opened(tmp_path)
    assert later.book(D).marks == {"n1": Mark.LISTED, "n2": Mark.LISTED}  # n1 may have snapshots
    await later.record_list(D, "n1", VOLUME, [], began=0.0, at=0.0)
    await later.record_list(D, "n1", SNAPSHOT, [], began=0.0, at=0.0)
    for node in NODES:
        await later.forget(node)
    assert later.book(D).marks == {"n2": Mark.FORGOTTEN}
    await close(later)


async def test_an_entry_keeps_its_age_until_it_ends(tmp_path: Path) -> None:
    clock = [100.0]
    claims = opened(tmp_path, now=lambda: clock[0])
    await make(claims, "n1", VOL)
    record(claims, D, "n1", OTHER, NAME)
    attempt = claims.begin(D, NAME, "n1")
    await claimed(claims, D, attempt)
    clock[0] = 200.0
    record(claims, D, "n1", OTHER, NAME)
    attempt.send()
    claims.end_attempt(D, attempt, in_doubt=True)
    await claimed(claims, D, again := claims.begin(D, NAME, "n1"))
    claims.end_attempt(D, again, in_doubt=None)
    await claims.record_list(D, "n1", VOLUME, [VOL, OTHER, Thing(VOLUME, "new")], began=200.0, at=0.0)
    for _ in range(2):
        seen = await claims.ledger()
        assert seen.open == [OpenName(D, NAME, "n1", 100.0, in_doubt=True)]
        ages = {thing.id: it.since for (_, thing, _), it in seen.ids}
        assert (ages.pop("new", 200.0), ages) == (200.0, {"vol-1": 100.0, "vol-2": 100.0})
        await close(claims)
        claims = opened(tmp_path, now=lambda: clock[0])
    await delete(claims, "n1", at=210.0)
    claims.now = lambda: 220.0
    await make(claims, "n1", VOL)
    assert claims.book(D).ids[VOL]["n1"].since == 220.0  # made again after its deletion
    await close(claims)


async def test_the_ledger_is_read_in_parts_and_a_create_that_ends_meanwhile_is_not_missed(claims: Claims) -> None:
    for number in range(2_500):
        record(claims, D, "n1", Thing(VOLUME, f"vol-{number}"), f"CreateVolume pvc-{number}")
    attempt = claims.begin(D, "CreateVolume new", "n1")
    reading = asyncio.create_task(claims.ledger())
    await asyncio.sleep(0)
    ending = claims.record_made(D, attempt, "n1", [Thing(VOLUME, "new")])
    await asyncio.sleep(0)
    assert not reading.done()
    ledger = await reading
    assert [it.name for it in ledger.open] == ["CreateVolume new"]
    assert len(ledger.ids) >= 2_500
    await ending


async def test_a_claim_that_an_earlier_hub_has_written_late_keeps_its_name_from_other_nodes() -> None:
    records, adopt = MemoryRecords(), dict[RecordKind, Any]()
    records.watch = lambda kind, _now, its=None: adopt.update({kind: its})  # type: ignore[method-assign]  # the test is the records
    claims = Claims(records)
    late = Change(RecordKind.CLAIM, (D, NAME), {"state": "open", "node": "n1", "since": 1.0})
    attempt = claims.begin(D, NAME, "n2")
    assert not adopt[RecordKind.CLAIM](late.key, late.body)  # this hub's own call is not over
    claims.end_attempt(D, attempt, in_doubt=False)
    assert adopt[RecordKind.CLAIM](late.key, late.body)
    with pytest.raises(CallError, match="n1"):
        claims.begin(D, NAME, "n2")


@pytest.mark.parametrize(("name", "machine"), [("DeleteVolume vol-1", ""), (NAME, "machine of n1")])
async def test_a_late_claim_goes_if_its_call_does_no_harm_at_a_second_node(name: str, machine: str) -> None:
    """If it has succeeded since, nobody asks again, and it would stay open."""
    records, adopt, put = MemoryRecords(), dict[RecordKind, Any](), list[Change]()
    records.watch = lambda kind, _now, its=None: adopt.update({kind: its})  # type: ignore[method-assign]  # the test is the records
    claims = Claims(records)
    records.put = put.append  # type: ignore[method-assign]  # as above
    body = {"state": "open", "node": "n1", "since": 1.0, "machine": machine}
    late = Change(RecordKind.CLAIM, (D, name), body)
    assert adopt[RecordKind.CLAIM](late.key, late.body)
    assert put == [late._replace(body=None)]
    claims.begin(D, name, "n2")
