"""The SQLite claim store that is alone on its file: its memory is what its file has, whatever overlaps."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import example, given
from hypothesis import strategies as st

from cloud.placement.claim_store import Holding
from cloud.placement.requests import VOLUME, Thing
from cloud.placement.sqlite_claims import SqliteClaims
from common.errors import PlacementNotKept
from tests.kit.examples import examples
from tests.kit.placed_nodes import Disk, at_once
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from cloud.placement.claim_store import Standing

D = "d.example"
NAMES = ("a", "b")
THINGS = (Thing(VOLUME, "v"), Thing(VOLUME, "w"))
NODES = ("n1", "n2")

NODE, NAME, THING = st.sampled_from(NODES), st.sampled_from(NAMES), st.sampled_from(THINGS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), NAME, NODE),
        st.tuples(st.just("hold_later"), NAME, NODE),
        st.tuples(st.just("free_later"), NAME),
        st.tuples(st.just("make"), NODE, THING, NAME),
        st.tuples(st.just("delete"), NODE, THING),
        st.tuples(st.just("record_later"), NODE, THING, NAME),
        st.tuples(st.just("listed"), NODE, st.lists(THING, max_size=2)),
        st.tuples(st.just("forget"), NODE),
        st.tuples(st.sampled_from(["settle", "written", "leave", "full", "empty"])),
    ),
    max_size=25,
)


class Overlap:
    """Changes of one store that overlap."""

    def __init__(self, directory: Path) -> None:
        self.store = SqliteClaims(directory, retry_s=60.0)
        self.disk = Disk(directory)
        self.tasks: list[asyncio.Task[Any]] = []

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def claim(self, name: str, node: str) -> None:
        self.begin(self._claim(name, node))

    async def _claim(self, name: str, node: str) -> None:
        entry = (await self.store.look(D, name, ())).name
        try:
            await self.store.claim(D, name, node, entry)
        except asyncio.CancelledError:
            self.store.free_later(D, name)
            raise

    def hold_later(self, name: str, node: str) -> None:
        self.store.hold_later(D, name, node)

    def free_later(self, name: str) -> None:
        self.store.free_later(D, name)

    def make(self, node: str, thing: Thing, name: str) -> None:
        self.begin(self._record(node, thing, Holding(name)))

    def delete(self, node: str, thing: Thing) -> None:
        self.begin(self._record(node, thing, Holding("", 1.0)))

    async def _record(self, node: str, thing: Thing, holding: Holding) -> None:
        ids = (await self.store.look(D, "", [thing])).ids
        await self.store.record(D, node, {thing: holding}, ids)

    def record_later(self, node: str, thing: Thing, name: str) -> None:
        self.store.record_later(D, node, thing, name)

    def listed(self, node: str, things: list[Thing]) -> None:
        self.begin(self.store.listed(D, node, VOLUME, things, began=2.0))

    def forget(self, node: str) -> None:
        self.begin(self.store.forget(node))

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


def known(store: SqliteClaims) -> tuple[list[Standing], set[Any]]:
    """All that a store knows."""
    found = [at_once(store.look(D, name, THINGS)) for name in NAMES]
    return found, set(at_once(store.existing()))


@examples(150)
@given(STEPS)
@example(
    [
        ("make", "n1", THINGS[0], "a"),
        ("written",),
        ("delete", "n1", THINGS[0]),
        ("settle",),
        ("record_later", "n1", THINGS[0], "a"),
    ]
)
@example([("delete", "n1", THINGS[0]), ("settle",), ("record_later", "n1", THINGS[0], "a")])
@example([("forget", "n1"), ("settle",), ("record_later", "n1", THINGS[0], "a"), ("hold_later", "b", "n1")])
@example([("claim", "a", "n1"), ("settle",), ("hold_later", "a", "n1")])
@example([("forget", "n1"), ("record_later", "n1", THINGS[0], "a")])
@example([("forget", "n1"), ("settle",), ("claim", "a", "n2"), ("hold_later", "a", "n2")])
@example(
    [("hold_later", "a", "n1"), ("hold_later", "a", "n1"), ("forget", "n1"), ("leave",), ("hold_later", "a", "n1")]
)
@example(
    [
        ("forget", "n1"),
        ("settle",),
        ("claim", "a", "n1"),
        ("free_later", "a"),
        ("settle",),
        ("free_later", "a"),
        ("claim", "a", "n1"),
    ]
)
def test_the_memory_of_a_store_that_is_alone_is_what_its_file_has(steps: list[tuple[Any, ...]]) -> None:
    async def run(directory: Path) -> None:
        overlap = Overlap(directory)
        for what, *values in steps:
            done = getattr(overlap, what)(*values)
            if done is not None:
                await done
        overlap.disk.empty()
        errors = await asyncio.gather(*overlap.tasks, return_exceptions=True)
        assert {type(error) for error in errors} <= {type(None), PlacementNotKept, asyncio.CancelledError}
        await settle()
        await overlap.store.close()
        later = SqliteClaims(directory)
        assert known(overlap.store) == known(later)
        await later.close()

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        asyncio.run(run(Path(directory)))
