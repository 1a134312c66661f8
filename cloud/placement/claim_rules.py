"""The rules of a claim store, as functions of its rows: every store runs these, each within one transaction. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cloud.placement.claim_store import GONE_S, Claimed, HeldBy, Hold, Holding, IdEntry, NameEntry, Standing
from cloud.placement.requests import Thing


class Rows(Protocol):
    """A store's rows, read and written within one transaction."""

    def name(self, driver: str, name: str) -> NameEntry:
        """A name's entry."""

    def id(self, driver: str, thing: Thing) -> IdEntry:
        """An id's entry."""

    def at(self, driver: str, node: str, kind: str) -> Mapping[Thing, Holding]:
        """All holdings of one node, of one kind."""

    def standing(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """A name and ids, and what the driver's nodes have and have listed."""

    def set_hold(self, driver: str, name: str, owner: str, hold: Hold | None) -> None:
        """Set or remove an owner's hold on a name."""

    def set_holding(self, driver: str, thing: Thing, node: str, holding: Holding | None) -> None:
        """Set or remove a node's holding of an id."""

    def set_listed(self, driver: str, node: str, kind: str) -> None:
        """Note that a node has listed all of a kind."""

    def forget(self, node: str, driver: str) -> None:
        """Remove everything of a node, or of one driver there."""

    def purge(self, before: float) -> None:
        """Remove the ids that were deleted before a moment."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The hub that writes, and its number for this write."""

    owner: str
    epoch: int

    def stamp(self, holding: Holding | None) -> Holding | None:
        """The holding as this write's."""
        return replace(holding, owner=self.owner, epoch=self.epoch) if holding is not None else None


def claim(
    rows: Rows, by: Writer, driver: str, name: str, node: str, expected: NameEntry
) -> Claimed[NameEntry] | HeldBy[NameEntry]:
    """See `ClaimStore.claim`."""
    entry = rows.name(driver, name)
    if entry != expected or (entry.nodes and node not in entry.nodes):
        return HeldBy(entry)
    rows.set_hold(driver, name, by.owner, Hold(node, by.epoch))
    return Claimed(rows.name(driver, name))


def record(
    rows: Rows,
    by: Writer,
    driver: str,
    node: str,
    new: Mapping[Thing, Holding | None],
    expected: Mapping[Thing, IdEntry],
) -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
    """See `ClaimStore.record`."""
    now = {thing: rows.id(driver, thing) for thing in new}
    if any(now[thing].holders.get(node) != expected[thing].holders.get(node) for thing in new):
        return HeldBy(now)
    write(rows, by, driver, node, new)
    return Claimed({thing: rows.id(driver, thing) for thing in new})


def write(rows: Rows, by: Writer, driver: str, node: str, new: Mapping[Thing, Holding | None]) -> None:
    """Set a node's holdings, and forget ids that have been gone for long."""
    for thing, holding in new.items():
        rows.set_holding(driver, thing, node, by.stamp(holding))
    gone = max((holding.gone for holding in new.values() if holding is not None), default=0.0)
    if gone:
        rows.purge(gone - GONE_S)


def listed(
    rows: Rows, by: Writer, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float
) -> None:
    """See `ClaimStore.listed`."""
    known, told = rows.at(driver, node, kind), set(things)
    for thing in [thing for thing, holding in known.items() if holding.is_listed_only and thing not in told]:
        rows.set_holding(driver, thing, node, None)
    for thing in told:
        holding = known.get(thing)
        if holding is None or 0 < holding.gone < began:
            rows.set_holding(driver, thing, node, by.stamp(Holding(holding.name if holding is not None else "")))
    rows.set_listed(driver, node, kind)


def record_made(rows: Rows, by: Writer, driver: str, node: str, thing: Thing, name: str) -> None:
    """See `ClaimStore.record_later`."""
    holding = rows.id(driver, thing).holders.get(node)
    if holding is None or not holding.is_made:
        rows.set_holding(driver, thing, node, by.stamp(Holding(name)))


def free(rows: Rows, by: Writer, driver: str, name: str) -> None:
    """End the writer's hold on a name, unless the writer has claimed the name again since."""
    hold = rows.name(driver, name).holds.get(by.owner)
    if hold is not None and hold.epoch <= by.epoch:
        rows.set_hold(driver, name, by.owner, None)
