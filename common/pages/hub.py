"""The hub's pages: `/status`, `/nodes`, `/volumes`, `/facts` and `/denials`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDriver:
    """A proxy driver that is connected to the hub."""

    driver: str  # the name of its CSI driver
    since: datetime  # when it connected
    address: str  # `HOST:PORT`, or `pid N uid N` on the hub's UNIX socket
    software: str  # its name and version
    placement: str  # its `--placement`


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStatus:
    """The election of the node that serves a driver whose storage every node reaches."""

    driver: str  # the name of the CSI driver
    node: str  # the elected node; empty: none was elected yet
    epoch: int  # the number of the election
    since: datetime | None  # when it was
    why: str  # its cause
    trouble: str  # why the node does not serve now; empty if it does
    lease_s: int = 0  # the controller lease of the elected node's agent; 0: it is away, or announces none
    standby: list[str] = field(default_factory=list)  # the first other nodes that could take over now, by name
    unfit: dict[str, str] = field(default_factory=dict)  # without such a node, why the first others could not, by name
    # the patterns of `--candidates` and `--prefer` that fit no node of the driver.
    unmatched: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A peer that the hub refused, and that it has not let in since."""

    role: str  # `edge`, `driver` or `operator`, or any other word of the peer's; empty if it ended before its hello
    name: str  # the name that the peer gave; empty in that case
    address: str  # as of a `ProxyDriver`
    at: datetime  # when the hub refused it last
    reason: str  # a word of a closed set (`common.messages.Reason`)
    why: str  # the reason in a sentence
    times: int = 1  # how often connections of the address ended before a hello, and without an hour between them


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialStatus:
    """A node or a certificate that an operator denies: an entry of the page `/denials`."""

    kind: str  # `node` or `serial`
    subject: str  # the node's name, or the certificate's serial number in lower-case hex
    at: datetime  # when the operator decided it
    why: str  # the operator's reason; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStatus:
    """The hub as a whole: the page `/status`."""

    software: str  # the hub's name and version
    known: int  # how many edge nodes the hub knows
    connected: int  # how many of them are connected
    max_nodes: int  # how many the hub may know (`--max-nodes`)
    has_source: bool  # whether the hub gets objects from Kubernetes or from manifests
    # whether it leads. A standby waits, and of all pages it has this one; it knows no nodes and no drivers.
    leads: bool = True
    leader: str = ""  # of a standby: the hub that leads, as the Lease has it; empty: it has not seen one
    since: datetime | None = None  # since when this hub leads, or of a standby the leader; None: not known
    links: int = 0  # how many peers are connected to this hub
    epoch: int = 0  # the number of its leadership, which grows with each start of a hub that leads; 0: it is a standby
    # the records that the hub has lost, a sentence each. `csi-bridge trust` settles them.
    lost: list[str] = field(default_factory=list)
    trouble: str = ""  # why the hub cannot write its records; empty if it can
    # problems with objects, manifests and the API server, a sentence each.
    problems: list[str] = field(default_factory=list)
    drivers: list[ProxyDriver] = field(default_factory=list)  # the proxy drivers that are connected
    # who serves the drivers whose storage every node reaches.
    elections: list[ElectionStatus] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)  # the peers that the hub refused
    ending: list[str] = field(default_factory=list)  # the certificates that end soon or have ended, a sentence each
    # the hub's flags: each one's texts, by its name with underscores.
    settings: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A call that failed."""

    at: datetime  # when it ended
    driver: str  # the name of its CSI driver
    method: str  # its gRPC path
    code: str  # the name of its gRPC status code
    by: str  # the origin of the status: `vendor`, `edge`, `hub` or `proxy`
    message: str  # the status's message


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that a node has not answered."""

    driver: str  # the name of its CSI driver
    method: str  # its gRPC path
    age_s: int  # how long ago it began; if its caller has tried several times, its first try


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """An edge node that the hub knows: an entry of the page `/nodes`."""

    node: str  # its name
    connected: bool  # whether its agent has a link to the hub
    since: datetime  # when it connected, or when it left
    address: str  # the agent's `HOST:PORT`; empty while it is away
    instance: str  # a random id of the agent's state directory
    boot: int  # how often the agent of this instance has started
    software: str  # the agent's name and version; empty while it is away
    drivers: list[str]  # the CSI drivers that it has ever reported, until an operator lets the hub forget them
    unreported: list[str]  # those of them that its agent is connected and does not report
    versions: dict[str, str]  # each driver's version, by its name
    streams: int  # how many streams its link has open
    conflict: str  # a sentence if a second machine uses this node's name; else empty
    # whether an operator takes it for dead (`csi-bridge fence`), and it has shown no sign of life since.
    fenced: bool = False
    # those of its drivers that have no controller, and so need no proxy driver.
    node_only: list[str] = field(default_factory=list)
    # the drivers that the certificate of its last link names; none: every driver.
    rights: list[str] = field(default_factory=list)
    # the drivers whose report the hub refuses, each with the reason. The node gets no call of them.
    refused: dict[str, str] = field(default_factory=dict)
    # by driver: the capabilities that it has on most nodes and lacks on this one.
    lacking: dict[str, list[str]] = field(default_factory=dict)
    serves: list[str] = field(default_factory=list)  # the drivers that it is elected to serve
    # more problems with the node's reports and answers, a sentence each.
    problems: list[str] = field(default_factory=list)
    calls: int = 0  # how many CSI calls are under way on it
    # the oldest call that it has not answered. Its caller may have given up, and may try again.
    oldest_call: OpenCall | None = None
    last_error: FailedCall | None = None  # its last failed call, until a later call succeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenJoin:
    """A node that has joined with a token."""

    node: str  # its name
    at: datetime  # when it joined
    address: str  # from where, as `HOST:PORT`; empty if that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatus:
    """A token with which nodes join, without its secret: an entry of the page `/tokens`."""

    id: str  # its id
    nodes: str  # the name of its one node, or a pattern of the names of new nodes
    replace: bool  # whether its node exists, and a machine joins in its place
    drivers: list[str]  # the CSI drivers that its nodes may report; none: every driver
    made_at: datetime  # when an operator made it
    ends_at: datetime  # from then on it is refused
    uses: int  # how many nodes may join with it
    used: int  # how many have
    state: str  # `open`, `used up`, `ended` or `revoked`
    joins: list[TokenJoin] = field(default_factory=list)  # the newest joins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatus:
    """A volume and one node that has to do with it, or no node: an entry of the page `/volumes`."""

    volume: str  # its id at the vendor's driver (CSI's `volume_id`)
    driver: str  # the name of its CSI driver
    pv: str  # the name of its PersistentVolume; empty if there is none
    claim: str  # its claim as `NAMESPACE/NAME`; empty if there is none
    node: str  # the edge node; empty if the hub knows none
    # `mounted`, `attached`, `error`, `waiting`, or `unknown` if the node has not told it; of a volume without a user
    # the phase of its PersistentVolume in lower case, `known` or `no PV`.
    state: str
    pods: list[str]  # the pods of the node that use it, as `NAMESPACE/NAME`
    error: str  # why attaching, detaching or mounting it fails; else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A fact that an edge node sent to the hub: an entry of the page `/facts`, or of `/facts/NODE`."""

    node: str  # the edge node
    told_at: datetime  # when the hub got it
    object: dict[str, Any]  # the Kubernetes object that it is about, with the fields that the node told
