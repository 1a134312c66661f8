"""A decision as data: the call and the snapshot that it is made by, and its four forms. Pure."""

from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, NamedTuple, Protocol

from cloud.election import Elected
from cloud.placement.claim_store import NOTHING, USUAL, Hold, Standing, Terms
from cloud.placement.fleet import Fleet, Member
from cloud.placement.requests import LISTINGS, NOTHING_ASKED, Thing, Whereabouts
from common.errors import CallError

MOST_OPEN: Final = 20_000
"""The default of `--max-open-creates`: twice the volumes of a large driver, all of them in doubt at once. With the
longest names these take 25 MB of disk."""


class Mode(StrEnum):
    """How a driver's volumes are placed; `--placement` of its proxy driver."""

    AUTO = "auto"
    PINNED = "pinned"
    LOCAL = "local"
    SHARED = "shared"


class Ask(NamedTuple):
    """A call that needs a node.

    Attributes:
        driver: the driver.
        method: the gRPC path.
        asked: the facts of the request.
        wanted: the node that the caller names, or empty.
        mode: a `Mode` of the proxy driver's; empty: an operator sends the call by hand, and it counts as auto. Shared
            also if an operator sends it, and the driver has an elected node.
        unreadable: why the request does not parse; empty if it does.
        needs: the capabilities without which a driver refuses the call; none if each node has all that is offered.
    """

    driver: str
    method: str
    asked: Whereabouts = NOTHING_ASKED
    wanted: str = ""
    mode: str = Mode.AUTO
    unreadable: str = ""
    needs: frozenset[str] = frozenset()

    @property
    def is_by_hand(self) -> bool:
        """Whether an operator sends it."""
        return not self.mode

    @property
    def is_shared(self) -> bool:
        """Whether the elected node serves it."""
        return self.mode == Mode.SHARED

    @property
    def name(self) -> str:
        """The name that the node has to hold in the claim store; empty: none."""
        return self.asked.name or (self.asked.key if self.is_shared else "")

    @property
    def things(self) -> Iterable[Thing]:
        """Every thing whose node the decision depends on."""
        if self.is_shared:
            return ()
        return dict.fromkeys((*self.asked.things, *self.asked.parts, *self.asked.ends))

    @property
    def needs_claims(self) -> bool:
        """Whether the decision depends on the claim store."""
        asked = self.asked
        if self.is_shared:
            return bool(self.name)
        return bool(asked.name or asked.things or asked.parts or asked.ends or self.method in LISTINGS)


@dataclass(frozen=True, slots=True)
class Fit:
    """The nodes of a fleet that a volume is for, each in the order of their names.

    Attributes:
        named: those that PersistentVolumes name. One that may be used anywhere names none.
        possible: those that no PersistentVolume rules out.
    """

    named: list[str]
    possible: list[str]


class Volumes(Protocol):
    """The PersistentVolumes, for questions about their nodeAffinity (`affinity.Affinity`)."""

    @property
    def is_ready(self) -> bool:
        """Whether the hub has read every PersistentVolume."""

    def fit(self, handle: str, driver: str, fleet: Fleet) -> Fit:
        """The nodes that PersistentVolumes of a handle are for."""

    def allows(self, handle: str, driver: str, member: Member, fleet: Fleet) -> bool:
        """Whether no PersistentVolume of a handle rules a node out."""

    def unknown_labels(self, handle: str, driver: str, fleet: Fleet, nodes: Iterable[str]) -> dict[str, list[str]]:
        """By node: the requested labels that the node may have or not."""


class Election(Protocol):
    """The election of a driver's serving node (`elections.DriverElection`)."""

    @property
    def elected(self) -> Elected | None:
        """The last election; None: there was none."""

    def why_nobody(self) -> str:
        """Why there was none."""

    def lease_s(self, node: str) -> int:
        """How long a node's agent may go on with a call without the hub; 0: it has not said that."""

    def machine(self, node: str) -> str:
        """The instance of a node's agent that was connected last; empty: nobody knows."""

    def stops_at(self, hold: Hold) -> float:
        """When the machine of a hold has surely stopped its call, in seconds since the epoch.

        Infinity: it may be connected, or time alone proves nothing.
        """

    def has_stopped(self, hold: Hold) -> bool:
        """Whether that time is over."""


