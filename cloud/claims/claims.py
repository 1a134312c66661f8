"""The claims: the books of all drivers, written through to the records.

The records hold these rows:

kind       key                    body
claim      driver, name           see `cloud.claims.claim`
claim      driver, `Node n1`      state (`Mark`), node
election   driver                 node, epoch, since, why (`Elected`)

One process holds the books, in one event loop. So a decision and its change of a book are one step, if no await lies
between them. The records let no other hub write.

Rules:

* A change counts in memory at once, and the records get it later. `_write` returns a future, so the caller can wait for
  the records. `_put` returns nothing, and the records retry it until it works. Two changes count only once the records
  have them: an election, and the first list of a node with ids that no claim has.
* A failed write may have written the first of its rows. So each write orders its rows: a hub that starts after any of
  them must forget no thing. For example, `forget` writes a node's mark before it deletes the node's rows.
* If a call has a name (`CallInfo.name`), and the hub chooses its node or an operator sends it by hand, the hub writes
  twice. It writes the open name before the node gets the call, and the outcome before the caller gets the answer. If
  the second write fails, the records still show the name as open. The caller gets an error, and retries.
* A deletion without a name is one write, before the caller gets the success.
* Exception: if a proxy driver pins a create, the call waits for no write. The hub records it only if its outcome is in
  doubt, or if the caller does not take the answer. A hub that is killed before that forgets it. That is safe as long as
  the proxy driver pins all creates of a name to one node.
* If the records show a claim as open when the hub starts, the claim is in doubt.
* The records have no lists. After a restart, the hub does not know an id that only a list named, until the node lists
  again. The node's mark in the records says that it had such ids.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from cloud.claims.book import DELETED_KEPT_S, MOST_LISTED_BYTES, Book, listed_bytes
from cloud.claims.claim import Attempt, Claim, IdEntry, Mark, Place, read_claim, text_in
from cloud.claims.election import Elected
from cloud.claims.ledger import Ledger, read
from cloud.claims.recent import Recent
from cloud.claims.requests import LONGEST_CHARS, about, deletion_of
from cloud.claims.rules import Thing
from cloud.records.records import CLUSTER, Body, Change, Key, RecordKind, Records
from common.errors import CallError, name_elsewhere, no_place
from common.store.database_writer import WriteFailed

_NODE: Final = "Node "  # begins the name of a mark's row. A claim's name begins with a CSI method.


class Claims:
    """The claims of this hub."""

    def __init__(
        self,
        records: Records,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the records. All modules of `placement` use these two clocks.

        Raises:
            SettingsError: the hub cannot read a record.
        """
        self.now = now
        self.monotonic = monotonic
        self._records = records
        # By driver: the last election that the records have.
        self.elections = dict(records.take(RecordKind.ELECTION, _read_election))
        self._books: defaultdict[str, Book] = defaultdict(Book)
        # By driver and node: the names that `forget` changed in memory. The records may still have their old rows.
        self._outdated_rows: dict[tuple[str, str], set[str]] = {}
        self._recent = Recent(now())
        rows = records.take(RecordKind.CLAIM, _read)
        for key, _, content in rows:
            if isinstance(content, Claim):
                self._load(self._books[key[0]], content)
            else:
                self._books[key[0]].mark(*content)
        # Two rows may have the same thing. Take it out of the older row, else it comes back when the newer row is
        # deleted.
        for key, body, _ in rows:
            present = self._record(key)
            if present.body != body:
                records.put(present)
        records.watch(RecordKind.CLAIM, self._record, self._adopt)
        records.watch(RecordKind.ELECTION, lambda key: _election_record(key[0], self.elections.get(key[0])))

    # ---- questions ---------------------------------------------------------------------------------------------------

    def book(self, driver: str) -> Book:
        """A driver's book. Change it by the methods of this class."""
        return self._books.get(driver) or Book()  # a question creates no book: callers could ask for any driver

    def knows(self, node: str, driver: str = "") -> bool:
        """Whether the books have anything of a node, or the records may have: an operator can still forget it."""
        return any(
            book.concerns(node) or (name, node) in self._outdated_rows
            for name, book in self._books.items()
            if driver in ("", name)
        )

    def existing(self) -> list[Place]:
        """All things that exist, by the claims and the nodes' lists."""
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
        """Begin a call under a name.

        The nodes in `stopped_nodes` have surely stopped their calls of the name, so these do not count as open.

        Raises:
            CallError: a call of the name is open at another node.
        """
        book = self._books[driver]
        claim = book.claims.get(name)
        if claim is not None and claim.is_open and claim.node != node and claim.node not in stopped_nodes:
            raise name_elsewhere(driver, name, claim.node, node)
        return book.begin(name, node, self.now(), lease_s=lease_s, machine=machine)

    def record_open(self, driver: str, attempt: Attempt) -> "asyncio.Future[None] | None":
        """Record that a call of the name is open. Returns the write, for `confirm`; None if the records show it."""
        claim = attempt.claim
        claim.must_record = True
        return None if claim.is_confirmed else self._write(driver, [claim])

    def confirm(self, driver: str, attempt: Attempt, write: "asyncio.Future[None]") -> None:
        """Note that the write of `record_open` has ended. The hub may send the call then.

        Raises:
            CallError: the write has failed, or the name is no longer the node's.
        """
        claim = attempt.claim
        self.check(write)
        if self.book(driver).claims.get(claim.name) is not claim:
            why = f"edge node {claim.node} was forgotten, or another one took over, while the call waited; retry it"
            raise no_place(driver, claim.name, why)
        claim.is_confirmed = True

    def end_attempt(self, driver: str, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """Count the end of a call (`Book.end_attempt`). If it leaves a doubt or frees the name, record that."""
        book = self._books[driver]
        claim = attempt.claim
        was_recorded = claim.must_record
        is_ours = book.claims.get(claim.name) is claim
        book.end_attempt(attempt, in_doubt=in_doubt)
        if not is_ours:
            return
        has_new_doubt = claim.in_doubt and not claim.is_confirmed
        if has_new_doubt:
            claim.must_record = True
        # `Book.end_attempt` clears `must_record` when no call of the name is open any more.
        if has_new_doubt or (was_recorded and not claim.must_record):
            self._put(driver, claim)

    def free(self, driver: str, names: Iterable[str]) -> None:
        """Free names whose outcome does not matter any more. A name with a running call stays."""
        book = self._books[driver]
        for claim in [book.claims[name] for name in names if name in book.claims]:
            if not claim.running:
                claim.last_final = claim.sent  # as if a final answer had settled every call of the name
                book.index(claim)
                self._put(driver, claim)

    def write_names(self, driver: str, names: Iterable[str]) -> "asyncio.Future[None]":
        """Write the rows of some names, as memory has them now. Returns the write, for `check`."""
        return self._records.write([self._record((driver, name)) for name in names])

    def check(self, write: "asyncio.Future[None]", driver: str = "", claim: Claim | None = None) -> None:
        """Check a write that has ended.

        Pass `claim` after `record_made`. If the write has failed, and another claim has its name by now, the hub writes
        that claim again.

        Raises:
            CallError: the write has failed. The records still show the claim as open, and the things as before.
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
        """End a call that has made things, and record the things. Returns the write, for `check`."""
        book = self._books[driver]
        claim = attempt.claim
        touched = list[Claim]()
        for thing in things:
            since = _first_seen(book, thing, node, self.now())
            touched += book.put(claim.name, thing, node, IdEntry(claim.name, since))
        if things:
            book.end_attempt(attempt, in_doubt=False)
        else:
            self.end_attempt(driver, attempt, in_doubt=True)
        for changed in touched:
            book.index(changed)
        if len(touched) > 1:
            # The claims that have lost a thing come first, this claim's row last. Until that row is written, the
            # records show this name as open at the node: no thing is forgotten.
            touched.sort(key=lambda changed: changed.name == claim.name)
        return self._write(driver, touched)

    def note_new(self, driver: str, node: str, method: str, answer: bytes) -> None:
        """Note a create's answer whose things the book does not keep. The leak audit reads it."""
        self._recent.add(driver, node, method, answer, self.now())

    def record_unacknowledged(self, driver: str, attempt: Attempt, node: str, things: Collection[Thing]) -> None:
        """End a call whose success the caller has not acknowledged, and record its things without a wait.

        The call is in doubt if it has made no things, or if a node may have deleted them since the call began.
        """
        book = self._books[driver]
        claim = attempt.claim
        touched = list[Claim]()
        is_gone = book.unnoted_deletions != attempt.unnoted_deletions
        for thing in things:
            stored = book.ids.get(thing, {}).get(node)
            is_gone |= stored is not None and stored.deleted_at > claim.since
        if not things or is_gone or book.claims.get(claim.name) is not claim:
            self.end_attempt(driver, attempt, in_doubt=True)
            return
        for thing in things:
            if node not in book.makers(thing):
                touched += book.put(claim.name, thing, node, IdEntry(claim.name, self.now()))
        self.end_attempt(driver, attempt, in_doubt=False)
        for changed in touched:
            book.index(changed)
            self._put(driver, changed)

    def record_deleted(
        self, driver: str, node: str, things: Iterable[Thing], *, is_pinned_by_hand: bool
    ) -> "asyncio.Future[None]":
        """Record that a node has deleted things. Returns the write, for `check`.

        `is_pinned_by_hand`: an operator has sent the deletion to this node. If the node has sent a list of this kind,
        no claim has the id there, and other nodes have the id too, this ends the conflict. The hub drops the list
        entry, and records no deletion: the id belongs to the other nodes.

        Callers can invent any number of ids. So the hub does not record the deletion of an unknown id that is too long,
        or that comes after `MOST_DELETED` deletions within an hour.
        """
        book = self._books[driver]
        now = self.now()
        touched = list[Claim]()
        is_unlisted = False
        for thing in things:
            old = book.ids.get(thing, {}).get(node)
            is_listed = node in book.listed.get(thing, ())
            is_unknown = old is None and not is_listed
            if is_unknown and (len(thing.id) > LONGEST_CHARS or book.oldest_counted_deletion > now - DELETED_KEPT_S):
                continue
            is_by_lists = old is None and (is_listed or (node, thing.kind) in book.lists)
            is_unlisted |= book.unlist(thing, node)
            others = (other for other in book.nodes if other != node)
            if is_pinned_by_hand and is_by_lists and any(book.has(thing, other) for other in others):
                continue
            name, since = (old.name, old.since) if old is not None else (deletion_of(thing), now)
            deleted = IdEntry(name, since, deleted_at=now)
            touched += book.put(name, thing, node, deleted)
        purged = book.purge(now - DELETED_KEPT_S)
        for claim in [*touched, *purged]:
            book.index(claim)
        for claim in purged:
            self._put(driver, claim)
        if is_unlisted and book.mark_lists(node):
            self._put_mark(driver, node)
        # In any order: while the records still have a thing, a retry of its deletion goes to this node.
        return self._write(driver, touched)

    async def record_list(
        self, driver: str, node: str, kind: str, things: Collection[Thing], *, began: float, at: float
    ) -> None:
        """Replace a node's list of one kind. An id that was deleted since `began` stays deleted.

        The hub asked for the list at `began` in wall-clock seconds, which is `at` in monotonic seconds.

        If the list has ids that are in no claim, the hub first records the node's mark. Else a hub that restarts would
        not know that the node had things.

        Raises:
            CallError: the node's lists are too large together (`MOST_LISTED_BYTES`), or the hub cannot write the mark.
                The list does not count then.
        """
        book = self._books[driver]
        if book.marks.get(node) is Mark.LISTED or not any(book.may_list(thing, node, began) for thing in things):
            self._take_list(driver, node, kind, things, began=began, at=at)
            return
        try:
            await _written(self._records.write([_mark_record(driver, node, Mark.LISTED)]))
            self._take_list(driver, node, kind, things, began=began, at=at)
        finally:
            # The mark may be wrong by now: a claim may have taken the ids, or this call was cancelled during the write.
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
            self._put(driver, claim)  # if it gets lost, the next list has the thing again
        if book.mark_lists(node):
            self._put_mark(driver, node)

    # ---- everything of a node ----------------------------------------------------------------------------------------

    def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> Coroutine[Any, Any, None]:
        """Forget everything of a node, or of one driver there.

        The call itself changes memory. The coroutine that it returns waits for the records.

        If the node had things, the hub marks it (`Mark.FORGOTTEN`). `is_given_up`: it removes such a mark instead.

        Raises:
            CallError: the records still have some rows. The hub removes them as soon as it can write, or when an
                operator forgets the node again.
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
            # An empty set stays, too: until the records have the change, `knows` must return True.
            outdated = self._outdated_rows.setdefault((driver_name, node), set())
            names[driver_name] = {claim.name for claim in claims} | outdated
            rows += [self._record((driver_name, name)) for name in names[driver_name]]
            mark_record = _mark_record(driver_name, node, mark)
            if mark is None:
                dropped_marks.append(mark_record)
            else:
                set_marks.append(mark_record)
        # The mark comes first, and goes last. While it stands, the hub lets no caller believe that a thing of the node
        # does not exist.
        write = self._records.write([*set_marks, *rows, *dropped_marks])
        write.add_done_callback(partial(self._forgot, node, names))
        return _written(write)

    def _forgot(self, node: str, names: Mapping[str, set[str]], write: "asyncio.Future[None]") -> None:
        is_written = not write.cancelled() and write.exception() is None
        for driver, forgotten_names in names.items():
            outdated = self._outdated_rows.pop((driver, node), set())
            # Another write may have failed while this one ran. Names that only the other one had stay outdated.
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
        # An earlier hub wrote this row after this hub had read the records. Returns False if this hub has a claim of
        # the name at another node.
        driver, name = key
        _, _, late = _read(key, body)
        if not isinstance(late, Claim):
            return True
        claim = self.book(driver).claims.get(name)
        is_call = late.is_open and not late.ids
        # An open create of local storage stays: its node may still carry it out. An open create of shared storage
        # (`late.machine`) and an open call about a thing (`about`) go, because a second node does no harm there. Such a
        # claim could stay open for ever: a caller that has its answer does not retry.
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
            # Two rows may have a thing if an earlier removal failed. An existing thing wins over a deleted one, and a
            # later deletion wins over an earlier one.
            other = book.ids.get(thing, {}).get(node)
            if other is None or (loaded.deleted_at or math.inf) >= (other.deleted_at or math.inf):
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
    if old is not None and not old.deleted_at:
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
