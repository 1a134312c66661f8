"""A decision as data: the call, the view that it is made by, and its two forms. Pure."""

from collections.abc import Container
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple

from cloud.claims.book import Book
from cloud.claims.requests import NOTHING_ASKED, Whereabouts
from cloud.claims.rules import Thing
from cloud.nodes.elections import DriverElection
from cloud.nodes.fleet import Fleet, Member
from cloud.placement.affinity import Affinity
from cloud.proxy.driver_settings import Mode

# The default of `--max-open-creates`: twice the volumes of a large driver, all of them in doubt at once. With the
# longest names these take 25 MB of disk.
MOST_OPEN: Final = 20_000


class CallInfo(NamedTuple):
    """The facts of a call that decide its route."""

    driver: str
    method: str  # the gRPC path
    fields: Whereabouts = NOTHING_ASKED  # the facts of the request
    named_node: str = ""  # the node that the caller names, or empty
    # a `Mode` of the proxy driver's; empty: an operator sends the call by hand, and it counts as auto. Shared also if
    # an operator sends it, and the driver has an elected node.
    mode: str = Mode.AUTO
    unreadable: str = ""  # why the request does not parse; empty if it does
    # the capabilities without which a driver refuses the call; none if each node has all that is offered.
    needs: frozenset[str] = frozenset()
    name: str = ""  # the name that the node has to hold; empty: none
    is_placed: bool = False  # whether the hub has to find the node, because each one has volumes of its own

    @property
    def is_by_hand(self) -> bool:
        """Whether an operator sends it."""
        return not self.mode


class View(NamedTuple):
    """The state that a decision is made by. It is valid until the next await."""

    fleet: Fleet  # the nodes that run the driver, and their reports
    connected: Container[str]  # the nodes that are connected
    book: Book  # the names and ids of the driver
    volumes: Affinity | None = None  # the PersistentVolumes; None if the hub follows none
    loss: str = ""  # what the hub's records have lost, in a sentence (`cloud.leadership.incarnation`); empty: nothing
    most_open: int = MOST_OPEN  # the names that all nodes may hold for open creates of the driver
    election: DriverElection | None = None  # the election of the driver's serving node; None: it has none
    # the nodes whose complete lists began after the call, or the first try of it, had come. Only of a deletion that the
    # hub could not send yet.
    listed: AbstractSet[str] = frozenset()


class Keeping(Enum):
    """When the records learn of a call's outcome."""

    NEVER = "the call makes and deletes nothing that the book knows"
    FIRST = "the name is claimed before the call is sent, and its success is recorded before the caller gets it"
    LATE = "the exemption for pinned creates in `claims`"
    OPEN = "the name is claimed before the call is sent, and freed when its outcome is known; the book keeps no ids"


class Segment(Enum):
    """How the hub changes the topology in a call (`segment`)."""

    AS_IS = "request and answer pass unchanged"
    ADDED = "the vendor has no topology: it is removed from the request and added to the answer"
    MISSING = "the answer gets the node's topology where the vendor gives a volume none"


class Route(NamedTuple):
    """The route of a call: its node, and how the hub handles the call on the way."""

    node: str
    member: Member | None  # its reports; None if it has not reported the driver
    keeping: Keeping = Keeping.NEVER  # when the records learn of the outcome
    deletes: tuple[Thing, ...] = ()  # the ids that are recorded as deleted after a success
    segment: Segment = Segment.AS_IS  # how the topology in it changes
    has_own_ids: bool = False  # whether the ids of this node are no other node's although the hub did not choose it
    epoch: int = 0  # the number of the election that the call is sent by; 0: the driver has none
    lease_s: int = 0  # as of the `Claim`
    machine: str = ""  # as of the `Claim`
    # nodes whose open calls do not count, because they cannot carry the call out any more
    stopped_nodes: frozenset[str] = frozenset()


class AskAll(NamedTuple):
    """Ask nodes, and answer from their answers (`Placement.answer`)."""

    # the nodes; for a list that of the page, and the next ones. None: no node has anything of it.
    routes: tuple[Route, ...]
