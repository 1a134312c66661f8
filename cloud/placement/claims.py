"""The claims: the books of all drivers, written through to the claim file (`claim_file`).

One process has the books, in one event loop. So a decision and the change that follows from it without an await between
are one step: no other call of this hub can come between, and the state directory's lock keeps other hubs out.

Rules:

* Memory gets each change at once. `write` waits for the disk, and `put` does not.
* A call that the hub places is in the records before it is sent, and its success before the caller gets it. So a name
  costs two writes, and one more when its thing is deleted. If the second one fails, the name stays open in the records.
* A create that the caller pins to a node waits for none. The records get it only if its outcome is in doubt, or if
  nobody took its answer. Until then only memory has it, and a killed hub forgets it. That is safe as long as the caller
  pins all creates of a name to one node.
* A claim that the file has as open is in doubt when the hub starts.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any

from cloud.placement.book import FORGOTTEN, GONE_S, MOST_LISTED_BYTES, Book, size_bytes
from cloud.placement.claim import Attempt, Claim, Id, Place, Row, State
from cloud.placement.claim_file import ClaimFile
from cloud.placement.ledger import Ledger, read
from cloud.placement.of_node import OfNode
from cloud.placement.recent import Recent
from cloud.placement.requests import LONGEST_CHARS, Thing, deletion_of
from common.database_writer import RETRY_S
from common.errors import NameElsewhere, NoPlace, PlacementNotKept

Untaken = dict[tuple[Thing, str], object]
"""Things of a pinned success. The mark of each tells this success from a later one with the same thing."""


class ListsTooLarge(Exception):
    """The lists of a node are too large together, and nothing has changed."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"the lists of this node have {size_bytes} bytes, and {MOST_LISTED_BYTES} is the limit")


