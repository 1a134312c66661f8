"""The claims: the books of all drivers, written through to the records.

The records hold these rows:

kind       key                    body
claim      driver, name           see `cloud.claims.claim`
claim      driver, `Node n1`      state (`Mark`), node
election   driver                 node, epoch, since, why (`Elected`)

One process holds the books, in one event loop. So a decision and its change are one step if no await lies between. The
records keep other hubs out.

Rules:

* Memory changes at once. `_write` returns the write, so a caller can wait for it. `_put` returns nothing, and the
  records retry it.
* A failed write may have written the first few of its rows. Each write is ordered so that any prefix of it is safe.
* When the hub places a call, it records the call before a node gets it, and the final answer before the caller gets it.
  So a name costs two writes, and one more when its thing is deleted. If the write of the answer fails, the name stays
  open in the records, and the caller asks again.
* A create that the caller pins to a node waits for no write. The records get it only if its outcome is in doubt, or if
  nobody took its answer. Until then only memory has it, and a killed hub forgets it. That is safe as long as the caller
  pins all creates of a name to one node.
* A claim that the records have as open is in doubt when the hub starts.
* No record holds a list. After a restart, an id that only a list named is unknown until its node lists again; the
  node's mark says that it had such ids.
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
from cloud.records.records import CLUSTER, Body, Change, Key, RecordKind, Records
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
        """All modules of `placement` use these two clocks. Raises SettingsError if a record cannot be read."""
        self.now = now
        self.monotonic = monotonic
        self._records = records
        # the last election of each driver, as it is known to be in the records.
        self.elections = dict(records.take(RecordKind.ELECTION, _read_election))
        self._books: defaultdict[str, Book] = defaultdict(Book)
        # By driver and node: the names that `forget` changed in memory, and whose old rows the records may still have.
        self._outdated_rows: dict[tuple[str, str], set[str]] = {}
        self._recent = Recent(now())
        rows = records.take(RecordKind.CLAIM, _read)
        for key, _, content in rows:
            if isinstance(content, Claim):
                self._load(self._books[key[0]], content)
            else:
                self._books[key[0]].mark(*content)
        # Rewrite a row whose thing stands in a newer row, else the thing comes back when the newer row is deleted.
        for key, body, _ in rows:
            present = self._record(key)
            if present.body != body:
                records.put(present)
        records.watch(RecordKind.CLAIM, self._record, self._adopt)
        records.watch(RecordKind.ELECTION, lambda key: _election_record(key[0], self.elections.get(key[0])))

    # ---- questions ---------------------------------------------------------------------------------------------------

    def book(self, driver: str) -> Book:
        """A driver's book. Change it by the methods of this class."""
        return self._books.get(driver) or Book()  # an empty book, not kept: a question must not create one

    def knows(self, node: str, driver: str = "") -> bool:
        return any(
            book.concerns(node) or (name, node) in self._outdated_rows
            for name, book in self._books.items()
            if driver in ("", name)
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
        """Write that the call is open. Returns the write, for `confirm`, or None if the records already say so."""
        claim = attempt.claim
        claim.is_kept = True
        return None if claim.is_confirmed else self._write(driver, [claim])

    def confirm(self, driver: str, attempt: Attempt, write: "asyncio.Future[None]") -> None:
        """Note that the write of a claim has ended. The call may be sent then.

        Raises:
            CallError: the records do not show that the call is open, or the name is no longer the node's.
        """
        claim = attempt.claim
        self.check(write)
        if self.book(driver).claims.get(claim.name) is not claim:
            why = f"edge node {claim.node} was forgotten, or another one took over, while the call waited; retry it"
            raise no_place(driver, claim.name, why)
        claim.is_confirmed = True

    def end_attempt(self, driver: str, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """Count the end of a call (`Book.end_attempt`). The records learn of a new doubt, or that the name is free."""
        book = self._books[driver]
        claim = attempt.claim
        was_kept = claim.is_kept
        is_ours = book.claims.get(claim.name) is claim
        book.end_attempt(attempt, in_doubt=in_doubt)
        if not is_ours:
            return
        has_new_doubt = claim.in_doubt and not claim.is_confirmed
        if has_new_doubt:
            claim.is_kept = True
        # `Book.end_attempt` clears `is_kept` when no call of the name is open any more.
        if has_new_doubt or (was_kept and not claim.is_kept):
            self._put(driver, claim)

    def free(self, driver: str, names: Iterable[str]) -> None:
        """Free names whose outcome does not matter any more. A name with calls under way stays."""
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
        """Check a write that has ended.

        Pass `claim` after `record_made`: if another claim has taken its name meanwhile, that one is written again.

        Raises:
            CallError: the write has failed. The records have the claim as open, and things as they were.
        """
        error = write.exception()
        if error is None:
            return
        if claim is not None:
            present = self.book(driver).claims.get(claim.name)
            if present is not None and present is not claim:
                self._put(driver, present)
        if isinstance(error, WriteFailed):
            raise _not_kept(error) from error
        raise error

    # ---- things ------------------------------------------------------------------------------------------------------

    def record_made(
        self, driver: str, attempt: Attempt, node: str, things: Collection[Thing]
    ) -> "asyncio.Future[None]":
        """End a call that has made things, and record these. Returns the write, for `check`."""
        book = self._books[driver]
        claim = attempt.claim
        touched = list[Claim]()
        for thing in things:
            since = _first_seen(book, thing, node, self.now())
            touched += book.put(claim.name, thing, node, Id(claim.name, since))
        if things:
            book.end_attempt(attempt, in_doubt=False)
        else:
            self.end_attempt(driver, attempt, in_doubt=True)
        for changed in touched:
            book.index(changed)
        if len(touched) > 1:
            # The claims that lost a thing are written first. Until this claim's own row is written, the records show
            # its name as open at the node.
            touched.sort(key=lambda changed: changed.name == claim.name)
        return self._write(driver, touched)

    def note_new(self, driver: str, node: str, method: str, answer: bytes) -> None:
        """Note a create's answer that names things which the book does not keep, for the leak audit."""
        self._recent.add(driver, node, method, answer, self.now())

    def record_unacknowledged(self, driver: str, attempt: Attempt, node: str, things: Collection[Thing]) -> None:
        """End a call whose success the caller has not acknowledged, and record its things soon.

        If there are none, or if they may have been deleted since the call began, the call is in doubt.
        """
        book = self._books[driver]
        claim = attempt.claim
        touched = list[Claim]()
        is_gone = book.deletions != attempt.deletions
        for thing in things:
            stored = book.ids.get(thing, {}).get(node)
            is_gone |= stored is not None and stored.gone > claim.since
        if not things or is_gone or book.claims.get(claim.name) is not claim:
            self.end_attempt(driver, attempt, in_doubt=True)
            return
        for thing in things:
            if node not in book.makers(thing):
                touched += book.put(claim.name, thing, node, Id(claim.name, self.now()))
        self.end_attempt(driver, attempt, in_doubt=False)
        for changed in touched:
            book.index(changed)
            self._put(driver, changed)

    def record_deleted(
        self, driver: str, node: str, things: Iterable[Thing], *, settles: bool
    ) -> "asyncio.Future[None]":
        """Record that a node has deleted things. Returns the write, for `check`.

        `settles`: an operator orders the deletion. If other nodes have the id too, and at this node
        only a list could name it, the hub drops the list entry and records no deletion: the id then belongs to the
        other nodes.

        An id that the node was not known to have is not recorded if it is too long, or if the driver had `MOST_GONE`
        deletions within the last hour: callers can invent any number of ids.
        """
        book = self._books[driver]
        now = self.now()
        touched = list[Claim]()
        is_unlisted = False
        for thing in things:
            old = book.ids.get(thing, {}).get(node)
            is_listed = node in book.listed.get(thing, ())
            if old is None and not is_listed and (len(thing.id) > LONGEST_CHARS or book.gone_since > now - GONE_S):
                continue
            is_by_lists = old is None and (is_listed or (node, thing.kind) in book.lists)
            is_unlisted |= book.unlist(thing, node)
            if settles and is_by_lists and any(book.has(thing, other) for other in book.nodes if other != node):
                continue
            deleted = Id(deletion_of(thing), now, gone=now) if old is None else Id(old.name, old.since, gone=now)
            touched += book.put(deleted.name, thing, node, deleted)
        purged = book.purge(now - GONE_S)
        for claim in [*touched, *purged]:
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

        `began` and `at` are when the list was asked for, in wall-clock and in monotonic seconds.

        If some ids are in no claim, the list counts only when the records have the node's mark: else a hub that
        ends could forget that the node had things.

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
        finally:
            # The mark may be stale: a claim may have taken the ids, or the caller was cancelled and the write goes on.
            self._put_mark(driver, node)

    def _take_list(
        self, driver: str, node: str, kind: str, things: Collection[Thing], *, began: float, at: float
    ) -> None:
        book = self._books[driver]
        now = self.now()
        before = {thing for thing in book.listed_by(node) if thing.kind == kind}
        after = {thing for thing in things if book.may_list(thing, node, began)}
        new = after - before
        old = before - after
        held = listed_bytes(thing for drivers_book in self._books.values() for thing in drivers_book.listed_by(node))
        size = held - listed_bytes(old) + listed_bytes(new)
        if size > MOST_LISTED_BYTES:
            raise CallError(f"the lists of this node have {size} bytes, and {MOST_LISTED_BYTES} is the limit")
        revived = [claim for thing in new for claim in book.revive(thing, node, now)]
        for thing in new:
            book.list(thing, node, now)
        for thing in old:
            book.unlist(thing, node)
        book.lists[node, kind] = at
        for claim in revived:
            book.index(claim)
            self._put(driver, claim)  # without a wait: the next list names the thing again
        if book.mark_lists(node):
            self._put_mark(driver, node)

    # ---- everything of a node ----------------------------------------------------------------------------------------

    def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> Coroutine[Any, Any, None]:
        """Forget everything of a node, or of one driver there.

        Memory forgets when this is called; the coroutine waits for the records.

        If the node had things, the hub marks it (`Mark.FORGOTTEN`). If they are given up, it drops such a mark instead.

        Raises:
            CallError: the records still have some of the rows. The hub removes these rows as soon as it can write, or
                with the next such order.
        """
        set_marks = list[Change]()
        rows = list[Change]()
        dropped_marks = list[Change]()
        names: dict[str, set[str]] = {}
        for driver_name, book in self._books.items():
            if driver not in ("", driver_name):
                continue
            claims, had = book.forget(node)
            mark = Mark.FORGOTTEN if had and not is_given_up else None
            book.mark(node, mark)
            # An empty set stays, too: by it the hub knows the node until the records have the change (`knows`).
            outdated = self._outdated_rows.setdefault((driver_name, node), set())
            names[driver_name] = {claim.name for claim in claims} | outdated
            rows += [self._record((driver_name, name)) for name in names[driver_name]]
            mark_record = _mark_record(driver_name, node, mark)
            if mark is None:
                dropped_marks.append(mark_record)
            else:
                set_marks.append(mark_record)
        # The mark is set first and dropped last: while it stands, no call is told that the node's things do not exist.
        write = self._records.write([*set_marks, *rows, *dropped_marks])
        write.add_done_callback(partial(self._forgot, node, names))
        return _written(write)

    def _forgot(self, node: str, names: Mapping[str, set[str]], write: "asyncio.Future[None]") -> None:
        is_written = not write.cancelled() and write.exception() is None
        for driver, forgotten_names in names.items():
            outdated = self._outdated_rows.pop((driver, node), set())
            outdated = outdated - forgotten_names if is_written else outdated | forgotten_names
            if outdated or not is_written:
                self._outdated_rows[driver, node] = outdated
            if not is_written:
                self._put_mark(driver, node)
                for name in forgotten_names:
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
        present = self._books[driver].claims
        changes = dict[str, Change]()
        for claim in claims:
            claim.has_row = True
            name = claim.name
            if name not in changes:
                body = present[name].body() if name in present else None
                changes[name] = Change(RecordKind.CLAIM, (driver, name), body)
        return self._records.write(changes.values())

    def _put(self, driver: str, claim: Claim) -> None:
        if claim.body() is not None or claim.has_row:
            self._put_name(driver, claim.name)

    def _put_name(self, driver: str, name: str) -> None:
        claim = self.book(driver).claims.get(name)
        if claim is not None:
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
        # Keep an open create of local storage: its node may still carry it out. Drop an open create of shared storage
        # (`late.machine`) and an open call about a thing (`about`): a second node does no harm there. Such a claim
        # could stay open for ever, because a caller that has its answer does not retry.
        if claim is None and is_call and (late.machine or about(name) is not None):
            self._records.put(Change(RecordKind.CLAIM, key, None))
        elif claim is None:
            self._load(self._books[driver], late)
        return claim is None or claim.node == late.node

    def _load(self, book: Book, claim: Claim) -> None:
        ids = claim.ids
        claim.ids = {}
        book.claims[claim.name] = claim
        for (thing, node), loaded in ids.items():
            # If two rows have a thing, the removal of one has failed. An existing thing wins over a deleted one, and
            # the later deletion over the earlier.
            other = book.ids.get(thing, {}).get(node)
            if other is None or (loaded.gone or math.inf) >= (other.gone or math.inf):
                for changed in book.put(claim.name, thing, node, loaded):
                    book.index(changed)
        book.index(claim)


def _read(key: Key, body: Body) -> tuple[Key, Body, Claim | tuple[str, Mark]]:
    _, name = key
    if name.startswith(_NODE):
        return key, body, (text_in(body["node"]), Mark(body["state"]))
    return key, body, read_claim(name, body)


def _first_seen(book: Book, thing: Thing, node: str, now: float) -> float:
    old = book.ids.get(thing, {}).get(node)
    if old is not None and not old.gone:
        return old.since
    return book.listed.get(thing, {}).get(node, now)


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
    remedy = "" if error.place == CLUSTER else ": make room on the disk or repair it"
    return CallError(
        f"the hub cannot record which edge node this is on ({error.place}: {error.why}); retry once the hub can "
        f"write {error.place} again{remedy}"
    )
