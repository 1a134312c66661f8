"""An operator's order to the hub, and its answer, as dataclasses. `common.pages.json_form` makes JSON of them.

An order's stream has the kind `Kind.ORDER` and the order's name (`order`) as its method.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Protocol


class Order(Protocol):
    """A dataclass with the arguments of one order."""

    order: ClassVar[str]  # the order's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Forget a node that is gone for good, or one driver of it. The answer is `Done`."""

    order: ClassVar[str] = "forget"
    node: str
    driver: str = ""  # empty: the whole node


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Every node is back, so no loss of records stands any more. The answer is `Done`, with the losses that stood."""

    order: ClassVar[str] = "trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Refuse a node, a proxy driver or one certificate from now on, and end its links. The answer is `Done`."""

    order: ClassVar[str] = "deny"
    subject: str  # a node's name, `driver:NAME`, or a certificate's serial number (`serial:HEX`)
    why: str = ""  # the operator's reason; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """Undo a denial, and unlock a node whose copy was seen. The answer is `Done`."""

    order: ClassVar[str] = "allow"
    subject: str  # as of `Deny`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Take a node that is away for dead: its volumes may be detached. The answer is `Done`."""

    order: ClassVar[str] = "fence"
    node: str
    why: str = ""  # the operator's reason; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfence:
    """Take a fence back, or settle it after the node has come back. The answer is `Done`."""

    order: ClassVar[str] = "unfence"
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Make a token with which nodes join. The answer is `NewToken`."""

    order: ClassVar[str] = "token-create"
    node: str  # the name of the one node, or a pattern of the names of new nodes
    drivers: list[str]  # the CSI drivers that its nodes may report; none: every driver
    ttl_s: int  # how long it can be used
    uses: int  # how many nodes may join with it
    replace: bool = False  # the node exists, and a machine joins in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A new token. The hub does not keep its secret."""

    id: str  # no secret
    token: str  # the line for `csi-bridge edge join`
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    """Refuse a token from now on. The answer is `Done`."""

    order: ClassVar[str] = "token-revoke"
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Compare volumes and snapshots with all that refers to them, and change nothing. The answer is `Audited`."""

    order: ClassVar[str] = "audit"
    driver: str = ""  # empty: all of them
    within_s: int = 50  # nodes that have not listed in this time count as not asked
    wanted: str = ""  # an id; the answer also says what refers to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One finding of the leak audit.

    `leak` is `orphan` (nobody refers to the volume), `ghost` (the volume of a PersistentVolume is gone), `stray` (it is
    mounted, and no pod wants it) or `doubt` (a create whose outcome is not known).
    """

    leak: str
    driver: str
    thing: str  # `volume` or `snapshot`; of a doubt, the method
    id: str  # the vendor's id; of a doubt, the name of the create
    nodes: list[str]  # that have it, or would have it
    since: datetime | None  # since when the hub or Kubernetes knows it; None if neither knows
    size_bytes: int | None  # None: nobody tells it
    about: str  # the objects and records that concern it, in words
    settle: str  # the command that settles it


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked:
    """A list that the audit lacks."""

    node: str
    driver: str
    things: str  # `volume` or `snapshot`
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The result of a leak audit. `leaks` and `unasked` have as many entries as an answer holds."""

    began_at: datetime
    ended_at: datetime
    leaks: list[Leak]
    counts: dict[str, int]  # the number of all findings, by `Leak.leak`
    unasked: list[Unasked]  # it calls nothing there a ghost
    notes: list[str]  # all else that it could not judge, a sentence each
    referring: list[str] = field(default_factory=list)  # what refers to the id of `Audit.wanted`, a sentence each


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStorage:
    """Name the storage that only this node has. The node must be denied and away. The answer is `NodeStorage`."""

    order: ClassVar[str] = "own-storage"
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAlone:
    """A snapshot or group snapshot that one node alone has made. `id` is the vendor's."""

    driver: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStorage:
    """The storage that only one node has, as far as the hub knows it."""

    volumes: list[str]  # the UIDs of its PersistentVolumes
    snapshots: list[MadeAlone]
    groups: list[MadeAlone]
    is_known: bool  # whether the hub keeps anything of the node beside its facts, so that it is to be forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Forget the facts of a node that is gone for good, and delete its Node and CSINode if the hub made them.

    Kubernetes then ends the node's pods. The node must be denied and away. The answer is `Done`.
    """

    order: ClassVar[str] = "abandon"
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The hub has carried out an order."""

    said: list[str]  # the result, a sentence a line