class Snapshot(NamedTuple):
    """The state that a decision is made by. Its views are valid until the next await.

    Attributes:
        fleet: the nodes that run the driver, and their reports.
        connected: the nodes that are connected.
        claims: the names and ids of the call.
        volumes: the PersistentVolumes; None if the hub follows none.
        lost_reports: the hub's losses of nodes' reports, in sentences.
        lost_claims: the claim store's losses, in sentences.
        most_open: the names that all nodes may hold for open creates of the driver.
        election: the election of the driver's serving node; None: it has none.
        listed: the nodes whose complete lists began after the call, or the first try of it, had come. Only of a
            deletion that the hub could not send yet.
    """

    fleet: Fleet
    connected: Container[str]
    claims: Standing = NOTHING
    volumes: Volumes | None = None
    lost_reports: tuple[str, ...] = ()
    lost_claims: tuple[str, ...] = ()
    most_open: int = MOST_OPEN
    election: Election | None = None
    listed: AbstractSet[str] = frozenset()


class Keeping(Enum):
    """When the claim store learns of a call's outcome."""

    NEVER = "the call makes and ends nothing that the store knows"
    FIRST = "the name is claimed before the call is sent, and its success is recorded before the caller gets it"
    LATE = "see the exemption in `pending`"
    OPEN = "the name is claimed before the call is sent, and freed when its outcome is known; the store keeps no ids"


class Segment(Enum):
    """How the hub changes the topology in a call (`segment`)."""

    AS_IS = "request and answer pass unchanged"
    ADDED = "the vendor has no topology: it is removed from the request and added to the answer"
    MISSING = "the answer gets the node's topology where the vendor gives a volume none"


class Send(NamedTuple):
    """Send the call to a node.

    Attributes:
        node: the node.
        member: its reports; None if it has not reported the driver.
        is_placed: whether the hub chose the node, because each node has volumes of its own.
        keeping: when the claim store learns of the outcome.
        ends: the ids that the store records as deleted after a success.
        segment: how the topology in it changes.
        has_own_ids: whether the ids of this node are no other node's although the hub did not choose it.
        epoch: the number of the election that the call is sent by; 0: the driver has none.
        terms: the terms of the claim.
    """

    node: str
    member: Member | None
    is_placed: bool = False
    keeping: Keeping = Keeping.NEVER
    ends: tuple[Thing, ...] = ()
    segment: Segment = Segment.AS_IS
    has_own_ids: bool = False
    epoch: int = 0
    terms: Terms = USUAL

    @property
    def is_exclusive(self) -> bool:
        """Whether an id that the node makes cannot be another node's. With shared storage it can."""
        return self.is_placed or self.has_own_ids

    @property
    def passes(self) -> bool:
        """Whether the call passes unchanged, and the claim store learns nothing of it."""
        return self.keeping is Keeping.NEVER and self.segment is Segment.AS_IS


class AskAll(NamedTuple):
    """Ask nodes, and answer from their answers (`fan_out`).

    Attributes:
        sends: the nodes; for a list that of the page, and the next ones. None: no node has anything of it.
    """

    sends: tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class AskForLists:
    """Ask nodes for their lists in the background, and refuse the call now; a retry finds the thing.

    Attributes:
        kind: the kind of things.
        nodes: connected nodes whose driver can list them.
        error: the refusal.
    """

    kind: str
    nodes: tuple[str, ...]
    error: CallError


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send the call to no node.

    Attributes:
        error: the reason.
        node: the node that the call is for, if that is decided.
    """

    error: CallError
    node: str = ""


Decision = Send | AskAll | AskForLists | Refuse
