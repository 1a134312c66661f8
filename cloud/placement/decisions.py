"""A decision as data: the call and the view that `route` reads, and the two decisions that it returns. Pure."""

from collections.abc import Container
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple

from cloud.claims.book import Book
from cloud.claims.requests import NO_FIELDS, RequestFields
from cloud.claims.rules import Thing
from cloud.nodes.elections import DriverElection
from cloud.nodes.fleet import Fleet, Member
from cloud.placement.affinity import Affinity
from cloud.proxy.driver_settings import Mode

# The default of `--max-open-creates`: twice the volumes of a large driver, all of them in doubt at once. With the
# longest names these take 25 MB of disk.
MOST_OPEN: Final = 20_000


class CallInfo(NamedTuple):
    """The facts of a call that `route` reads."""

    driver: str
    method: str  # the gRPC path
    fields: RequestFields = NO_FIELDS  # the fields of the request
    named_node: str = ""  # the node that the caller names, or empty
    # the proxy driver's `Mode`. Empty: an operator sends the call by hand, and it counts as auto. If the driver has
    # elections, it is shared, except for a proxy driver's mode local.
    mode: str = Mode.AUTO
    unreadable: str = ""  # why the request does not parse; empty if it does
    # the capabilities without which a driver refuses the call; none if all nodes have all offered capabilities.
    needs: frozenset[str] = frozenset()
    # the name that the node holds while the call is open, such as `CreateVolume pvc-1`; of a shared call also
    # `DeleteVolume vol-1`. Empty: the call takes no name.
    name: str = ""
    is_local: bool = False  # whether the hub has to find the node, because each one has volumes of its own

    @property
    def is_by_hand(self) -> bool:
        """Whether an operator sends the call, and the driver has no elections."""
        return not self.mode


class View(NamedTuple):
    """The hub's state that `route` reads. It is valid until the next await."""

    fleet: Fleet  # the nodes that run the driver, and their reports
    connected: Container[str]  # the nodes that are connected
    book: Book  # the names and ids of the driver
    volumes: Affinity | None = None  # the PersistentVolumes; None if the hub follows none
    loss: str = ""  # the loss of the hub's records, in a sentence (`cloud.leadership.incarnation`); empty: no loss
    most_open: int = MOST_OPEN  # the names of the driver that may have open calls at the same time
    election: DriverElection | None = None  # the election of the driver's node; None: it has none
    # of a deletion that the hub could not send yet: the nodes that have sent a complete list since its first try.
    listed: AbstractSet[str] = frozenset()


class Recording(Enum):
    """When the hub records a call."""

    NEVER = "never: the call makes and deletes nothing that the book knows"
    AHEAD = "the name before a node gets the call, and the ids before the caller gets the success"
    LATE = "the ids of a deletion as AHEAD; a create after its end, if the hub must not forget its outcome (`claims`)"
    NAME_ONLY = "the name before a node gets the call, until the outcome is known; no ids, because every node has them"


class Segment(Enum):
    """How the hub changes the topology in a call (`segment`)."""

    AS_IS = "request and answer pass unchanged"
    ADDED = "the vendor has no topology: the hub removes it from the request, and adds the node's to the answer"
    MISSING = "the hub adds the node's topology to each volume in the answer that has none"


class Route(NamedTuple):
    """Send the call to one node. The other fields say how the hub handles the call on the way."""

    node: str
    member: Member | None  # the node's report; None if it has not reported the driver
    recording: Recording = Recording.NEVER  # when the hub records the call
    deletes: tuple[Thing, ...] = ()  # the things that the hub records as deleted after a success
    segment: Segment = Segment.AS_IS  # how the hub changes the topology in the call
    # of a pinned call: whether each node of the driver has ids of its own, so an answer must not name another node's.
    has_own_ids: bool = False
    epoch: int = 0  # the number of the node's election; 0: the driver has no election
    lease_s: int = 0  # for the `Claim`
    machine: str = ""  # for the `Claim`
    # the nodes that have surely stopped their open calls of the name.
    stopped_nodes: frozenset[str] = frozenset()


class AskAll(NamedTuple):
    """Ask nodes by calls of the hub, and make one answer from theirs (`Placement.answer`)."""

    # the nodes; for a list first the node of the page, then the next ones; for a shared list only the elected node.
    # Empty: the answer is empty, too.
    routes: tuple[Route, ...]
