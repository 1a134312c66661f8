"""A frame: what crosses a session, as frozen dataclasses and as msgpack bytes.

One WebSocket message carries one or more frames, one after another. A frame is a msgpack array: the frame's type
number, then its fields in the order of the dataclass.

Rules:

* Decoding is strict: a wrong type, a missing field, a negative number or a cut-off frame is a `RemoteProtocolError`
  that says which frame and which field.
* A frame may end with fields that we do not know: a newer peer's. They are ignored. New fields go to the end and have
  a default.
* A frame type that we do not know is `UnknownFrame`; the session answers it with `NotUnderstood` and goes on.
* `WIRE_VERSION` changes only when an old peer would misread a frame. What a peer may leave out is a feature, named in
  the hello's list.
* Golden bytes of each frame are in tests/unit/test_messages.py: a change of the wire shows in the diff.
"""

import operator
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, get_type_hints

import msgpack

from common.errors import RemoteProtocolError

WIRE_VERSION = 1
"""What this code speaks."""

OLDEST_WIRE_VERSION = 1
"""The oldest version that this code still understands. Two peers speak the lower of their two versions."""

MAX_TEXT_BYTES = 65_536
"""The longest string in a frame: status messages are for people, and a vendor's 3 MB text helps nobody."""

_LARGEST_NUMBER = 2**63 - 1
"""No number in a frame is larger, and none is negative."""

_MAX_FRAMES = 16_384
"""The most frames in one message, so that none holds the loop up for long. A chunk of acks has 4,000."""

_MAX_ITEMS = 256
"""The longest array and map: msgpack reserves memory for what an array promises, at each of 1,000 nested levels."""


class Kind(IntEnum):
    """What a stream is for; the opener says so, and the acceptor refuses a kind that it does not serve."""

    CALL = 1
    """One CSI call: one request, any number of answers, a status. `subject` is the driver's name, `method` the path."""
    REPORT = 2
    """Edge to hub: what an agent knows of its drivers. Each message is all of it (`common.reports`)."""
    WATCH = 3
    """Proxy driver to hub: each message is what is known of `subject` now (`common.reports`)."""
    STATUS = 4
    """Operator to hub: its state as JSON objects, a part in each message; lists of one name are one list."""
    FORGET = 5
    """Operator to hub: `node` is gone for good, or no longer runs the driver `subject`. The status is the answer."""
    TRUST = 6
    """Operator to hub: every node is back, so nothing is lost any more. Answered with what was lost, as JSON."""


class Priority(IntEnum):
    """Which stream goes first when the link is busy. A lower class is never starved (see the session's scheduler)."""

    CONTROL = 0
    CALL = 1
    SYNC = 2


