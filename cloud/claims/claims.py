"""The claims: the books of all drivers, written through to the records.

kind       key                    body
claim      driver, name           as of `claim`
claim      driver, `Node n1`      state (`Mark`), node
election   driver                 node, epoch, since, why (`Elected`)

One process has the books, in one event loop. So a decision and the change that follows from it without an await between
are one step: no other call of this hub can come between, and the records keep other hubs out.

Rules:

* Memory gets each change at once. `_write` returns its write, for callers that wait; `_put` is retried.
* A failed write may have written the first few of its records. Each write orders them so that this is safe, and a
  comment says why where that is not plain.
* A call that the hub places is in the records before it is sent, and its final answer before the caller gets it. So a
  name costs two writes, and one more when its thing is deleted. If the second one fails, the name stays open in the
  records, and the caller asks again.
* A create that the caller pins to a node waits for none. The records get it only if its outcome is in doubt, or if
  nobody took its answer. Until then only memory has it, and a killed hub forgets it. That is safe as long as the caller
  pins all creates of a name to one node.
* A claim that the records have as open is in doubt when the hub starts.
* Lists are in no record: an id that only a list tells is found again once its node has listed again. Until then the
  node's mark says that it had some.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from cloud.claims.book import GONE_S, MOST_LISTED_BYTES, Book, listed_bytes
from cloud.claims.claim import Attempt, Claim, Id, Mark, Place, read_claim, text_in
from cloud.claims.election import Elected
from cloud.claims.ledger import Ledger, read
from cloud.claims.recent import Recent
from cloud.claims.requests import LONGEST_CHARS, about, deletion_of
from cloud.claims.rules import Thing
from cloud.records.records import Body, Change, Key, RecordKind, Records
from common.errors import CallError, name_elsewhere, no_place
from common.store.database_writer import WriteFailed

_NODE: Final = "Node "  # Begins the name of a mark. A claim's name begins with a method.


class Claims:
    """The claims of this hub."""

    def __init__(
        self,
        records: Records,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """All of placement goes by these two clocks. Raises SettingsError: a record cannot be read."""
        self.now, self.monotonic, self._records = now, monotonic, records
        # the last election of each driver, as it is known to be in the records.
        self.elections = dict(records.take(RecordKind.ELECTION, _read_election))
        self._books: defaultdict[str, Book] = defaultdict(Book)
        # By driver and node: the names that `forget` changed in memory, and whose old rows the records may still have.
        self._outdated_rows: dict[tuple[str, str], set[str]] = {}
        self._recent = Recent(now())
        found = records.take(RecordKind.CLAIM, _read)
        for key, _, it in found:
            if isinstance(it, Claim):
                self._load(self._books[key[0]], it)
            else:
                self._books[key[0]].mark(*it)
        # Rewrite a row whose thing stands in a newer row, else the thing comes back when the newer row is deleted.
        for key, body, _ in found:
            if (present := self._record(key)).body != body:
                records.put(present)
        records.watch(RecordKind.CLAIM, self._record, self._adopt)
        records.watch(RecordKind.ELECTION, lambda key: _election_record(key[0], self.elections.get(key[0])))

    # ---- questions ---------------------------------------------------------------------------------------------------

    def book(self, driver: str) -> Book:
        """A driver's book. Change it by the methods of this class."""
        return self._books.get(driver) or Book()

    def knows(self, node: str, driver: str = "") -> bool:
        return any(
            book.concerns(node) or (its, node) in self._outdated_rows
            for its, book in self._books.items()
            if driver in ("", its)
        )

    def existing(self) -> list[Place]:
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
        return await read(self._books, self._recent)

    # ---- elections ---------------------------------------------------------------------------------------------------

    async def elect(self, driver: str, new: Elected) -> None:
        """Record an election. Raises CallError if that fails."""
        await _written(self._records.write([_election_record(driver, new)]))
        self.elections[driver] = new

    # ---- names -------------------------------------------------------------------------------------------------------

    def begin(
        self,
        driver: str,
        name: str,
        node: str,
        *,
        lease_s: int = 0,
        machine: str = "",
        stopped_nodes: Collection[str] = (),
    ) -> Attempt:
        """Begin a call under a name. The nodes in `stopped_nodes` surely run no call of the name any more.

        Raises:
            CallError: a call of the name is open at another node.
        """
        book = self._books[driver]
        claim = book.claims.get(name)
        if claim is not None and claim.is_open and claim.node != node and claim.node not in stopped_nodes:
            raise name_elsewhere(driver, name, claim.node, node)
        return book.begin(name, node, self.now(), lease_s=lease_s, machine=machine)

    def claim(self, driver: str, attempt: Attempt) -> "asyncio.Future[None] | None":
        """Let the records show that the call is open. Returns the write, for `confirm`; None: they do."""
        claim = attempt.claim
        claim.is_kept = True
        return None if claim.is_confirmed else self._write(driver, [claim])

    def confirm(self, driver: str, attempt: Attempt, write: "asyncio.Future[None]") -> None:
        """Note that the write of a claim has ended. The call may be sent then.

        Raises:
            CallError: the records do not show that the call is open, or the name is no longer the node's.
        """
        claim = attempt.claim
        if write.exception() is not None:
            self.check(write)
        if self.book(driver).claims.get(claim.name) is not claim:
            why = f"edge node {claim.node} was forgotten, or another one took over, while the call waited; retry it"
            raise no_place(driver, claim.name, why)
        claim.is_confirmed = True

    def end_attempt(self, driver: str, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """Count the end of a call (`Book.end_attempt`). The records learn of a new doubt, or that the name is free."""
        book, claim = self._books[driver], attempt.claim
        was_kept, is_ours = claim.is_kept, book.claims.get(claim.name) is claim
        book.end_attempt(attempt, in_doubt=in_doubt)
        if is_ours and claim.in_doubt and not claim.is_confirmed:
            claim.is_kept = True
            self._put(driver, claim)
        elif is_ours and was_kept and not claim.is_kept:
            self._put(driver, claim)

    def free(self, driver: str, names: Iterable[str]) -> None:
        """Free names whose outcome does not matter any more. One with calls under way stays."""
        book = self._books[driver]
        for claim in [book.claims[name] for name in names if name in book.claims]:
            if not claim.running:
                claim.certain = claim.sent
                book.index(claim)
                self._put(driver, claim)

    def write_names(self, driver: str, names: Iterable[str]) -> "asyncio.Future[None]":
        """Write some names as memory has them now. Returns the write, for `check`."""
        return self._records.write([self._record((driver, name)) for name in names])

    def check(self, write: "asyncio.Future[None]", driver: str = "", claim: Claim | None = None) -> None:
        """Check a write that has ended. With a claim, it may be that of `record_made`.

        Raises:
            CallError: it has failed. The records have the claim as open, and things as they were.
        """
        error = write.exception()
        if error is None:
            return
        if claim is not None and (present := self.book(driver).claims.get(claim.name)) not in (None, claim):
            self._put(driver, present)  # the node was forgotten meanwhile: overwrite the open row
        if isinstance(error, WriteFailed):
            raise _not_kept(error) from error
        raise error

    # ---- things ------------------------------------------------------------------------------------------------------

    def record_made(
        self, driver: str, attempt: Attempt, node: str, things: Collection[Thing]
    ) -> "asyncio.Future[None]":
        """End a call that has made things, and record these. Returns the write, for `check`."""
        book, claim, touched = self._books[driver], attempt.claim, list[Claim]()
        for thing in things:
            old = book.ids.get(thing, {}).get(node)
            since = old.since if old is not None and not old.gone else book.listed.get(thing, {}).get(node, self.now())
            touched += book.put(claim.name, thing, node, Id(claim.name, since))
        if things:
            book.end_attempt(attempt, in_doubt=False)
        else:
            self.end_attempt(driver, attempt, in_doubt=True)
        for it in touched:
            book.index(it)
        if len(touched) > 1:
            # Those that have lost a thing come first: until the last write, the name is open at the node.
            touched.sort(key=lambda it: it.name == claim.name)
        return self._write(driver, touched)

    def note_new(self, driver: str, node: str, method: str, answer: bytes) -> None:
        """Note a create's answer that names things which the book does not keep, for the leak audit."""
        self._recent.add(driver, node, method, answer, self.now())

    def record_untaken(self, driver: str, attempt: Attempt, node: str, things: Collection[Thing]) -> None:
        """End a call whose success nobody has taken, and record its things soon.

        If there are none, or if they may have been deleted since the call began, the call is in doubt.
        """
        book, claim, touched = self._books[driver], attempt.claim, list[Claim]()
        known = [its for thing in things if (its := book.ids.get(thing, {}).get(node)) is not None]
        is_gone = book.deletions != attempt.deletions or any(its.gone > claim.since for its in known)
        if not things or is_gone or book.claims.get(claim.name) is not claim:
            self.end_attempt(driver, attempt, in_doubt=True)
            return
        for thing in things:
            if node not in book.makers(thing):
                touched += book.put(claim.name, thing, node, Id(claim.name, self.now()))
        self.end_attempt(driver, attempt, in_doubt=False)
        for it in touched:
            book.index(it)
            self._put(driver, it)

    def record_deleted(
        self, driver: str, node: str, things: Iterable[Thing], *, settles: bool
    ) -> "asyncio.Future[None]":
        """Record that a node has deleted things. Returns the write, for `check`.

        `settles` is set for an operator's deletion. If other nodes have the id too, and this node has sent a list, and
        has the id by that list at most, only the list entry goes. No deletion is recorded, so the id is the other
        nodes' alone.

        An id that the node was not known to have is not recorded if it is too long, or if the driver had `MOST_GONE`
        deletions within the last hour: callers can invent any number of ids.
        """
        book, now, touched, is_unlisted = self._books[driver], self.now(), list[Claim](), False
        for thing in things:
            its, is_listed = book.ids.get(thing, {}).get(node), node in book.listed.get(thing, ())
            if its is None and not is_listed and (len(thing.id) > LONGEST_CHARS or book.gone_since > now - GONE_S):
                continue
            is_by_lists = its is None and (is_listed or (node, thing.kind) in book.lists)
            is_unlisted |= book.unlist(thing, node)
            if settles and is_by_lists and any(book.has(thing, other) for other in book.nodes if other != node):
                continue
            name, since = (its.name, its.since) if its is not None else (deletion_of(thing), now)
            touched += book.put(name, thing, node, Id(name, since, gone=now))
        for claim in [*touched, *(purged := book.purge(now - GONE_S))]:
            book.index(claim)
        for claim in purged:
            self._put(driver, claim)
        if is_unlisted and book.mark_lists(node):
            self._put_mark(driver, node)
        # in any order: a thing that the records still have is still placed at this node
        return self._write(driver, touched)

    async def record_list(
        self, driver: str, node: str, kind: str, things: Collection[Thing], *, began: float, at: float
    ) -> None:
        """Replace a node's list of one kind. An id that was deleted since `began` stays deleted.

        A list with ids that no claim has counts once the records have the node's mark: else a hub that ends could
        forget that the node had things.

        `at` is the same moment on the monotonic clock (`Book.lists`).

        Raises:
            CallError: the lists of the node are too large together (`MOST_LISTED_BYTES`), or the mark cannot be
                written. The list does not count.
        """
        book = self._books[driver]
        if book.marks.get(node) is Mark.LISTED or not any(book.may_list(thing, node, began) for thing in things):
            self._take_list(driver, node, kind, things, began=began, at=at)
            return
        try:
            await _written(self._records.write([_mark_record(driver, node, Mark.LISTED)]))
            self._take_list(driver, node, kind, things, began=began, at=at)
        finally:  # a claim may have the ids by now, and the write may go on without its caller
            self._put_mark(driver, node)

    def _take_list(
        self, driver: str, node: str, kind: str, things: Collection[Thing], *, began: float, at: float
    ) -> None:
        book, now = self._books[driver], self.now()
        before = {thing for thing in book.listed_by(node) if thing.kind == kind}
        told = {thing for thing in things if book.may_list(thing, node, began)}
        new, old = told - before, before - told
        held = listed_bytes(thing for its in self._books.values() for thing in its.listed_by(node))
        size = held - listed_bytes(old) + listed_bytes(new)
        if size > MOST_LISTED_BYTES:
            raise CallError(f"the lists of this node have {size} bytes, and {MOST_LISTED_BYTES} is the limit")
        revived = [claim for thing in new for claim in book.revive(thing, node, now)]
        for thing in new:
            book.list(thing, node, now)
        for thing in old:
            book.unlist(thing, node)
        book.lists[node, kind] = at
        for claim in revived:  # `put`: the next list tells it again
            book.index(claim)
            self._put(driver, claim)
        if book.mark_lists(node):
            self._put_mark(driver, node)

    # ---- everything of a node ----------------------------------------------------------------------------------------

    def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> Coroutine[Any, Any, None]:
        """Forget everything of a node, or of one driver there.

        Memory forgets when this is called; the coroutine waits for the records.

        If it had things, the hub notes that (`Mark.FORGOTTEN`), unless they are given up: then it drops such a note.

        Raises:
            CallError: the records still have some of it. They lose it as soon as they can be written, or with
                the next such order.
        """
        noted, rows, dropped = list[Change](), list[Change](), list[Change]()
        names: dict[str, set[str]] = {}
        for its, book in self._books.items():
            if driver not in ("", its):
                continue
            claims, had = book.forget(node)
            mark = Mark.FORGOTTEN if had and not is_given_up else None
            book.mark(node, mark)
            # Also if it is empty: the hub knows the node until the records have the change (`knows`).
            outdated = self._outdated_rows.setdefault((its, node), set())
            names[its] = {claim.name for claim in claims} | outdated
            rows += [self._record((its, name)) for name in names[its]]
            (dropped if mark is None else noted).append(_mark_record(its, node, mark))
        # The mark is set first and dropped last: while it stands, no call is told that the node's things do not exist.
        write = self._records.write([*noted, *rows, *dropped])
        write.add_done_callback(partial(self._forgot, node, names))
        return _written(write)

    def _forgot(self, node: str, names: Mapping[str, set[str]], write: "asyncio.Future[None]") -> None:
        is_written = not write.cancelled() and write.exception() is None
        for driver, its in names.items():
            left = self._outdated_rows.pop((driver, node), set())
            left = left - its if is_written else left | its
            if left or not is_written:
                self._outdated_rows[driver, node] = left
            if not is_written:
                self._put_mark(driver, node)
                for name in its:
                    self._put_name(driver, name)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _record(self, key: Key) -> Change:
        driver, name = key
        if name.startswith(_NODE):
            node = name.removeprefix(_NODE)
            return _mark_record(driver, node, self.book(driver).marks.get(node))
        claim = self.book(driver).claims.get(name)
        return Change(RecordKind.CLAIM, key, claim.body() if claim is not None else None)

    def _write(self, driver: str, claims: Collection[Claim]) -> "asyncio.Future[None]":
        present, changes = self._books[driver].claims, dict[str, Change]()
        for claim in claims:
            claim.has_row = True
            if (name := claim.name) not in changes:
                body = present[name].body() if name in present else None
                changes[name] = Change(RecordKind.CLAIM, (driver, name), body)
        return self._records.write(changes.values())

    def _put(self, driver: str, claim: Claim) -> None:
        if claim.body() is not None or claim.has_row:
            self._put_name(driver, claim.name)

    def _put_name(self, driver: str, name: str) -> None:
        if (claim := self.book(driver).claims.get(name)) is not None:
            claim.has_row = True
        self._records.put(self._record((driver, name)))

    def _put_mark(self, driver: str, node: str) -> None:
        self._records.put(_mark_record(driver, node, self.book(driver).marks.get(node)))

    def _adopt(self, key: Key, body: Body) -> bool:
        # An earlier hub wrote this row after this hub had read the records. Returns False if another node's claim has
        # the name.
        driver, name = key
        _, _, late = _read(key, body)
        if not isinstance(late, Claim):
            return True
        claim = self.book(driver).claims.get(name)
        is_call = late.is_open and not late.ids
        # An open create of local storage is kept: its node may still carry it out. An open create of shared storage (it
        # alone has a machine), and an open call that is no create (it alone is about a thing), are dropped: a second
        # node does no harm there. Kept, it could stay open for ever, as a caller that has its answer does not retry.
        if claim is None and is_call and (late.machine or about(name) is not None):
            self._records.put(Change(RecordKind.CLAIM, key, None))
        elif claim is None:
            self._load(self._books[driver], late)
        return claim is None or claim.node == late.node

    def _load(self, book: Book, claim: Claim) -> None:
        ids, claim.ids = claim.ids, {}
        book.claims[claim.name] = claim
        for (thing, node), its in ids.items():
            other = book.ids.get(thing, {}).get(node)  # if two rows have it, the removal of the older one has failed
            if other is None or (its.gone or math.inf) >= (other.gone or math.inf):
                for changed in book.put(claim.name, thing, node, its):
                    book.index(changed)
        book.index(claim)


def _read(key: Key, body: Body) -> tuple[Key, Body, Claim | tuple[str, Mark]]:
    _, name = key
    return key, body, (text_in(body["node"]), Mark(body["state"])) if name.startswith(_NODE) else read_claim(name, body)


def _read_election(key: Key, body: Body) -> tuple[str, Elected]:
    (driver,) = key
    return driver, Elected(text_in(body["node"]), int(body["epoch"]), float(body["since"]), text_in(body["why"]))


def _election_record(driver: str, elected: Elected | None) -> Change:
    return Change(RecordKind.ELECTION, (driver,), asdict(elected) if elected is not None else None)


def _mark_record(driver: str, node: str, mark: Mark | None) -> Change:
    return Change(RecordKind.CLAIM, (driver, _NODE + node), {"state": mark, "node": node} if mark is not None else None)


async def _written(write: "asyncio.Future[None]") -> None:
    try:
        await asyncio.shield(write)
    except WriteFailed as error:
        raise _not_kept(error) from error


def _not_kept(error: WriteFailed) -> CallError:
    return CallError(
        f"the hub cannot record which edge node this is on ({error.place}: {error.why}); make room on the disk or "
        f"repair it, and a retry continues"
    )
