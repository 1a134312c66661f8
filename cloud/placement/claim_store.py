"""The claim store: keeps which node holds a create's name and which nodes have an id. A Protocol for all hubs.

    name    driver, method and name of a create. Its entry: the nodes that may have carried it out.
    id      driver, kind and id of a thing. Its entry: the nodes that have it, or had it.

Rules:

* A change that another hub can contradict is a compare-and-set: the caller passes the entry that it decided by. If the
  entry is another one by then, the store changes nothing (`HeldBy`).
* A hub with an open create holds the name (`Hold`), and so does a node with a thing that was made under it. No second
  node can claim the name. Two nodes hold it only after two hubs used the exemption of `pending`; both then show.
* An id may have several holders. None hides another one, so a conflict stays visible until an operator settles it.
* `look` sees every change that was confirmed before it began, by any hub, and this hub's own writes of the last group.
* The writes of the last group (`…_later`) need no answer. The store retries them until they work. This hub sees them at
  once, other hubs once they are written. They are lost if the hub ends before.
* Each entry names its `owner`, the hub that wrote it, and an `epoch`, which grows with each write of that owner.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from cloud.placement.requests import Thing

GONE_S = 3_600.0
"""How long the store remembers a deleted id. The sidecars' resync is 15 minutes
(docs/csi-contract.md#a-deleted-id-keeps-its-node-for-an-hour)."""

E = TypeVar("E")


class Hold(NamedTuple):
    """One hub's hold on a name: a create may have reached the node, and its outcome is open.

    Attributes:
        node: the node.
        epoch: grows with each hold of the same owner.
    """

    node: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class NameEntry:
    """All that holds a name.

    Attributes:
        holds: open creates, by owner.
        made: the nodes with things that were made under the name.
    """

    holds: Mapping[str, Hold] = field(default_factory=dict)
    made: frozenset[str] = frozenset()

    @property
    def nodes(self) -> list[str]:
        """The nodes that hold the name, sorted."""
        return sorted({*self.made, *(hold.node for hold in self.holds.values())}) if self.holds or self.made else []


@dataclass(frozen=True, slots=True)
class Holding:
    """A node's holding of an id.

    Attributes:
        name: method and name of the create that made the thing; empty if only the node's list tells of it.
        gone: when it was deleted, in seconds since the epoch; 0 while it exists.
        owner: the hub that wrote this.
        epoch: grows with each write of the same owner.
    """

    name: str = ""
    gone: float = 0.0
    owner: str = ""
    epoch: int = 0

    @property
    def is_made(self) -> bool:
        """Whether it exists, and a hub saw its creation."""
        return bool(self.name) and not self.gone

    @property
    def is_listed_only(self) -> bool:
        """Whether only the node's list tells of it."""
        return not (self.name or self.gone)


@dataclass(frozen=True, slots=True)
class IdEntry:
    """The holders of an id, by node."""

    holders: Mapping[str, Holding] = field(default_factory=dict)

    @property
    def made(self) -> list[str]:
        """The nodes where a hub saw its creation, sorted."""
        return sorted(node for node, holding in self.holders.items() if holding.is_made)

    @property
    def listed(self) -> list[str]:
        """The nodes that have it according to their list only, sorted."""
        return sorted(node for node, holding in self.holders.items() if holding.is_listed_only)

    @property
    def deleted(self) -> list[str]:
        """The nodes where a hub saw its deletion within the last hour, sorted."""
        return sorted(node for node, holding in self.holders.items() if holding.gone)

    def replaced(self, node: str, holding: Holding | None) -> "IdEntry":
        """The entry with another holding of a node (None: none)."""
        others = {other: held for other, held in self.holders.items() if other != node}
        return IdEntry({**others, node: holding} if holding is not None else others)

    def has(self, node: str) -> bool:
        """Whether a node has it, according to the store."""
        return node in self.holders and not self.holders[node].gone


@dataclass(frozen=True, slots=True)
class Claimed(Generic[E]):
    """The store made the change; `entry` is the new state."""

    entry: E


@dataclass(frozen=True, slots=True)
class HeldBy(Generic[E]):
    """The store changed nothing: `entry` is the present state, and not the one that the caller expected."""

    entry: E


NO_NAME = NameEntry()
NO_ID = IdEntry()


@dataclass(frozen=True, slots=True)
class Standing:
    """The store's answer about one call's name and ids, at one moment.

    Attributes:
        name: the name's entry.
        ids: the ids' entries.
        nodes: all nodes with things of the driver.
        lists: node and kind of each list of the driver that the store has.
    """

    name: NameEntry = NO_NAME
    ids: Mapping[Thing, IdEntry] = field(default_factory=dict)
    nodes: AbstractSet[str] = frozenset()
    lists: AbstractSet[tuple[str, str]] = frozenset()


NOTHING = Standing()
"""For a call that needs no claim."""

Place = tuple[str, Thing, str]
"""Driver, thing and node."""


class ClaimStore(Protocol):
    """Keeps names and ids for all hubs.

    Every awaited method raises `PlacementNotKept` if the store cannot be reached or written; then it changed nothing.

    Attributes:
        owner: this hub, in the entries that it writes.
    """

    owner: str

    def lost(self) -> tuple[str, ...]:
        """The losses of names and ids, in sentences, until an operator runs `csi-bridge trust`."""

    async def trust(self) -> tuple[str, ...]:
        """Clear the losses, because an operator says that nothing is missing; return them.

        Raises:
            OSError: the store cannot write that, and the losses stand.
        """

    async def look(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """Read a name (empty: none) and ids of a driver."""

    async def claim(
        self, driver: str, name: str, node: str, expected: NameEntry
    ) -> Claimed[NameEntry] | HeldBy[NameEntry]:
        """Hold a name for a node, if its entry is still `expected` and no other node holds it.

        If the caller is cancelled, the store may have written the hold: use `free_later`.
        """

    async def record(
        self, driver: str, node: str, new: Mapping[Thing, Holding | None], expected: Mapping[Thing, IdEntry]
    ) -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
        """Set a node's holding of ids (None: remove it), all or none, if the node's old holdings are as `expected`.

        The entries in the result show the other holders as well. Cancelling the caller does not stop the change.
        """

    async def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        """Replace a node's list of one kind. An id that was deleted since `began` stays deleted."""

    async def forget(self, node: str, driver: str = "") -> None:
        """Remove everything of a node, or of one driver there."""

    async def knows(self, node: str, driver: str = "") -> bool:
        """Whether the store has anything of a node, or of one driver there."""

    async def existing(self) -> list[Place]:
        """Every thing that exists, and its nodes."""

    def hold_later(self, driver: str, name: str, node: str) -> None:
        """Hold a name for a node, even if another node holds it: something may exist there."""

    def free_later(self, driver: str, name: str) -> None:
        """End this hub's hold on a name."""

    def record_later(self, driver: str, node: str, thing: Thing, name: str) -> None:
        """Record a thing that was made, unless the store has recorded its creation."""

    async def close(self) -> None:
        """Write the changes that wait, as far as that works, and close the store."""