class Reason(StrEnum):
    """Why a session ended: the word in a `Goodbye`, in `session.Closed` and in the metric of ended sessions.

    A closed set. A peer's other word (a newer peer's) is passed on as it came and counted as `other`.
    """

    LINK_LOST = "link-lost"
    """The connection broke, or ended without a goodbye."""
    PEER_SILENT = "peer-silent"
    """Nothing came for twice the keepalive interval."""
    HELLO_TIMEOUT = "hello-timeout"
    """Connected, and then no hello."""
    PROTOCOL_ERROR = "protocol-error"
    """The peer broke the rules of the wire, or speaks none of our versions."""
    REPLACED = "replaced"
    """The same peer came back over a new connection."""
    DRAINED = "drained"
    """A side shut down, with every call finished."""
    STOPPED = "stopped"
    """A side shut down."""
    DONE = "done"
    """An operator has its answer."""
    ROLE = "role"
    """The hello was refused: not a role for this way in."""
    NAME = "name"
    """The hello was refused: no usable name."""
    CERTIFICATE = "certificate"
    """The hello was refused: it says something else than the certificate."""
    CONFLICT = "conflict"
    """The hello was refused: another machine of that name is connected."""
    STALE = "stale"
    """The hello was refused: a later start of the same machine is connected."""
    DRAINING = "draining"
    """The hello was refused: the hub is shutting down."""
    FULL = "full"
    """The hello was refused: a node that is new, and the hub knows as many as it may (`--max-nodes`)."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of each side. The dialler's says who it is; the acceptor's answer says welcome.

    Attributes:
        version: the newest wire version that the sender speaks.
        oldest: the oldest that it still understands.
        role: `edge`, `driver`, `operator` or `hub`. A certificate decides it where there is one.
        name: the node's name, the driver's name, or the hub's.
        instance: a random id kept in the sender's state directory: tells two machines of one name apart.
        boot: counts the sender's starts: same instance, higher boot is the same machine again.
        software: name and version, for logs.
        features: optional parts of the wire that the sender understands.
        max_message_bytes: the largest stream message that the sender accepts.
        stream_window_bytes: what the sender accepts on one stream before it has consumed any.
        session_window_bytes: the same for all streams together.
        max_streams: how many streams of the peer's the sender keeps at once.
    """

    type: ClassVar[int] = 0
    version: int
    oldest: int
    role: str
    name: str
    instance: str
    boot: int
    software: str
    features: tuple[str, ...]
    max_message_bytes: int
    stream_window_bytes: int
    session_window_bytes: int
    max_streams: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last frame: the sender ends the session.

    Attributes:
        reason: a `Reason`, or a newer peer's.
        message: for people.
        served: the last of the receiver's streams that the sender has seen. Later ones crossed this frame on the wire
            and were never served (HTTP/2's GOAWAY has the same). A peer that does not tell may have served all.
    """

    type: ClassVar[int] = 1
    reason: str
    message: str
    served: int = _LARGEST_NUMBER


@dataclass(frozen=True, slots=True)
class Drain:
    """The sender will end the session soon: no new streams, please; open ones are finished."""

    type: ClassVar[int] = 2
    message: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Sent after a silence; answered with a `Pong` of the same number."""

    type: ClassVar[int] = 3
    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""

    type: ClassVar[int] = 4
    number: int


@dataclass(frozen=True, slots=True)
class Open:
    """A new stream. The dialler's ids are odd, the acceptor's even; each side's only grow.

    Attributes:
        stream: the stream's id.
        kind: a `Kind`, or a newer peer's.
        priority: a `Priority`.
        subject: what it is about: the driver's name for calls and watches.
        method: the gRPC path of a call, else empty.
        node: the node that the opener wants, or empty.
        call: an id for logs, the same at every hop.
        timeout_ms: the time that the opener still gives it; 0 is no limit. Remaining time, because clocks differ.
    """

    type: ClassVar[int] = 5
    stream: int
    kind: int
    priority: int
    subject: str
    method: str
    node: str
    call: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream's message. `left` bytes of the message follow in later chunks; 0 ends the message."""

    type: ClassVar[int] = 6
    stream: int
    left: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Credit:
    """The sender has consumed so much: the peer may send as much again. Stream 0 is the whole session."""

    type: ClassVar[int] = 7
    stream: int
    amount: int


@dataclass(frozen=True, slots=True)
class End:
    """The acceptor's last frame of a stream: how it ended (a `common.status.Status`). Exactly one per stream."""

    type: ClassVar[int] = 8
    stream: int
    code: int
    message: str
    origin: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The opener no longer waits. The acceptor still answers with an `End`."""

    type: ClassVar[int] = 9
    stream: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The opener's last frame of a stream, after the `End`. Exactly one per stream.

    Attributes:
        stream: the stream's id; free from now on.
        delivered: the answer reached the caller. False: nobody took it, so keep a result for the retry.
    """

    type: ClassVar[int] = 10
    stream: int
    delivered: bool


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """The answer to a frame of a type that the sender does not know."""

    type: ClassVar[int] = 11
    unknown: int


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A frame of a type that only a newer peer knows. Never sent."""

    type: int


Frame = Hello | Goodbye | Drain | Ping | Pong | Open | Chunk | Credit | End | Cancel | Ack | NotUnderstood
"""Every frame that can be sent."""

_CLASSES: tuple[type[Frame], ...] = (
    Hello, Goodbye, Drain, Ping, Pong, Open, Chunk, Credit, End, Cancel, Ack, NotUnderstood,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Codec:
    """How one frame class is checked and read.

    Attributes:
        frame: the class.
        names: its fields, in wire order.
        types: their types; a tuple is one of strings.
        numbers: which of them are numbers, as positions.
        required: how many fields must be there.
        values: reads all fields of a frame at once, as a tuple.
    """

    frame: type[Frame]
    names: tuple[str, ...]
    types: tuple[type, ...]
    numbers: tuple[int, ...]
    required: int
    values: Callable[[Frame], tuple[Any, ...]]


def _codec(frame: type[Frame]) -> _Codec:
    hints = get_type_hints(frame)
    found = [item for item in fields(frame) if item.name != "type"]
    names = tuple(item.name for item in found)
    types = tuple(tuple if hints[name] == tuple[str, ...] else hints[name] for name in names)
    getter = operator.attrgetter(*names)
    return _Codec(
        frame=frame,
        names=names,
        types=types,
        numbers=tuple(position for position, kind in enumerate(types) if kind is int),
        required=sum(item.default is MISSING for item in found),
        values=getter if len(names) > 1 else lambda frame: (getter(frame),),
    )


_CODECS: dict[int, _Codec] = {frame.type: _codec(frame) for frame in _CLASSES}
_PACK: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True, unicode_errors="replace").pack


def encode(frame: Frame) -> bytes:
    """The frame's bytes. Payloads may be any bytes-like object; strings are cut at `MAX_TEXT_BYTES`.

    What is no Unicode in a string (a vendor's text with a lone surrogate) becomes a question mark: an answer that
    cannot be encoded would never end its call.
    """
    values = _CODECS[frame.type].values(frame)
    data = _PACK((frame.type, *values))
    if len(data) <= MAX_TEXT_BYTES:  # so is every string in it: the ordinary case
        return data
    return _PACK((frame.type, *map(_fit, values)))


def encode_chunk(stream: int, left: int, payload: bytes | memoryview) -> bytes:
    """The bytes of a `Chunk`, without making one: this is the hot path."""
    return _PACK((Chunk.type, stream, left, payload))


def decode(data: bytes) -> list[Frame | UnknownFrame]:
    """All frames of one WebSocket message.

    Raises:
        RemoteProtocolError: the bytes are not whole, well-formed frames.
    """
    unpacker = msgpack.Unpacker(
        use_list=False,
        strict_map_key=False,
        max_buffer_size=max(len(data), 1),
        max_str_len=MAX_TEXT_BYTES,
        max_array_len=_MAX_ITEMS,
        max_map_len=_MAX_ITEMS,
    )
    unpacker.feed(data)
    frames = []
    end = 0
    try:
        for value in unpacker:
            frames.append(_frame(value))
            if len(frames) > _MAX_FRAMES:
                raise RemoteProtocolError(f"a message of more than {_MAX_FRAMES} frames")  # noqa: TRY301  # no msgpack's
            end = unpacker.tell()  # of a value that is cut off, tell() would count the part that is there
    except RemoteProtocolError:
        raise
    except Exception as error:
        # msgpack raises ValueError, its own classes and UnicodeDecodeError, according to what is wrong with the bytes.
        raise RemoteProtocolError(f"a message of {len(data)} bytes is not msgpack ({type(error).__name__})") from error
    if end != len(data):
        raise RemoteProtocolError(f"a message of {len(data)} bytes ends inside a frame")
    return frames


def _frame(value: Any) -> Frame | UnknownFrame:
    if type(value) is not tuple or not value or type(value[0]) is not int or not 0 <= value[0] <= _LARGEST_NUMBER:
        raise RemoteProtocolError("a frame is not an array that starts with its type number")
    codec = _CODECS.get(value[0])
    if codec is None:
        return UnknownFrame(value[0])
    given = value[1 : len(codec.names) + 1]
    if tuple(map(type, given)) == codec.types and tuple not in codec.types:  # the ordinary case, at C's speed
        for position in codec.numbers:
            if not 0 <= given[position] <= _LARGEST_NUMBER:
                raise RemoteProtocolError(f"{codec.frame.__name__}: {codec.names[position]} is out of range")
        return codec.frame(*given)
    return _unusual(codec, given)


def _unusual(codec: _Codec, given: tuple[Any, ...]) -> Frame:
    """A frame with strings in a list, with optional fields left out, or with something wrong: field by field."""
    if len(given) < codec.required:
        raise RemoteProtocolError(f"{codec.frame.__name__}: {codec.names[len(given)]} is missing")
    for name, want, item in zip(codec.names, codec.types, given, strict=False):
        if type(item) is not want:
            raise RemoteProtocolError(f"{codec.frame.__name__}: {name} is a {type(item).__name__}, not {want.__name__}")
        if isinstance(item, int) and not 0 <= item <= _LARGEST_NUMBER:
            raise RemoteProtocolError(f"{codec.frame.__name__}: {name} is out of range")
        if isinstance(item, tuple) and not all(type(text) is str for text in item):
            raise RemoteProtocolError(f"{codec.frame.__name__}: {name} holds something that is not a string")
    return codec.frame(*given)


def _fit(value: Any) -> Any:
    if type(value) is str and len(value) > MAX_TEXT_BYTES // 4:
        return value.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
    return value
