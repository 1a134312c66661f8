"""An operator's order to the hub, and its answer, as dataclasses. `common.pages.json_form` makes JSON of them.

An order's stream has the kind `Kind.ORDER` and the order's name (`order`) as its method.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Protocol


class Order(Protocol):
    """A dataclass with the arguments of one order."""

    order: ClassVar[str]
    """The order's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Forget a node that is gone for good, or one driver of it. The answer is `Done`.

    Attributes:
        node: the node's name.
        driver: the driver; empty: the whole node.
    """

    order: ClassVar[str] = "forget"
    node: str
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Every node is back, so no loss of records stands any more. The answer is `Done`, with the losses that stood."""

    order: ClassVar[str] = "trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Refuse a node, a proxy driver or one certificate from now on, and end its links. The answer is `Done`.

    Attributes:
        subject: a node's name, `driver:NAME`, or a certificate's serial number (`serial:HEX`).
        why: the operator's reason; may be empty.
    """

    order: ClassVar[str] = "deny"
    subject: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """Undo a denial, and unlock a node whose copy was seen. The answer is `Done`.

    Attributes:
        subject: as of `Deny`.
    """

    order: ClassVar[str] = "allow"
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Take a node that is away for dead: its volumes may be detached. The answer is `Done`.

    Attributes:
        node: the node's name.
        why: the operator's reason; may be empty.
    """

    order: ClassVar[str] = "fence"
    node: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfence:
    """Take a fence back, or settle it after the node has come back. The answer is `Done`.

    Attributes:
        node: the node's name.
    """

    order: ClassVar[str] = "unfence"
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Make a token with which nodes join. The answer is `NewToken`.

    Attributes:
        node: the name of the one node, or a pattern of the names of new nodes.
        drivers: the CSI drivers that its nodes may report; none: every driver.
        ttl_s: how long it can be used, in seconds.
        uses: how many nodes may join with it.
        replace: the node exists, and a machine joins in its place.
    """

    order: ClassVar[str] = "token-create"
    node: str
    drivers: list[str]
    ttl_s: int
    uses: int
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A new token. The hub does not keep its secret.

    Attributes:
        id: its id, which is no secret.
        token: the line for `csi-bridge edge join`.
        ends_at: from then on it is refused.
    """

    id: str
    token: str
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    """Refuse a token from now on. The answer is `Done`.

    Attributes:
        id: the token's id.
    """

    order: ClassVar[str] = "token-revoke"
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Compare volumes and snapshots with all that refers to them, and change nothing. The answer is `Audited`.

    Attributes:
        driver: the driver; empty: all of them.
        within_s: nodes that have not listed in this time, in seconds, count as not asked.
        wanted: an id; the answer also says what refers to it.
    """

    order: ClassVar[str] = "audit"
    driver: str = ""
    within_s: int = 50
    wanted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One finding of the leak audit.

    Attributes:
        leak: `orphan`: nobody refers to the volume; `ghost`: the volume of a PersistentVolume is gone; `stray`: it is
            mounted, and no pod wants it; `doubt`: a create whose outcome is not known.
        driver: the driver.
        thing: `volume` or `snapshot`; of a doubt, the method.
        id: the vendor's id; of a doubt, the name of the create.
        nodes: the nodes that have it, or would have it.
        since: since when the hub or Kubernetes knows it; None if neither knows.
        size_bytes: its size; None if nobody tells it.
        about: the objects and records that concern it, in words.
        settle: the command that settles it.
    """

    leak: str
    driver: str
    thing: str
    id: str
    nodes: list[str]
    since: datetime | None
    size_bytes: int | None
    about: str
    settle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked:
    """A list that the audit lacks.

    Attributes:
        node: the node.
        driver: the driver.
        things: `volume` or `snapshot`.
        why: why it did not list them, in words.
    """

    node: str
    driver: str
    things: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The result of a leak audit.

    Attributes:
        began_at: when it began.
        ended_at: when it ended.
        leaks: the findings, as many as an answer holds.
        counts: the number of all findings, by `Leak.leak`.
        unasked: the lists that it lacks, as many as an answer holds. It calls nothing there a ghost.
        notes: all else that it could not judge, a sentence each.
        referring: what refers to the id of `Audit.wanted`, a sentence each.
    """

    began_at: datetime
    ended_at: datetime
    leaks: list[Leak]
    counts: dict[str, int]
    unasked: list[Unasked]
    notes: list[str]
    referring: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStorage:
    """Name the storage that only this node has. The node must be denied and away. The answer is `NodeStorage`.

    Attributes:
        node: the node's name.
    """

    order: ClassVar[str] = "own-storage"
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAlone:
    """A snapshot or group snapshot that one node alone has made.

    Attributes:
        driver: the driver.
        id: the vendor's id.
    """

    driver: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStorage:
    """The storage that only one node has, as far as the hub knows it.

    Attributes:
        volumes: the UIDs of its PersistentVolumes.
        snapshots: the snapshots that it alone has made.
        groups: the group snapshots that it alone has made.
        is_known: whether the hub keeps anything of the node beside its facts, so that it is to be forgotten.
    """

    volumes: list[str]
    snapshots: list[MadeAlone]
    groups: list[MadeAlone]
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Forget the facts of a node that is gone for good, and delete its Node and CSINode if the hub made them.

    Kubernetes then ends the node's pods. The node must be denied and away. The answer is `Done`.

    Attributes:
        node: the node's name.
    """

    order: ClassVar[str] = "abandon"
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The hub has carried out an order.

    Attributes:
        said: the result, a sentence a line.
    """

    said: list[str]
