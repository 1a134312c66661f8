"""The hub's pages: `/status`, `/nodes`, `/volumes`, `/facts` and `/denials`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDriver:
    """A proxy driver that is connected to the hub.

    Attributes:
        driver: the name of its CSI driver.
        since: when it connected.
        address: `HOST:PORT`, or `pid N uid N` on the hub's UNIX socket.
        software: its name and version.
        placement: its `--placement`.
    """

    driver: str
    since: datetime
    address: str
    software: str
    placement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStatus:
    """The election of the node that serves a driver whose storage every node reaches.

    Attributes:
        driver: the name of the CSI driver.
        node: the elected node; empty: none was elected yet.
        epoch: the number of the election.
        since: when it was.
        why: its cause.
        trouble: why the node does not serve now; empty if it does.
        lease_s: the controller lease of the elected node's agent; 0: it is away, or announces none.
        standby: the first other nodes that could take over now, by name.
        unfit: without such a node, why the first others could not, by name.
        unmatched: the patterns of `--candidates` and `--prefer` that fit no node of the driver.
    """

    driver: str
    node: str
    epoch: int
    since: datetime | None
    why: str
    trouble: str
    lease_s: int = 0
    standby: list[str] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A peer that the hub refused, and that it has not let in since.

    Attributes:
        role: `edge`, `driver` or `operator`, or any other word of the peer's; empty if it ended before its hello.
        name: the name that the peer gave; empty in that case.
        address: as of a `ProxyDriver`.
        at: when the hub refused it last.
        reason: a word of a closed set (`common.messages.Reason`).
        why: the reason in a sentence.
        times: how often connections of the address ended before a hello, and without an hour between them.
    """

    role: str
    name: str
    address: str
    at: datetime
    reason: str
    why: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialStatus:
    """A node or a certificate that an operator denies: an entry of the page `/denials`.

    Attributes:
        kind: `node` or `serial`.
        subject: the node's name, or the certificate's serial number in lower-case hex.
        at: when the operator decided it.
        why: the operator's reason; may be empty.
    """

    kind: str
    subject: str
    at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStatus:
    """The hub as a whole: the page `/status`.

    Attributes:
        software: the hub's name and version.
        leads: whether it leads. A standby waits, and of all pages it has this one; it knows no nodes and no drivers.
        leader: of a standby: the hub that leads, as the Lease has it; empty: it has not seen one.
        since: since when this hub leads, or of a standby the leader; None: not known.
        links: how many peers are connected to this hub.
        known: how many edge nodes the hub knows.
        connected: how many of them are connected.
        max_nodes: how many the hub may know (`--max-nodes`).
        has_source: whether the hub gets objects from Kubernetes or from manifests.
        epoch: the number of its leadership, which grows with each start of a hub that leads; 0: it is a standby.
        lost: the records that the hub has lost, a sentence each. `csi-bridge trust` settles them.
        trouble: why the hub cannot write its records; empty if it can.
        problems: problems with objects, manifests and the API server, a sentence each.
        drivers: the proxy drivers that are connected.
        elections: who serves the drivers whose storage every node reaches.
        refused: the peers that the hub refused.
        ending: the certificates that end soon or have ended, a sentence each.
        settings: the hub's flags: each one's texts, by its name with underscores.
    """

    software: str
    known: int
    connected: int
    max_nodes: int
    has_source: bool
    leads: bool = True
    leader: str = ""
    since: datetime | None = None
    links: int = 0
    epoch: int = 0
    lost: list[str] = field(default_factory=list)
    trouble: str = ""
    problems: list[str] = field(default_factory=list)
    drivers: list[ProxyDriver] = field(default_factory=list)
    elections: list[ElectionStatus] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    ending: list[str] = field(default_factory=list)
    settings: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A call that failed.

    Attributes:
        at: when it ended.
        driver: the name of its CSI driver.
        method: its gRPC path.
        code: the name of its gRPC status code.
        by: the origin of the status: `vendor`, `edge`, `hub` or `proxy`.
        message: the status's message.
    """

    at: datetime
    driver: str
    method: str
    code: str
    by: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that a node has not answered.

    Attributes:
        driver: the name of its CSI driver.
        method: its gRPC path.
        age_s: how long ago it began; if its caller has tried several times, its first try.
    """

    driver: str
    method: str
    age_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """An edge node that the hub knows: an entry of the page `/nodes`.

    Attributes:
        node: its name.
        connected: whether its agent has a link to the hub.
        fenced: whether an operator takes it for dead (`csi-bridge fence`), and it has shown no sign of life since.
        since: when it connected, or when it left.
        address: the agent's `HOST:PORT`; empty while it is away.
        instance: a random id of the agent's state directory.
        boot: how often the agent of this instance has started.
        software: the agent's name and version; empty while it is away.
        drivers: the CSI drivers that it has ever reported, until an operator lets the hub forget them.
        unreported: those of them that its agent is connected and does not report.
        versions: each driver's version, by its name.
        node_only: those of its drivers that have no controller, and so need no proxy driver.
        streams: how many streams its link has open.
        rights: the drivers that the certificate of its last link names; none: every driver.
        refused: the drivers whose report the hub refuses, each with the reason. The node gets no call of them.
        lacking: by driver: the capabilities that it has on most nodes and lacks on this one.
        serves: the drivers that it is elected to serve.
        problems: more problems with the node's reports and answers, a sentence each.
        conflict: a sentence if a second machine uses this node's name; else empty.
        calls: how many CSI calls are under way on it.
        oldest_call: the oldest call that it has not answered. Its caller may have given up, and may try again.
        last_error: its last failed call, until a later call succeeds.
    """

    node: str
    connected: bool
    since: datetime
    address: str
    instance: str
    boot: int
    software: str
    drivers: list[str]
    unreported: list[str]
    versions: dict[str, str]
    streams: int
    conflict: str
    fenced: bool = False
    node_only: list[str] = field(default_factory=list)
    rights: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    serves: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    calls: int = 0
    oldest_call: OpenCall | None = None
    last_error: FailedCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenJoin:
    """A node that has joined with a token.

    Attributes:
        node: its name.
        at: when it joined.
        address: from where, as `HOST:PORT`; empty if that is not known.
    """

    node: str
    at: datetime
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatus:
    """A token with which nodes join, without its secret: an entry of the page `/tokens`.

    Attributes:
        id: its id.
        nodes: the name of its one node, or a pattern of the names of new nodes.
        replace: whether its node exists, and a machine joins in its place.
        drivers: the CSI drivers that its nodes may report; none: every driver.
        made_at: when an operator made it.
        ends_at: from then on it is refused.
        uses: how many nodes may join with it.
        used: how many have.
        state: `open`, `used up`, `ended` or `revoked`.
        joins: the newest joins with it.
    """

    id: str
    nodes: str
    replace: bool
    drivers: list[str]
    made_at: datetime
    ends_at: datetime
    uses: int
    used: int
    state: str
    joins: list[TokenJoin] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatus:
    """A volume and one node that has to do with it, or no node: an entry of the page `/volumes`.

    Attributes:
        volume: its id at the vendor's driver (CSI's `volume_id`).
        driver: the name of its CSI driver.
        pv: the name of its PersistentVolume; empty if there is none.
        claim: its claim as `NAMESPACE/NAME`; empty if there is none.
        node: the edge node; empty if the hub knows none.
        state: `mounted`, `attached`, `error`, `waiting`, or `unknown` if the node has not told it; of a volume without
            a user the phase of its PersistentVolume in lower case, `known` or `no PV`.
        pods: the pods of the node that use it, as `NAMESPACE/NAME`.
        error: why attaching, detaching or mounting it fails; else empty.
    """

    volume: str
    driver: str
    pv: str
    claim: str
    node: str
    state: str
    pods: list[str]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A fact that an edge node sent to the hub: an entry of the page `/facts`, or of `/facts/NODE`.

    Attributes:
        node: the edge node.
        told_at: when the hub got it.
        object: the Kubernetes object that it is about, with the fields that the node told.
    """

    node: str
    told_at: datetime
    object: dict[str, Any]
