"""The rules of a claim store, as changes of its rows: every store runs these, each within one transaction. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cloud.election import Elected
from cloud.placement.claim_store import (
    GONE_S,
    LISTED_BYTES,
    MOST_LISTED_BYTES,
    USUAL,
    Claimed,
    HeldBy,
    Hold,
    Holding,
    IdEntry,
    ListsTooLarge,
    NameEntry,
    Standing,
    Terms,
)
from cloud.placement.requests import Thing


class Rows(Protocol):
    """A store's rows, read and written within one transaction."""

    def name(self, driver: str, name: str) -> NameEntry:
        """A name's entry."""

    def id(self, driver: str, thing: Thing) -> IdEntry:
        """An id's entry."""

    def at(self, driver: str, node: str, kind: str) -> Mapping[Thing, Holding]:
        """All holdings of one node, of one kind."""

    def listed_bytes(self, node: str) -> int:
        """The size of all ids that only the lists of a node tell."""

    def standing(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """A name and ids, the nodes with things of the driver, and their lists."""

    def set_hold(self, driver: str, name: str, owner: str, hold: Hold | None) -> None:
        """Set or remove an owner's hold on a name."""

    def set_holding(self, driver: str, thing: Thing, node: str, holding: Holding | None) -> None:
        """Set or remove a node's holding of an id."""

    def set_listed(self, driver: str, node: str, kind: str) -> None:
        """Note that a node has listed all of a kind."""

    def elected(self, driver: str) -> Elected | None:
        """The driver's last election; None: there was none."""

    def set_elected(self, driver: str, elected: Elected) -> None:
        """Set the driver's last election."""

    def left(self, node: str, driver: str) -> set[str]:
        """The drivers of which a node is `FORGOTTEN`, and those, or the one, of which it has things."""

    def forget(self, node: str, driver: str, left: Iterable[str]) -> None:
        """Remove everything of a node, or of one driver there. Of the drivers `left` it is `FORGOTTEN` then."""

    def purge(self, before: float) -> None:
        """Remove the ids that were deleted before a moment."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One write of one hub, on the rows of one transaction.

    Attributes:
        rows: the rows.
        owner: the hub.
        epoch: the number of this write among the hub's.
        now: the time of this write, in seconds since the epoch.
    """

    rows: Rows
    owner: str
    epoch: int
    now: float = 0.0

    def claim(
        self, driver: str, name: str, node: str, expected: NameEntry, terms: Terms = USUAL
    ) -> Claimed[NameEntry] | HeldBy[NameEntry]:
        """See `ClaimStore.claim`."""
        entry = self.rows.name(driver, name)
        holders = (entry.open_at if terms.is_shared else set(entry.nodes)) - terms.over
        if entry != expected or (holders and node not in holders):
            return HeldBy(entry)
        hold = replace(self.hold(entry, node), lease_s=terms.lease_s, machine=terms.machine)
        self.rows.set_hold(driver, name, self.owner, hold)
        return Claimed(replace(entry, holds={**entry.holds, self.owner: hold}))

    def hold(self, entry: NameEntry, node: str) -> Hold:
        """The hub's next hold on a name for a node. It keeps the age of the present one."""
        old = entry.holds.get(self.owner)
        return Hold(node, self.epoch, old.since if old is not None and old.node == node else self.now)

    def elect(self, driver: str, new: Elected, expected: Elected | None) -> Elected:
        """See `ClaimStore.elect`."""
        last = self.rows.elected(driver)
        if last != expected and last is not None:
            return last
        self.rows.set_elected(driver, new)
        return new

    def keep(self, driver: str, name: str, hold: Hold) -> None:
        """Set the hub's hold on a name, unless the hub has claimed the name again since."""
        present = self.rows.name(driver, name).holds.get(self.owner)
        if present is None or present.epoch < hold.epoch:
            self.rows.set_hold(driver, name, self.owner, hold)

    def free(self, driver: str, name: str) -> None:
        """End the hub's hold on a name, unless the hub has claimed the name again since."""
        hold = self.rows.name(driver, name).holds.get(self.owner)
        if hold is not None and hold.epoch <= self.epoch:
            self.rows.set_hold(driver, name, self.owner, None)

    def record(
        self,
        driver: str,
        node: str,
        new: Mapping[Thing, Holding | None],
        expected: Mapping[Thing, IdEntry],
        *,
        alone: bool = False,
    ) -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
        """See `ClaimStore.record`."""
        now = {thing: self.rows.id(driver, thing) for thing in new}
        if any(now[thing].holders.get(node) != expected[thing].holders.get(node) for thing in new):
            return HeldBy(now)
        if alone and any(set(now[thing].made) - {node, *expected[thing].made} for thing in new):
            return HeldBy(now)
        stamped = {
            thing: self._stamp(holding, now[thing].holders.get(node)) if holding is not None else None
            for thing, holding in new.items()
        }
        self.write(driver, node, stamped)
        return Claimed({thing: now[thing].replaced(node, holding) for thing, holding in stamped.items()})

    def write(self, driver: str, node: str, new: Mapping[Thing, Holding | None]) -> None:
        """Set a node's holdings, and forget ids that were deleted more than `GONE_S` before."""
        for thing, holding in new.items():
            self.rows.set_holding(driver, thing, node, holding)
        gone = max((holding.gone for holding in new.values() if holding is not None), default=0.0)
        if gone:
            self.rows.purge(gone - GONE_S)

    def forget(self, node: str, driver: str, *, is_given_up: bool) -> set[str]:
        """See `ClaimStore.forget`. Returns the drivers of which the node is `FORGOTTEN`."""
        left = set() if is_given_up else self.rows.left(node, driver)
        self.rows.forget(node, driver, left)
        return left

    def record_made(self, driver: str, node: str, thing: Thing, name: str) -> None:
        """See `ClaimStore.record_later`."""
        holding = self.rows.id(driver, thing).holders.get(node)
        if holding is None or not holding.is_made:
            self.rows.set_holding(driver, thing, node, self._stamp(Holding(name), holding))

    def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        """See `ClaimStore.listed`."""
        known, told = self.rows.at(driver, node, kind), set(things)
        gone = [thing for thing, holding in known.items() if holding.is_listed_only and thing not in told]
        size_bytes = self.rows.listed_bytes(node) - _size_bytes(gone) + _size_bytes(told - known.keys())
        if size_bytes > MOST_LISTED_BYTES:
            raise ListsTooLarge(size_bytes)
        for thing in gone:
            self.rows.set_holding(driver, thing, node, None)
        for thing in told:
            holding = known.get(thing)
            if holding is None or 0 < holding.gone < began:
                name = holding.name if holding is not None else ""
                self.rows.set_holding(driver, thing, node, self._stamp(Holding(name), holding))
        self.rows.set_listed(driver, node, kind)

    def _stamp(self, holding: Holding, old: Holding | None) -> Holding:
        """The holding with the marks of this write. It keeps the age of the old one if that thing still existed."""
        since = old.since if old is not None and not old.gone else self.now
        return replace(holding, owner=self.owner, epoch=self.epoch, since=since)


def _size_bytes(things: Iterable[Thing]) -> int:
    return sum(len(thing.id) + LISTED_BYTES for thing in things)
