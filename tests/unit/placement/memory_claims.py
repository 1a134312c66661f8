"""A claim store in memory, for several hubs, whose scheduler lets the others run at every await."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, TypeVar

from cloud.placement.claim_rules import Writer
from cloud.placement.claim_store import USUAL, Claimed, HeldBy, Hold, Ledger
from cloud.placement.memory_rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cloud.election import Elected
    from cloud.placement.claim_store import Holding, IdEntry, NameEntry, Place, Standing, Terms
    from cloud.placement.requests import Thing


T = TypeVar("T")


class Shelf:
    """What several stores share.

    Attributes:
        rows: the rows.
        turns: how many turns of the loop each await takes, in a circle.
    """

    def __init__(self, turns: Iterable[int] = (1, 2)) -> None:
        self.rows = MemoryRows()
        self.turns = itertools.cycle(turns)
        self.epochs = itertools.count(1)

    async def turn(self) -> None:
        """Let the others run."""
        for _ in range(next(self.turns)):
            await asyncio.sleep(0)


class MemoryClaims:
    """One hub's store on a shelf (`cloud.placement.claim_store.ClaimStore`)."""

    def __init__(self, shelf: Shelf, owner: str) -> None:
        self.owner = owner
        self._shelf = shelf
        self._later: dict[object, tuple[str, Callable[[], None]]] = {}
        """By key: the name that it holds, if any, and the write."""
        self._writing: asyncio.Task[None] | None = None
        self._is_dead = False

    def lost(self) -> tuple[str, ...]:
        return ()

    async def trust(self) -> tuple[str, ...]:
        return ()

    async def look(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        await self._turn()
        found = self._shelf.rows.standing(driver, name, things)
        found = found._replace(nodes=set(found.nodes), lists=set(found.lists), open=dict(found.open))
        await self._shelf.turn()
        return found

    def glance(self, driver: str, name: str, things: Iterable[Thing]) -> None:
        """It always waits."""

    async def claim(
        self, driver: str, name: str, node: str, expected: NameEntry, terms: Terms = USUAL
    ) -> Claimed[NameEntry] | HeldBy[NameEntry]:
        return await self._change(lambda writer: writer.claim(driver, name, node, expected, terms))

    async def record(
        self,
        driver: str,
        node: str,
        new: Mapping[Thing, Holding | None],
        expected: Mapping[Thing, IdEntry],
        *,
        alone: bool = False,
    ) -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
        recording = self._change(lambda writer: writer.record(driver, node, new, expected, alone=alone))
        return await asyncio.shield(asyncio.ensure_future(recording))

    async def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        await self._change(lambda writer: writer.listed(driver, node, kind, things, began=began))

    async def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> None:
        await self._change(lambda writer: writer.forget(node, driver, is_given_up=is_given_up))

    async def knows(self, node: str, driver: str = "") -> bool:
        await self._turn()
        return self._shelf.rows.knows(node, driver)

    async def existing(self) -> list[Place]:
        await self._turn()
        return self._shelf.rows.existing()

    async def ledger(self) -> Ledger:
        await self._turn()
        parts = list(self._shelf.rows.ledger())
        return Ledger([it for part in parts for it in part.holdings], [it for part in parts for it in part.holds])

    def hold_later(self, driver: str, name: str, node: str) -> None:
        write = self._writer()
        hold = Hold(node, write.epoch)
        self._put((driver, name), name, lambda: write.rows.set_hold(driver, name, self.owner, hold))

    def free_later(self, driver: str, name: str) -> None:
        write = self._writer()
        self._put((driver, name), "", lambda: write.free(driver, name))

    def record_later(self, driver: str, node: str, thing: Thing, name: str) -> None:
        write = self._writer()
        self._put((driver, thing, node), name, lambda: write.record_made(driver, node, thing, name))

    async def elections(self) -> Mapping[str, Elected]:
        await self._turn()
        return self._shelf.rows.elections()

    async def elect(self, driver: str, new: Elected, expected: Elected | None) -> Elected:
        return await self._change(lambda writer: writer.elect(driver, new, expected))

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        self._write()

    def crash(self) -> set[str]:
        """The hub dies. Returns the names of the writes of the group `…_later` that waited and are lost."""
        self._is_dead = True
        later, self._later = self._later, {}
        return {name for name, _ in later.values()}

    async def _change(self, work: Callable[[Writer], T]) -> T:
        await self._turn()
        result = work(self._writer())
        await self._shelf.turn()
        return result

    def _writer(self) -> Writer:
        return Writer(self._shelf.rows, self.owner, next(self._shelf.epochs))

    async def _turn(self) -> None:
        await self._shelf.turn()
        if self._is_dead:
            raise asyncio.CancelledError
        self._write()

    def _put(self, key: object, name: str, write: Callable[[], None]) -> None:
        if not self._is_dead:
            self._later.pop(key, None)
            self._later[key] = name, write
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write_soon())

    async def _write_soon(self) -> None:
        await self._shelf.turn()
        self._writing = None
        self._write()

    def _write(self) -> None:
        later, self._later = self._later, {}
        for _, write in later.values():
            write()
