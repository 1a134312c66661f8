"""A frame: the unit of the session protocol, as a dataclass and as msgpack bytes.

One WebSocket message carries one or more frames, as `common.codec` writes them.

Rules:

* The session answers a frame of an unknown type with `NotUnderstood`, and goes on.
* `WIRE_VERSION` changes only when an old peer would misread a frame. Optional parts are features, listed in the hello.
* tests/unit/test_messages.py has the golden bytes of each frame, so that the diff shows a change of the wire.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from common.codec import LARGEST_NUMBER, MAX_TEXT_BYTES, Codec, pack
from common.status import Status

WIRE_VERSION = 2  # the newest version that this code speaks

# The oldest version that this code still understands. Two peers speak the lower of their two versions.
OLDEST_WIRE_VERSION = 2


class Kind(IntEnum):
    """A stream's purpose. The opener names it, and the acceptor refuses a kind that it does not serve."""

    # One CSI call: one request, any number of answers, a status. `subject` is the driver's name, `method` the path.
    CALL = 1
    REPORT = 2  # edge to hub: each message is the agent's whole report about its drivers (`common.csi.reports`)
    WATCH = 3  # proxy driver to hub: each message of the hub is its newest report about the driver `subject`
    # Edge to hub: the hub sends the objects that concern the node, and the agent keeps them (`objects.sync`). `subject`
    # may be `WITHOUT_CREDENTIALS` (`objects.sync_stream`).
    SYNC = 7
    FACTS = 8  # edge to hub: the agent sends facts about its node, and the hub keeps them (`common.objects.sync`)
    OBSERVE = 9  # edge to hub, in place of FACTS: a kubelet serves the node. The stream carries no message.
    CA = 10  # edge to hub, before it joins: the answer is the hub's CA certificates (`common.net.enrolment`)
    # Edge to hub's join listener: the request has a token and a certificate request, the answer a certificate.
    JOIN = 11
    RENEW = 12  # edge to hub: the same with the node's present key in place of a token; or the node's next key
    ORDER = 13  # operator to hub: `method` is the order's name, the message its arguments as JSON. The answer is JSON.


class Priority(IntEnum):
    """A stream's class on a busy link. A lower class gets fewer turns, but always some (`session.outbox`)."""

    CONTROL = 0
    CALL = 1
    SYNC = 2


class Reason(StrEnum):
    """Why a session ended: the word in a `Goodbye`, and in the metric of ended sessions.

    A closed set. An unknown word of a newer peer is passed on unchanged and counted as `other`.
    """

    LINK_LOST = "link-lost"  # the connection broke, or ended without a goodbye
    PEER_SILENT = "peer-silent"  # the peer sent nothing for twice the keepalive interval
    HELLO_TIMEOUT = "hello-timeout"  # the peer connected and sent no hello
    PROTOCOL_ERROR = "protocol-error"  # the peer broke the rules of the wire, or speaks none of our versions
    REPLACED = "replaced"  # the same peer came back over a new connection
    DRAINED = "drained"  # a side shut down, with every call finished
    STOPPED = "stopped"  # a side shut down
    DONE = "done"  # an operator has its answer
    FAILED = "failed"  # a side ended the link because of a fault in its own program
    ROLE = "role"  # the hello was refused: this listener does not take that role
    NAME = "name"  # the hello was refused: no usable name
    CERTIFICATE = "certificate"  # the hello was refused: it contradicts the certificate
    # The hello was refused: another machine of that name is connected, or a proxy driver of the opposite placement.
    CONFLICT = "conflict"
    STALE = "stale"  # the hello was refused: a later start of the same machine is connected
    DRAINING = "draining"  # the hello was refused: the hub is shutting down
    FULL = "full"  # the hello was refused: the node is new, and the hub knows `--max-nodes` already
    EXPIRED = "expired"  # the peer's certificate has ended
    DENIED = "denied"  # an operator denies the peer's name or certificate, or a later certificate has replaced it
    NOT_LEADING = "not-leading"  # the dialler ends it: this hub is a standby, or another hub leads by now


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of each side. The dialler introduces itself, and the acceptor's hello accepts it.

    An acceptor that was a standby says hello again when it begins to lead: then only `epoch` and `mark` differ.
    """

    version: int  # the newest wire version that the sender speaks
    oldest: int  # the oldest one that it still understands
    role: str  # `edge`, `driver`, `operator` or `hub`; a certificate decides it
    name: str  # the node's, the driver's, or the hub's
    instance: str  # a random id kept in the sender's state directory: tells two machines of one name apart
    boot: int  # counts the sender's starts: same instance, higher boot is the same machine again
    software: str  # name and version, for logs
    features: tuple[str, ...]  # optional parts of the wire that the sender understands
    max_message_bytes: int  # the largest stream message that the sender accepts
    stream_window_bytes: int  # the unconsumed bytes that it accepts on one stream
    session_window_bytes: int  # the same for all streams together
    max_streams: int  # how many of the peer's streams it keeps at once
    placement: str = ""  # from a proxy driver: that of its driver's volumes; empty leaves it to the hub
    beside: bool = False  # the sender's earlier link lives; the side that opens the calls drains it
    # From an agent that heeds `Open.epoch`: it cancels calls with one once it has been without its hub for so long
    # (`--controller-lease`). 0: it knows no epochs, so no election may choose it.
    controller_lease_s: int = 0
    # From the hub to an agent: the mark of its records (`cloud.leadership.incarnation`), which the agent keeps if it is
    # not empty. From an agent: the last one that it got.
    mark: str = ""
    # From the hub: the number of its leadership, above those of all earlier leaders. 0: it is a standby, which serves
    # no stream.
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last frame: the sender ends the session."""

    reason: str  # a `Reason`, or an unknown word of a newer peer
    message: str
    # The last of the receiver's streams that the sender has seen. Later ones crossed this frame on the wire and were
    # never served, as with HTTP/2's GOAWAY. A peer without this field may have served all streams.
    served: int = LARGEST_NUMBER


