"""A sync message: what a teller and a learner say to each other on a sync stream (`common.sync`).

One message of the stream carries one or more of them, one after another, as `common.codec` writes them.

Rules:

* `seq` counts what the teller tells on this stream: 1, 2, 3, without a gap.
* A type that we do not know breaks the rules: a peer asks before it uses a new one.
* Golden bytes of each are in tests/unit/test_sync_messages.py.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from common.codec import Codec, UnknownFrame
from common.errors import RemoteProtocolError
from common.objects import Object, Ref, Stamp

MAX_NAME_CHARS = 1_024
"""The longest kind, namespace, name, uid or version. Kubernetes' own names end at 253."""


_SURROGATE = re.compile("[\ud800-\udfff]")
"""What no encoding can carry."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The learner's first word: what it holds, summed up.

    Attributes:
        budget_bytes: what it takes before it has stored anything of it.
        sums: `common.digest.Digest.sums`.
    """

    type: ClassVar[int] = 0
    budget_bytes: int
    sums: bytes


@dataclass(frozen=True, slots=True)
class Differ:
    """The teller's question: what is in these buckets? One byte each; none when the digests are equal.

    Asked exactly once, and answered with a `Held` for each object and one `HeldAll`.
    """

    type: ClassVar[int] = 1
    buckets: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """The learner holds this object, in this state."""

    type: ClassVar[int] = 2
    kind: str
    namespace: str
    name: str
    uid: str
    version: str

    @property
    def ref(self) -> Ref:
        """Which object."""
        return _ref(self.kind, self.namespace, self.name)

    @property
    def stamp(self) -> Stamp:
        """Which state."""
        return Stamp(_short(self.uid), _short(self.version))


@dataclass(frozen=True, slots=True)
class HeldAll:
    """There is nothing else in the buckets that were asked for."""

    type: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Put:
    """The teller tells an object: it is new, or in a new state."""

    type: ClassVar[int] = 4
    seq: int
    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    body: bytes

    @property
    def ref(self) -> Ref:
        """Which object."""
        return _ref(self.kind, self.namespace, self.name)

    @property
    def object(self) -> Object:
        """The object."""
        return Object(self.ref, Stamp(_short(self.uid), _short(self.version)), self.body)


@dataclass(frozen=True, slots=True)
class Drop:
    """The teller tells that the object of this uid is no more."""

    type: ClassVar[int] = 5
    seq: int
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def ref(self) -> Ref:
        """Which object."""
        return _ref(self.kind, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class InStep:
    """Whoever has stored all before this holds everything that the teller knows at this point, and nothing else.

    Of what cannot be told it may hold an older state or, unless it would miss it (`common.sync.MISSED_KINDS`), none.
    """

    type: ClassVar[int] = 6
    seq: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The learner has everything up to `seq` on its disk, except what it refused."""

    type: ClassVar[int] = 7
    seq: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The learner does not take what was told as `seq`, and says why. Comes before the `Stored` that covers it."""

    type: ClassVar[int] = 8
    seq: int
    why: str


Change = Put | Drop | InStep
"""What a learner stores, in this order."""

SyncMessage = Digest | Differ | Held | HeldAll | Put | Drop | InStep | Stored | Refused
"""Everything that can be said."""

_CODEC: Codec[SyncMessage] = Codec((Digest, Differ, Held, HeldAll, Put, Drop, InStep, Stored, Refused))

encode = _CODEC.encode
"""The bytes of one."""


def decode(data: bytes) -> list[SyncMessage]:
    """All that one message of the stream says.

    Raises:
        RemoteProtocolError: it is not whole and well-formed.
    """
    said: list[SyncMessage] = []
    for item in _CODEC.decode(data):
        if isinstance(item, UnknownFrame):
            raise RemoteProtocolError(f"a sync message of the unknown type {item.type}")
        said.append(item)
    return said


def put(seq: int, item: Object) -> Put:
    """An object, to be told as `seq`."""
    ref, stamp = item.ref, item.stamp
    return Put(seq, ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version, item.body)


def drop(seq: int, ref: Ref, uid: str) -> Drop:
    """The end of an object, to be told as `seq`."""
    return Drop(seq, ref.kind, ref.namespace, ref.name, uid)


def held(ref: Ref, stamp: Stamp) -> Held:
    """An object that the learner holds."""
    return Held(ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version)


def fits(ref: Ref, stamp: Stamp) -> bool:
    """Whether the other side can take an object of this key and state."""
    texts = (ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version)
    return bool(ref.kind and ref.name) and all(map(_is_short, texts))


def _ref(kind: str, namespace: str, name: str) -> Ref:
    """The object's key, if it can be one.

    Raises:
        RemoteProtocolError: it cannot.
    """
    if not kind or not name:
        raise RemoteProtocolError("an object without a kind or a name")
    return Ref(_short(kind), _short(namespace), _short(name))


def _short(text: str) -> str:
    if not _is_short(text):
        raise RemoteProtocolError("an object whose key or state is too long, or is no text")
    return text


def _is_short(text: str) -> bool:
    return len(text) <= MAX_NAME_CHARS and "\0" not in text and not _SURROGATE.search(text)
