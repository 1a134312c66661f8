"""The claim store: records the nodes that hold a create's name and the nodes that have an id, for all hubs.

    name    driver, method and name of a create. Its entry: the nodes that may have carried the create out.
            Of a driver with an elected node also method and id of any other call that changes something (`requests`).
    id      driver, kind and id of a thing (volume, snapshot, group). Its entry: the nodes that have or had the thing.
    driver  the election of the node that serves it, if its storage is reached by every node (`election`).

Rules:

* A change that another hub can contradict is a compare-and-set: the caller passes the entry that its decision is based
  on. If the entry has changed since, the store changes nothing (`HeldBy`).
* A node holds a name while a create of this name is open there (`Hold`), and while it has a thing that was made under
  the name. Then no second node can claim the name. Two nodes hold one name only after two hubs have used the exemption
  that `pending` describes. The entry then has both nodes.
* An id may have several holders, and no write replaces another node's holding. So a conflict stays in the entry until
  an operator settles it.
* `look` sees every change that was confirmed before it began, by any hub. It also sees this hub's own `…_later` writes.
* The `…_later` methods return nothing and raise nothing. The store retries their writes until they work. This hub sees
  them at once, and other hubs once they are written. If the hub ends before that, they are lost.
* Each entry names its `owner`, the hub that wrote it, and an `epoch`, which grows with each write of that owner. The
  epoch of an election is another one: it grows with each election of the driver, by any hub.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from cloud.election import Elected
from cloud.placement.requests import Thing

GONE_S = 3_600.0
"""How long the store remembers the node of a deleted id. A sidecar that did not get the answer repeats the delete at
its next resync, after 15 minutes (docs/csi-contract.md#a-deleted-id-keeps-its-node-for-an-hour)."""

MOST_LISTED_BYTES = 16 * 1_048_576
"""The ids that only the lists of one node tell, of all its drivers together: 70,000 of the longest that CSI allows (128
bytes), with `LISTED_BYTES` for each. Else a hostile node could fill the hub's disk and memory."""

LISTED_BYTES = 100
"""The size of an id's row, without the id."""

MOST_GONE = 20_000
"""The deleted ids of one driver that the store had not known before, and remembers for `GONE_S`. CSI deletes what does
not exist with OK, so that a proxy driver can invent any number of them."""

FORGOTTEN = "forgotten"
"""In `Standing.lists`, instead of a kind: the store forgot the node, which had things. It ends when the node lists
again, or when they are given up."""

E = TypeVar("E")


class Terms(NamedTuple):
    """The terms of a claim of a driver whose storage every node reaches.

    Attributes:
        lease_s: as of the `Hold`.
        machine: as of the `Hold`.
        over: nodes whose holds and things do not count: they cannot carry the call out any more.
        is_shared: things that were made under the name bind it to no node, and calls about the same thing do.
    """

    lease_s: int = 0
    machine: str = ""
    over: frozenset[str] = frozenset()
    is_shared: bool = False


USUAL = Terms()
"""The terms for any other driver."""


class ListsTooLarge(Exception):
    """The lists of a node are too large together. The store has changed nothing."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"the lists of this node have {size_bytes} bytes, and {MOST_LISTED_BYTES} is the limit")


@dataclass(frozen=True, slots=True)
class Hold:
    """One hub's hold on a name: this hub may have sent a create to the node, and its outcome is open.

    Attributes:
        node: the node.
        epoch: grows with each hold of the same owner.
        since: when the hub took the hold, in seconds since the epoch. It does not count in
            a comparison: of two writes that overlap, memory and disk may keep the time of another one.
        lease_s: how long the node's agent may go on with the call without its hub (`Hello.controller_lease_s`), if
            another node may take the call over after that; 0: none may.
        machine: of a driver with an elected node, the instance of the node's agent (`Hello.instance`): another machine
            may have the node's name later.
    """

    node: str
    epoch: int = 0
    since: float = field(default=0.0, compare=False)
    lease_s: int = 0
    machine: str = ""


@dataclass(frozen=True, slots=True)
class NameEntry:
    """The holders of a name.

    Attributes:
        holds: the node of each hub's open creates, by owner.
        made: the nodes with things that were made under the name.
        beside: the other names about the same thing that are held, each with a hold. They do not count in a comparison:
            calls about one thing may run beside each other at one node.
    """

    holds: Mapping[str, Hold] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    beside: frozenset[tuple[str, Hold]] = field(default=frozenset(), compare=False)

    @property
    def nodes(self) -> list[str]:
        """The nodes that hold the name, sorted."""
        return sorted({*self.made, *(hold.node for hold in self.holds.values())}) if self.holds or self.made else []

    @property
    def open(self) -> list[Hold]:
        """The holds of open calls of this name, or about the same thing."""
        return [*self.holds.values(), *(hold for _, hold in self.beside)]

    @property
    def open_at(self) -> set[str]:
        """The nodes of these calls."""
        return {hold.node for hold in self.open}


@dataclass(frozen=True, slots=True)
class Holding:
    """The record that a node has a thing, or had it.

    Attributes:
        name: method and name of the create that made the thing; empty if only the node's list tells of it.
        gone: when it was deleted, in seconds since the epoch; 0 while it exists.
        owner: the hub that wrote this.
        epoch: grows with each write of the same owner.
        since: when the store first had the thing there, in seconds since the epoch. It
            does not count in a comparison, as that of `Hold`.
    """

    name: str = ""
    gone: float = 0.0
    owner: str = ""
    epoch: int = 0
    since: float = field(default=0.0, compare=False)

    @property
    def is_made(self) -> bool:
        """Whether the thing exists, and a hub has recorded its creation."""
        return bool(self.name) and not self.gone

    @property
    def is_listed_only(self) -> bool:
        """Whether only the node's list shows the thing: no hub has recorded its creation or deletion."""
        return not (self.name or self.gone)


@dataclass(frozen=True, slots=True)
class IdEntry:
    """The holders of an id, by node."""

    holders: Mapping[str, Holding] = field(default_factory=dict)

    @property
    def made(self) -> list[str]:
        """The nodes that have the thing and whose creation of it a hub has recorded, sorted."""
        return sorted(node for node, holding in self.holders.items() if holding.is_made)

    @property
    def listed(self) -> list[str]:
        """The nodes that have the thing according to their lists only, sorted."""
        return sorted(node for node, holding in self.holders.items() if holding.is_listed_only)

    @property
    def deleted(self) -> list[str]:
        """The nodes whose deletion of the thing a hub has recorded in the last hour (`GONE_S`), sorted."""
        return sorted(node for node, holding in self.holders.items() if holding.gone)

    def replaced(self, node: str, holding: Holding | None) -> "IdEntry":
        """A copy of the entry in which the node has this holding; None: no holding."""
        others = {other: held for other, held in self.holders.items() if other != node}
        return IdEntry({**others, node: holding} if holding is not None else others)

    def has(self, node: str) -> bool:
        """Whether a node has the thing, according to the store."""
        return node in self.holders and not self.holders[node].gone


@dataclass(frozen=True, slots=True)
class Claimed(Generic[E]):
    """The store made the change; `entry` is the new state."""

    entry: E


@dataclass(frozen=True, slots=True)
class HeldBy(Generic[E]):
    """The store changed nothing, because the state is not as the caller expected. `entry` is the present state."""

    entry: E


NO_NAME = NameEntry()
NO_ID = IdEntry()


class Standing(NamedTuple):
    """The store's entries for one call's name and ids, at one moment.

    Attributes:
        name: the name's entry.
        ids: the ids' entries.
        nodes: all nodes with things of the driver.
        lists: node and kind of each list of the driver's things that a node has sent; also `FORGOTTEN`.
        open: the number of names that each node holds for open creates of the driver (`Hold`).
        gone_since: when the oldest of the last `MOST_GONE` deletions of the driver was; 0 if there are fewer.
    """

    name: NameEntry = NO_NAME
    ids: Mapping[Thing, IdEntry] = MappingProxyType({})
    nodes: AbstractSet[str] = frozenset()
    lists: AbstractSet[tuple[str, str]] = frozenset()
    open: Mapping[str, int] = MappingProxyType({})
    gone_since: float = 0.0


NOTHING = Standing()
"""The entries for a call that needs none."""

Place = tuple[str, Thing, str]
"""Driver, thing and node."""


class Ledger(NamedTuple):
    """All entries of the store. They are read in parts, the holds first: see `memory_rows`.

    Attributes:
        holdings: each node's holding of a thing, those of deleted things included.
        holds: driver, name and hold of each open create.
    """

    holdings: list[tuple[Place, Holding]]
    holds: list[tuple[str, str, Hold]]


class ClaimStore(Protocol):
    """Records names and ids, for all hubs that share it.

    Every awaited method raises `PlacementNotKept` if the store cannot be reached or written; then it changed nothing.

    Attributes:
        owner: this hub, in the entries that it writes.
    """

    owner: str

    def lost(self) -> tuple[str, ...]:
        """Sentences about the names and ids that the store has lost. `csi-bridge trust` clears them."""

    async def trust(self) -> tuple[str, ...]:
        """Clear the losses, because an operator says that nothing is missing; return them.

        Raises:
            OSError: the store cannot write that, and the losses stay.
        """

    async def look(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """Read a name (empty: none) and ids of a driver."""

    def glance(self, driver: str, name: str, things: Iterable[Thing]) -> Standing | None:
        """Return what `look` would, without a wait; None if this store has to wait for it."""

    async def claim(
        self, driver: str, name: str, node: str, expected: NameEntry, terms: Terms = USUAL
    ) -> Claimed[NameEntry] | HeldBy[NameEntry]:
        """Take a hold on a name for a node, if the name's entry is still `expected` and no other node holds it.

        If the caller is cancelled, the store may have written the hold. Then `free_later` ends it.
        """

    async def record(
        self,
        driver: str,
        node: str,
        new: Mapping[Thing, Holding | None],
        expected: Mapping[Thing, IdEntry],
        *,
        alone: bool = False,
    ) -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
        """Set or remove (None) a node's holdings of ids: all of them, if its old holdings are as `expected`, else none.

        With `alone`, it changes nothing either if another node has made one of the things, and `expected` lacks that.
        The entries in the result have the other nodes' holdings, too. Cancelling the caller does not stop the change.
        """

    async def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        """Replace a node's list of one kind. An id that was deleted since `began` stays deleted.

        Raises:
            ListsTooLarge: see `MOST_LISTED_BYTES`.
        """

    async def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> None:
        """Remove everything of a node, or of one driver there.

        If it had things, the store notes that (`FORGOTTEN`), unless they are given up: then it drops such a note.
        """

    async def knows(self, node: str, driver: str = "") -> bool:
        """Whether the store has anything of a node, or of one driver there."""

    async def existing(self) -> list[Place]:
        """Every thing that exists, and its nodes."""

    async def ledger(self) -> Ledger:
        """All entries, each as it is at its moment. A hold is read before the things of its create."""

    def hold_later(self, driver: str, name: str, node: str) -> None:
        """Take a hold on a name for a node that may have made something, even if another node holds the name."""

    def free_later(self, driver: str, name: str) -> None:
        """End this hub's hold on a name."""

    def record_later(self, driver: str, node: str, thing: Thing, name: str) -> None:
        """Record a thing that a node has made under a name, unless the store has recorded its creation already."""

    async def elections(self) -> Mapping[str, Elected]:
        """The last election of each driver."""

    async def elect(self, driver: str, new: Elected, expected: Elected | None) -> Elected:
        """Record an election, if the driver's last one is still `expected`. Returns the last one."""

    async def close(self) -> None:
        """Make one more attempt at the waiting writes, and close the store."""