class Claims:
    """The claims of this hub.

    Attributes:
        now: seconds since the epoch.
    """

    def __init__(self, state_dir: Path, *, retry_s: float = RETRY_S, now: Callable[[], float] = time.time) -> None:
        """Read the file.

        Raises:
            SettingsError: it cannot be used, or a newer hub wrote it.
        """
        self.now = now
        self._file = ClaimFile(state_dir, retry_s=retry_s)
        self.elections, self.elect, self.close = self._file.elections, self._file.elect, self._file.close
        self._books: dict[str, Book] = {}
        self._forgets = asyncio.Lock()
        self._recent = Recent(now())
        for driver, node, kind, id_, since in self._file.listed:
            if id_:
                self._own(driver).list(Thing(kind, id_), node, since)
            else:
                self._own(driver).lists.add((node, kind))
        for (driver, name), row in self._file.claims:
            self._load(self._own(driver), name, row)
        self._file.listed, self._file.claims = [], []

    # ---- questions ---------------------------------------------------------------------------------------------------

    def book(self, driver: str) -> Book:
        """A driver's book. Change it by the methods of this class."""
        return self._books.get(driver) or Book()

    def knows(self, node: str, driver: str = "") -> bool:
        """Whether there is anything of a node, or of one driver there."""
        return any(book.concerns(node) for its, book in self._books.items() if driver in ("", its))

    def existing(self) -> list[Place]:
        """Every thing that exists, and its nodes."""
        places = [
            (driver, thing, node)
            for driver, book in self._books.items()
            for things in (book.ids, book.listed)
            for thing, nodes in things.items()
            for node in nodes
            if book.has(thing, node)
        ]
        return list(dict.fromkeys(places))

    async def ledger(self) -> Ledger:
        """All that this hub knows, read within some turns of the loop."""
        return await read(self._books, self._recent)

    # ---- names -------------------------------------------------------------------------------------------------------

    def begin(
        self, driver: str, name: str, node: str, *, lease_s: int = 0, machine: str = "", over: Collection[str] = ()
    ) -> Attempt:
        """Begin a call under a name.

        Args:
            driver: the driver.
            name: the name.
            node: the node.
            lease_s: as of the `Claim`.
            machine: as of the `Claim`.
            over: nodes that surely run no call any more.

        Raises:
            NameElsewhere: a call of the name is open at another node.
        """
        book = self._own(driver)
        claim = book.claims.get(name)
        if claim is not None and claim.is_open and claim.node != node and claim.node not in over:
            raise NameElsewhere(driver, name, claim.node, node)
        return book.begin(name, node, self.now(), lease_s=lease_s, machine=machine)

    async def claim(self, driver: str, attempt: Attempt) -> None:
        """Let the records show that the call is open, before it is sent.

        Raises:
            PlacementNotKept: they do not show it.
            NoPlace: the name is no longer the node's.
        """
        claim = attempt.claim
        claim.is_kept = True
        if not claim.is_confirmed:
            await self._write(driver, [claim])
            if self.book(driver).claims.get(claim.name) is not claim:
                why = f"edge node {claim.node} was forgotten, or another one took over, while the call waited; retry it"
                raise NoPlace(driver, claim.name, why)
            claim.is_confirmed = True

    def end(self, driver: str, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """Count the end of a call (`Book.end`). The records learn of a new doubt, or that the name is free."""
        book, claim = self._own(driver), attempt.claim
        was_kept, is_ours = claim.is_kept, book.claims.get(claim.name) is claim
        book.end(attempt, in_doubt=in_doubt)
        if is_ours and claim.in_doubt and not claim.is_confirmed:
            claim.is_kept = True
            self._put(driver, claim)
        elif is_ours and was_kept and not claim.is_kept:
            self._put(driver, claim)

    def free(self, driver: str, names: Iterable[str]) -> None:
        """Free names whose outcome does not matter any more. One with calls under way stays."""
        book = self._own(driver)
        for claim in [book.claims[name] for name in names if name in book.claims]:
            if not claim.running:
                claim.certain = claim.sent
                book.index(claim)
                self._put(driver, claim)

    # ---- things ------------------------------------------------------------------------------------------------------

    def made(self, driver: str, attempt: Attempt, node: str, things: Collection[Thing]) -> Coroutine[Any, Any, None]:
        """End a call that has made things, and record these at once. The rest waits for the disk.

        Raises:
            PlacementNotKept: the records lack them, and have the name as open.
        """
        book, claim, touched = self._own(driver), attempt.claim, list[Claim]()
        for thing in things:
            old = book.ids.get(thing, {}).get(node)
            since = old.since if old is not None and not old.gone else book.listed.get(thing, {}).get(node, self.now())
            touched += book.put(claim.name, thing, node, Id(claim.name, since))
        if things:
            book.end(attempt, in_doubt=False)
        else:
            self.end(driver, attempt, in_doubt=True)
        for it in touched:
            book.index(it)
        return self._after_made(driver, claim, self._write(driver, touched))

    async def _after_made(self, driver: str, claim: Claim, writing: Coroutine[Any, Any, None]) -> None:
        try:
            await writing
        except PlacementNotKept:
            present = self.book(driver).claims.get(claim.name)
            if present not in (None, claim):  # the node was forgotten meanwhile, and with it the open row
                self._put(driver, present)
            raise

    def note_new(self, driver: str, node: str, things: Iterable[Thing]) -> None:
        """Note things that were made now, and that the book does not keep, for the leak audit."""
        self._recent.add([(driver, thing, node) for thing in things], self.now())

    def keep(self, driver: str, node: str, name: str, things: Iterable[Thing]) -> Untaken:
        """Keep things in memory that a node has made under a name, until `release`."""
        book, untaken = self._own(driver), Untaken()
        for thing in things:
            mark = untaken[thing, node] = object()
            if node not in book.made(thing):
                for claim in book.put(name, thing, node, Id(name, self.now(), untaken=mark)):
                    book.index(claim)
                    self._put(driver, claim)
        return untaken

    def release(self, driver: str, untaken: Untaken, *, is_taken: bool) -> None:
        """Drop things whose answer the caller has taken, as the caller knows their node; record those of another one.

        Things that were deleted or forgotten meanwhile stay away.
        """
        book = self._own(driver)
        for (thing, node), mark in untaken.items():
            its = book.ids.get(thing, {}).get(node)
            if its is None or its.untaken is not mark:
                continue
            claim, its.untaken = book.claims[its.name], None
            if is_taken:
                book.drop(thing, node)
                self.note_new(driver, node, (thing,))
            book.index(claim)
            self._put(driver, claim)

    def deleted(self, driver: str, node: str, things: Iterable[Thing], *, settles: bool) -> Coroutine[Any, Any, None]:
        """Record at once that a node has deleted things. The rest waits for the disk.

        An operator's deletion `settles` a conflict: an id that other nodes have as well, and this node according to its
        list only, or not even to its list, is theirs alone from now on.

        An id that the node was not known to have leaves nothing if it is long, or if the driver had `MOST_GONE`
        deletions within the last hour: callers can invent any number of those.

        Raises:
            PlacementNotKept: the records have the things still.
        """
        book, now, touched, unlisted = self._own(driver), self.now(), list[Claim](), list[tuple[Thing, str]]()
        for thing in things:
            its, is_listed = book.ids.get(thing, {}).get(node), node in book.listed.get(thing, ())
            if its is None and not is_listed and (len(thing.id) > LONGEST_CHARS or book.gone_since > now - GONE_S):
                continue
            is_by_lists = its is None and (is_listed or (node, thing.kind) in book.lists)
            if book.unlist(thing, node):
                unlisted.append((thing, node))
            if settles and is_by_lists and any(book.has(thing, other) for other in book.nodes if other != node):
                continue
            name, since = (its.name, its.since) if its is not None else (deletion_of(thing), now)
            touched += book.put(name, thing, node, Id(name, since, gone=now))
        touched += book.purge(now - GONE_S)
        for claim in touched:
            book.index(claim)
        return self._write(driver, touched, listed=unlisted)

    async def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        """Replace a node's list of one kind. An id that was deleted since `began` stays deleted.

        Raises:
            ListsTooLarge: see `MOST_LISTED_BYTES`.
            PlacementNotKept: the list of before stays.
        """
        await self._file.to_the_end(self._listed(driver, node, kind, things, began))

    async def _listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], began: float) -> None:
        book, now = self._own(driver), self.now()
        before = {thing: book.listed[thing][node] for thing in book.listed_by(node) if thing.kind == kind}
        told = {thing for thing in things if book.may_list(thing, node, began)}
        new, old = told - before.keys(), before.keys() - told
        held = size_bytes(thing for its in self._books.values() for thing in its.listed_by(node))
        size = held - size_bytes(old) + size_bytes(new)
        if size > MOST_LISTED_BYTES:
            raise ListsTooLarge(size)
        touched = [claim for thing in new for claim in book.revive(thing, node, now)]
        for claim in touched:
            book.index(claim)
        new = {thing for thing in new if book.list(thing, node, now)}
        for thing in old:
            book.unlist(thing, node)
        marks = book.lists ^ (book.lists - {(node, FORGOTTEN)} | {(node, kind)})
        book.lists ^= marks
        try:
            await self._write(driver, touched, listed=[(thing, node) for thing in new | old], marks=marks)
        except PlacementNotKept:
            for thing in new:
                book.unlist(thing, node)
            for thing in old:
                book.list(thing, node, before[thing])
            book.lists ^= marks
            for claim in touched:
                self._put(driver, claim)
            raise

    # ---- everything of a node ----------------------------------------------------------------------------------------

    async def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> None:
        """Remove everything of a node, or of one driver there. What comes meanwhile stays.

        If it had things, the hub notes that (`FORGOTTEN`), unless they are given up: then it drops such a note.

        Raises:
            PlacementNotKept: nothing is removed.
        """
        await self._file.to_the_end(self._forget(node, driver, is_given_up=is_given_up))

    async def _forget(self, node: str, driver: str, *, is_given_up: bool) -> None:
        async with self._forgets:
            books = [(its, book) for its, book in self._books.items() if driver in ("", its)]
            found = [OfNode(its, book, node, is_given_up=is_given_up) for its, book in books]
            end = self._file.forget(node, ((it.driver, it.book, it.names, it.is_left) for it in found))
            for it in found:
                it.drop_lists()
            try:
                await end
            except PlacementNotKept:
                for it in found:
                    it.restore_lists()
                raise
            for it in found:
                it.drop()
                for name in it.names:  # others may have written them before memory forgot
                    self._file.put(it.driver, it.book, name)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _own(self, driver: str) -> Book:
        return self._books.setdefault(driver, Book())

    def _write(
        self,
        driver: str,
        claims: Collection[Claim],
        *,
        listed: Collection[tuple[Thing, str]] = (),
        marks: Collection[tuple[str, str]] = (),
    ) -> Coroutine[Any, Any, None]:
        """Write now. Returns the wait for the disk."""
        names = {claim.name for claim in claims}
        if not (names or listed or marks):
            return _no_wait()
        for claim in claims:
            claim.writes += 1
        return _after_write(claims, self._file.write(driver, self._own(driver), names, listed=listed, marks=marks))

    def _put(self, driver: str, claim: Claim) -> None:
        if claim.row() is not None or claim.has_row or claim.writes:
            self._file.put(driver, self._own(driver), claim.name)

    def _load(self, book: Book, name: str, row: Row) -> None:
        claim = book.claims.setdefault(name, Claim(name, row.node, row.since, row.lease_s, row.machine, has_row=True))
        for kind, id_, node, since, gone in row.ids:
            thing, its = Thing(kind, id_), Id(name, since, gone)
            other = book.ids.get(thing, {}).get(node)  # if two rows have it, the removal of the older one has failed
            if other is None or (gone or math.inf) >= (other.gone or math.inf):
                for changed in book.put(name, thing, node, its):
                    book.index(changed)
        if row.state == State.OPEN:
            claim.doubt()
            claim.is_kept = claim.is_confirmed = True
        book.index(claim)


async def _after_write(claims: Collection[Claim], end: asyncio.Future[None]) -> None:
    has_row = True  # also if the caller leaves: the write goes on
    try:
        await end
    except PlacementNotKept:
        has_row = False
        raise
    finally:
        for claim in claims:
            claim.writes -= 1
            claim.has_row = claim.has_row or has_row


async def _no_wait() -> None:
    """Nothing is written."""
