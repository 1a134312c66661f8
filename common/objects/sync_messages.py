"""A sync message: a message between teller and learner on a sync stream (`common.objects.sync`).

One message of the stream carries one or more of them, as `common.codec` writes them.

Rules:

* `seq` numbers the teller's changes on this stream: 1, 2, 3, without a gap.
* An unknown type breaks the rules: a peer may use new types only after an agreement.
* tests/unit/sync/test_sync_messages.py has the golden bytes of each message.
"""

import re
from dataclasses import dataclass

from common.codec import Codec
from common.errors import RemoteProtocolError
from common.objects.objects import Object, Ref, Stamp

MAX_NAME_CHARS = 1_024  # The longest kind, namespace, name, uid or version. Kubernetes' own names end at 253.
_SURROGATE = re.compile("[\ud800-\udfff]")  # characters that UTF-8 cannot encode


@dataclass(frozen=True, slots=True)
class Digest:
    """The learner's first message: the digest of its copy (`common.objects.digest`)."""

    budget_bytes: int  # the size of unstored changes that it accepts
    sums: bytes


@dataclass(frozen=True, slots=True)
class Differ:
    """The teller asks once for the objects in these buckets, one byte each; none if the digests are equal.

    If there are any, the learner answers with a `Held` for each object and one `HeldAll`.
    """

    buckets: bytes


class _OfObject:
    __slots__ = ()

    kind: str
    namespace: str
    name: str

    @property
    def ref(self) -> Ref:
        if not self.kind or not self.name:
            raise RemoteProtocolError("an object without a kind or a name")
        return Ref(_short(self.kind), _short(self.namespace), _short(self.name))


@dataclass(frozen=True, slots=True)
class Held(_OfObject):
    """The learner holds this object, in this state."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str

    @property
    def stamp(self) -> Stamp:
        return Stamp(_short(self.uid), _short(self.version))


@dataclass(frozen=True, slots=True)
class HeldAll:
    """The learner has listed all objects of the requested buckets."""


@dataclass(frozen=True, slots=True)
class Put(_OfObject):
    """The teller sends an object that is new or in a new state."""

    seq: int
    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    body: bytes

    @property
    def object(self) -> Object:
        return Object(self.ref, Stamp(_short(self.uid), _short(self.version)), self.body)


@dataclass(frozen=True, slots=True)
class Drop(_OfObject):
    """The object of this uid is gone."""

    seq: int
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class InStep:
    """A learner that has stored everything before this holds exactly the objects that the teller knows now.

    Exception: of an object that cannot be sent it may hold an older state or, except for
    `common.objects.sync.MISSED_KINDS`, none.
    """

    seq: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The learner has everything up to `seq` on its disk, except refused changes."""

    seq: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The learner refuses the change `seq`, with a reason. Comes before the `Stored` that covers it."""

    seq: int
    why: str


Change = Put | Drop | InStep  # the messages that a learner stores, in their order
SyncMessage = Digest | Differ | Held | HeldAll | Put | Drop | InStep | Stored | Refused  # every sync message

TYPES: dict[int, type[SyncMessage]] = {
    0: Digest,
    1: Differ,
    2: Held,
    3: HeldAll,
    4: Put,
    5: Drop,
    6: InStep,
    7: Stored,
    8: Refused,
}

_CODEC: Codec[SyncMessage] = Codec(TYPES)

encode = _CODEC.encode  # returns the bytes of one sync message
decode = _CODEC.decode  # returns the sync messages in one message of the stream, or raises a `RemoteProtocolError`


def put(seq: int, item: Object) -> Put:
    ref = item.ref
    stamp = item.stamp
    return Put(seq, ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version, item.body)


def drop(seq: int, ref: Ref, uid: str) -> Drop:
    return Drop(seq, ref.kind, ref.namespace, ref.name, uid)


def held(ref: Ref, stamp: Stamp) -> Held:
    return Held(ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version)


def fits(ref: Ref, stamp: Stamp) -> bool:
    """Whether a peer accepts an object of this key and state."""
    texts = (ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version)
    return bool(ref.kind and ref.name) and all(map(_is_short, texts))


def _short(text: str) -> str:
    if not _is_short(text):
        raise RemoteProtocolError("an object whose key or state is too long, or is no text")
    return text


def _is_short(text: str) -> bool:
    return len(text) <= MAX_NAME_CHARS and "\0" not in text and not _SURROGATE.search(text)