@dataclass(frozen=True, slots=True)
class Drain:
    """The sender will end the session soon: neither side opens new streams, and open ones finish."""

    message: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Sent after a silence. The peer answers with a `Pong` of the same number."""

    number: int
    of_lease: bool = False  # from an agent: the answer renews its lease, so the hub first makes sure that it leads


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""

    number: int


@dataclass(slots=True)  # not frozen, which would triple the time to make one, and each call makes one at each hop
class Open:
    """A new stream. The dialler's ids are odd, the acceptor's even; each side's ids only grow."""

    stream: int
    kind: int  # a `Kind`, or a newer peer's number
    priority: int  # a `Priority`
    subject: str  # for calls and watches, the driver's name
    method: str  # the gRPC path of a call, else empty
    node: str  # the node that the opener wants, or empty
    call: str  # an id for logs, the same at every hop
    timeout_ms: int  # the remaining time; 0 is no limit. There is no deadline on the wire, because clocks differ
    # From the hub to an agent, of a call of a driver whose storage all nodes reach: the number of the driver's
    # election. The agent refuses a lower number than it has seen for the driver. 0: no election.
    epoch: int = 0
    has_first: bool = False  # `first` is the stream's first message, whole. So most calls are one frame
    first: bytes = b""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream's message. `left` bytes of the message follow in later chunks; 0 ends the message."""

    stream: int
    left: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Credit:
    """The sender has consumed `amount` bytes, so the peer may send as many again. Stream 0 is the whole session."""

    stream: int
    amount: int


@dataclass(frozen=True, slots=True)
class End:
    """The acceptor's last frame of a stream: how it ended (a `common.status.Status`). Exactly one per stream."""

    stream: int
    code: int
    message: str
    origin: str
    has_last: bool = False  # `last` is the stream's last message, whole. So most answers are one frame
    last: bytes = b""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The opener no longer waits. The acceptor still answers with an `End`."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The opener's last frame of a stream, after the `End`, which frees the stream's id. Exactly one per stream."""

    stream: int
    delivered: bool  # the answer reached the caller. If not, the acceptor keeps a result for the retry


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """The answer to a frame of a type that the sender does not know."""

    unknown: int


Frame = Hello | Goodbye | Drain | Ping | Pong | Open | Chunk | Credit | End | Cancel | Ack | NotUnderstood

_OPEN = 5
_CHUNK = 6
_CREDIT = 7
_END = 8
_ACK = 10

TYPES: Final[dict[int, type[Frame]]] = {
    0: Hello,
    1: Goodbye,
    2: Drain,
    3: Ping,
    4: Pong,
    _OPEN: Open,
    _CHUNK: Chunk,
    _CREDIT: Credit,
    _END: End,
    9: Cancel,
    _ACK: Ack,
    11: NotUnderstood,
}

_CODEC: Codec[Frame] = Codec(TYPES)

encode = _CODEC.encode  # returns one frame's bytes
decode = _CODEC.decode  # returns all frames of one WebSocket message, or raises a `RemoteProtocolError`

# The same as type numbers and fields, without an object for each frame: a session takes its frames so.
read = _CODEC.read

Heading = tuple[int, int, int, str, str, str, str, int, int]  # the fields of an `Open` before its message


# The functions below return the same bytes as `encode`, without a frame object: nearly all frames are of these types.


def encode_open(heading: Heading, first: bytes | None = None) -> bytes:
    return pack((_OPEN, *heading, first is not None, first or b""))


def encode_chunk(stream: int, left: int, payload: bytes | memoryview) -> bytes:
    return pack((_CHUNK, stream, left, payload))


def encode_credit(stream: int, amount: int) -> bytes:
    return pack((_CREDIT, stream, amount))


def encode_end(stream: int, status: Status, last: bytes | None = None) -> bytes:
    message = status.message
    origin = status.origin
    if len(message) > MAX_TEXT_BYTES // 4 or len(origin) > MAX_TEXT_BYTES // 4:
        return encode(End(stream, status.code, message, origin, last is not None, last or b""))  # which cuts them
    return pack((_END, stream, status.code, message, origin, last is not None, last or b""))


def encode_ack(stream: int, *, delivered: bool) -> bytes:
    return pack((_ACK, stream, delivered))
