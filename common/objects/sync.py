"""A sync: a teller, which knows the truth about a set of objects, brings a learner's copy up to date. Without I/O.

There are two of them: the hub tells an agent the objects that concern its node (`Kind.SYNC`), and an agent tells the
hub facts about its node (`Kind.FACTS`). Each has its own stream, and starts anew whenever the link comes back:

    teller                                   learner
                              ◀──────────────  Digest      2 KB that sum up its copy on the disk
      Differ  ───────────────────────────────▶             the differing ones of 256 buckets; none: in step at once
                              ◀──────────────  Held…  HeldAll    the objects in these buckets
      Put…  Drop…  InStep  ──────────────────▶             the difference; then each change
                              ◀──────────────  Stored      everything up to a `seq` is on the disk

* The teller holds stamps only, and reads a body when it sends it. An object that changes several times meanwhile is
  sent once, in its newest state.
* At most one change of an object is under way: sent and not yet stored. If another uid has taken an object's name, the
  teller sends a `Drop`, and the `Put` after the drop is stored.
* The changes under way have at most the size of the budget, unless a single object is larger.
* Drops are sent first, beginning with the object that was sent last. Puts follow in the order of the truth.
* If the peer cannot take an object (too large, or refused), the teller reports an event and skips the object until it
  changes. The others go on. `InStep` then comes without it, except for `MISSED_KINDS`: if the learner has no state at
  all of such an object, the teller sends no `InStep`.
* If the teller cannot know the state of an object now, a learner that holds the object keeps it. A learner without it
  may get a stand-in, which has no uid and holds the reason. A stand-in replaces no object, and any object replaces it.
* Objects of `PASSING_KINDS` are sent and then forgotten: they are in no digest, and their end is not sent.
* A learner whose disk fails does not acknowledge. So the teller stops at the budget, and no change is lost.
* If a peer breaks a rule, a `RemoteProtocolError` ends the stream.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from common.errors import RemoteProtocolError
from common.objects.digest import bucket_of, differing, digest_of, in_buckets
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync_messages import (
    Change,
    Differ,
    Digest,
    Drop,
    Held,
    HeldAll,
    InStep,
    Put,
    Refused,
    Stored,
    SyncMessage,
    decode,
    drop,
    encode,
    fits,
    held,
    put,
)

BUDGET_BYTES = 262_144  # of changes under way: enough for 10 Mbit/s at 200 ms, and small enough for 10,000 nodes
PASSING_KINDS = frozenset({"Event"})  # once the learner has stored one, the teller forgets it
# Kinds whose missing objects count as deleted for a learner in step, with their volumes. A missing object of another
# kind only makes others wait: one Secret that is too large must not block a node's cleaning for ever.
MISSED_KINDS = frozenset({"Pod"})

_PART_BYTES = 16_384  # changes are joined to messages of up to this size, a session's chunk
_IN_STEP_BYTES = 16  # the largest encoded `InStep`
_MOST_HELD_BYTES = 16 * 1_048_576  # the most that a learner may list: 10,000 objects with names of 1,500 characters
_HELD_BYTES = 100  # the memory of a listed object, in addition to its texts
_WHY_CHARS = 1_000  # the longest reason of a refusal; longer ones are cut


class Truth(Protocol):
    """The objects that a teller knows."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        """Every object's state, in the order for sending."""

    def read(self, ref: Ref) -> Object | None:
        """An object in its present state, perhaps newer than its stamp; None if it is gone."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The teller knows the learner's objects, `held`. Read it at once: it changes afterwards."""

    held: Mapping[Ref, Stamp]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The learner has stored an object in the state `stamp`, or has dropped it (None)."""

    ref: Ref
    stamp: Stamp | None


@dataclass(frozen=True, slots=True)
class Untold:
    """The teller skips an object until it changes. `why` is a reason for people."""

    ref: Ref
    stamp: Stamp
    why: str


Event = Compared | Confirmed | Untold  # the events of a teller, for its owner


class _State(Enum):
    GREETING = auto()
    COMPARING = auto()
    TELLING = auto()


@dataclass(frozen=True, slots=True)
class _UnderWay:
    seq: int
    ref: Ref
    stamp: Stamp | None  # the object's new state; None for a drop
    before: Stamp | None  # the learner's state before it
    size: int  # the encoded change's bytes


class Teller:
    """The side that knows the truth.

    After each `receive()`, send `next_message()` until it is empty, and take the `events()`.
    """

    __slots__ = (
        "_budget_bytes", "_differing", "_events", "_held_bytes", "_in_step", "_is_unknown", "_max_message_bytes",
        "_question", "_refs", "_seq", "_stale", "_state", "_stored", "_todo", "_told", "_truth", "_under_way",
        "_untold", "unstored_bytes",
    )  # fmt: skip

    def __init__(
        self,
        truth: Truth,
        *,
        max_message_bytes: int,
        budget_bytes: int = BUDGET_BYTES,
        is_unknown: Callable[[Ref], bool] = lambda _: False,
    ) -> None:
        """`is_unknown`: whether the truth cannot know an object's state now; never for `MISSED_KINDS`."""
        self._truth = truth
        self._is_unknown = is_unknown
        self._max_message_bytes = max_message_bytes
        self._budget_bytes = budget_bytes
        self._state = _State.GREETING
        self._question = b""
        self._differing = b""  # the buckets whose content the learner lists
        self._held_bytes = 0  # the size of its list
        self._told: dict[Ref, Stamp] = {}  # the learner's objects, once it has stored all changes under way
        self._todo: dict[Ref, Stamp | None] = {}
        self._stale = False  # whether `_todo` has to be made anew
        self._in_step = False  # whether InStep was sent after the last change
        self._untold: dict[Ref, Stamp] = {}
        self._seq = 0
        self._stored = 0
        self._under_way: deque[_UnderWay] = deque()
        self._refs: set[Ref] = set()  # those of `_under_way`
        self.unstored_bytes = 0  # the size of the changes under way
        self._events: list[Event] = []

    def changed(self, refs: Iterable[Ref] | None = None) -> None:
        """Note that these objects have changed, or any (None). Cheap: the teller compares when it sends.

        If the learner has already stored the present state of one of `refs`, a `Confirmed` follows again.
        """
        if self._state is not _State.TELLING:
            return  # the comparison is still to come
        stamps = self._truth.stamps() if refs is not None else {}
        for ref in refs or ():
            stamp = stamps.get(ref)
            self._consider(ref, stamp)
            if stamp is not None and self._told.get(ref) == stamp and ref not in self._refs:
                self._events.append(Confirmed(ref, stamp))
        if refs is None or len(self._todo) > 1:  # they may be in another order than the truth's
            self._stale = True

    def receive(self, data: bytes) -> None:
        """Take a message of the learner. RemoteProtocolError: the learner may not send this now."""
        for said in decode(data):
            if isinstance(said, Digest) and self._state is _State.GREETING:
                self._compare(said)
            elif isinstance(said, Held) and self._state is _State.COMPARING:
                self._holds(said)
            elif isinstance(said, HeldAll) and self._state is _State.COMPARING:
                self._begin()
            elif isinstance(said, Stored) and self._state is _State.TELLING:
                self._on_stored(said.seq)
            elif isinstance(said, Refused) and self._state is _State.TELLING:
                self._on_refused(said)
            else:
                raise _out_of_turn(said)

    def next_message(self) -> bytes:
        """The next message to send, or b"" when there is none now."""
        if self._question:
            question = self._question
            self._question = b""
            return question
        if self._state is not _State.TELLING:
            return b""
        if self._stale:
            self._make_todo()
        out = bytearray()
        done: list[Ref] = []
        for ref, stamp in self._todo.items():
            if ref in self._refs:
                continue
            told = self._is_kept(ref) or self._tell(ref, stamp, out)
            if told is None:
                break
            if told:
                done.append(ref)
        for ref in done:
            del self._todo[ref]
        is_all = not self._todo and not any(map(self._is_missed, self._untold))
        if is_all and not self._in_step and len(out) + _IN_STEP_BYTES <= self._max_message_bytes:
            self._in_step = True
            self._seq += 1
            out += encode(InStep(self._seq))
        return bytes(out)

    def events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self, theirs: Digest) -> None:
        self._budget_bytes = min(self._budget_bytes, theirs.budget_bytes)
        self._told = {ref: stamp for ref, stamp in self._truth.stamps().items() if ref.kind not in PASSING_KINDS}
        self._differing = differing(digest_of(self._told), theirs.sums)
        for ref, _ in in_buckets(self._told, self._differing):
            del self._told[ref]
        self._question = encode(Differ(self._differing))
        if self._differing:
            self._state = _State.COMPARING
        else:
            self._begin()

    def _holds(self, said: Held) -> None:
        ref = said.ref
        if ref.kind in PASSING_KINDS:
            return
        if bucket_of(ref) not in self._differing:
            raise RemoteProtocolError("Held: an object of a bucket that was not asked for")
        self._held_bytes += _HELD_BYTES + _least_size(said)
        if self._held_bytes > _MOST_HELD_BYTES:
            raise RemoteProtocolError(f"Held: more than {_MOST_HELD_BYTES} bytes of names")
        self._told[ref] = said.stamp

    def _begin(self) -> None:
        self._state = _State.TELLING
        self._stale = True
        self._events.append(Compared(self._told))

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _make_todo(self) -> None:
        self._stale = False
        stamps = self._truth.stamps()
        self._todo = {}
        self._untold = {ref: stamp for ref, stamp in self._untold.items() if ref in stamps}
        for ref in reversed(self._told):
            if ref not in stamps:
                self._consider(ref, None)
        for ref, stamp in stamps.items():
            self._consider(ref, stamp)

    def _consider(self, ref: Ref, stamp: Stamp | None) -> None:
        known = self._told.get(ref)
        if stamp is None:
            self._untold.pop(ref, None)
        is_known = known == stamp or (stamp is None and ref.kind in PASSING_KINDS)
        if is_known or (stamp is not None and self._untold.get(ref) == stamp and not _is_another(known, stamp)):
            self._todo.pop(ref, None)
        else:
            self._todo[ref] = stamp

    def _is_kept(self, ref: Ref) -> bool:
        # The learner keeps its object, because the truth cannot know its state now.
        known = self._told.get(ref)
        return known is not None and known.uid != "" and self._is_unknown(ref)

    def _tell(self, ref: Ref, stamp: Stamp | None, out: bytearray) -> bool | None:
        """Add an object's change to a message.

        True: the object needs no further change. False: another one follows later. None: message or budget is full.
        """
        known = self._told.get(ref)
        item = self._truth.read(ref) if stamp is not None else None
        if known is not None and (item is None or _is_another(known, item.stamp)):
            return (item is None) if self._add(drop(self._seq + 1, ref, known.uid), ref, None, out) else None
        if item is None:
            return True  # it came and went before anything was sent
        if why := self._flaw(item):
            self._leave(ref, item.stamp, why)
            return True
        if known == item.stamp:
            return True
        return True if self._add(put(self._seq + 1, item), ref, item.stamp, out) else None

    def _add(self, change: Put | Drop, ref: Ref, stamp: Stamp | None, out: bytearray) -> bool:
        data = encode(change)
        size = len(data)
        if out and len(out) + size > min(_PART_BYTES, self._max_message_bytes):
            return False
        if self.unstored_bytes and self.unstored_bytes + size > self._budget_bytes:
            return False
        self._seq = change.seq
        self._under_way.append(_UnderWay(self._seq, ref, stamp, self._told.pop(ref, None), size))
        self._refs.add(ref)
        self.unstored_bytes += size
        if stamp is not None:
            self._told[ref] = stamp
        self._in_step = False
        out += data
        return True

    def _flaw(self, item: Object) -> str:
        if not fits(item.ref, item.stamp):
            return "its name, uid or version is not one that Kubernetes allows"
        size = len(encode(put(2**32, item)))  # with a `seq` as long as any
        if size > self._max_message_bytes:
            return f"it has {size} bytes, and the peer takes {self._max_message_bytes}; raise its --max-message"
        return ""

    def _is_missed(self, ref: Ref) -> bool:
        # Whether a learner in step would take this unsent object for deleted.
        return ref.kind in MISSED_KINDS and ref not in self._told

    def _leave(self, ref: Ref, stamp: Stamp, why: str) -> None:
        self._untold[ref] = stamp
        if self._is_missed(ref):
            why += f"; until it is sent, no {ref.kind} that is missing at the peer counts as deleted"
        self._events.append(Untold(ref, stamp, why))

    # ---- what was stored ---------------------------------------------------------------------------------------------

    def _on_stored(self, seq: int) -> None:
        if not self._stored <= seq <= self._seq:
            raise RemoteProtocolError(f"Stored: {seq} after {self._stored}, and {self._seq} was told last")
        self._stored = seq
        while self._under_way and self._under_way[0].seq <= seq:
            done = self._under_way.popleft()
            self._settle(done)
            self._events.append(Confirmed(done.ref, done.stamp))
            if done.ref.kind in PASSING_KINDS:
                self._told.pop(done.ref, None)

    def _on_refused(self, said: Refused) -> None:
        found = next((one for one in self._under_way if one.seq == said.seq), None)
        if found is None:
            raise RemoteProtocolError(f"Refused: {said.seq} is not under way")
        self._under_way.remove(found)
        self._settle(found)
        if found.stamp is None:
            return  # a drop: the learner would list the object again, on the next stream
        self._told.pop(found.ref, None)
        if found.before is not None:
            self._told[found.ref] = found.before
        self._leave(found.ref, found.stamp, f"it was refused: {said.why}")

    def _settle(self, done: _UnderWay) -> None:
        self._refs.discard(done.ref)
        self.unstored_bytes -= done.size


class Learner:
    """The side that holds a copy. Store the changes of each `receive()` in their order, then call `stored()`.

    Make one only when all earlier changes are stored, because its first message is the copy's digest.
    """

    __slots__ = ("_budget_bytes", "_held", "_in_step", "_listing", "_out", "_said_stored", "_seq", "_state", "_stored",
                 "_under_way", "unstored_bytes")  # fmt: skip

    def __init__(self, held: Mapping[Ref, Stamp], *, budget_bytes: int = BUDGET_BYTES) -> None:
        """`held` is the copy: the state of every object, without those of `PASSING_KINDS`."""
        self._held = held
        self._budget_bytes = budget_bytes
        self._state = _State.GREETING
        self._out = deque([encode(Digest(budget_bytes, digest_of(held)))])
        self._listing: Iterator[bytes] = iter(())
        self._in_step = False
        self._seq = 0
        self._stored = self._said_stored = 0
        self._under_way: deque[tuple[int, int]] = deque()  # seq and size of each put and drop
        self.unstored_bytes = 0  # the size of the received changes that are not stored

    def receive(self, data: bytes) -> list[Change]:
        """Take a message of the teller, and return the changes to store, in this order."""
        changes: list[Change] = []
        for said in decode(data):
            if isinstance(said, Differ) and self._state is _State.GREETING:
                self._on_differ(said)
            elif isinstance(said, Put | Drop | InStep) and self._state is _State.TELLING:
                self._on_change(said)
                changes.append(said)
            else:
                raise _out_of_turn(said)
        return changes

    def stored(self, seq: int, refused: Mapping[int, str] | None = None) -> None:
        """Note that everything up to `seq` is on the disk. `refused` has the reasons of refused changes, by `seq`."""
        if not self._stored <= seq <= self._seq:
            raise RuntimeError(f"stored {seq}, but {self._seq} was received last")
        self._stored = seq
        while self._under_way and self._under_way[0][0] <= seq:
            self.unstored_bytes -= self._under_way.popleft()[1]
        self._out.extend(encode(Refused(number, why[:_WHY_CHARS])) for number, why in (refused or {}).items())

    def next_message(self) -> bytes:
        if self._out:
            return self._out.popleft()
        if part := next(self._listing, b""):
            return part
        if self._state is _State.COMPARING:
            self._state = _State.TELLING
            return encode(HeldAll())
        if self._said_stored < self._stored:
            self._said_stored = self._stored
            return encode(Stored(self._stored))
        return b""

    def _on_differ(self, said: Differ) -> None:
        if said.buckets:
            self._state = _State.COMPARING
            self._listing = _parts(in_buckets(self._held, said.buckets))
        else:
            self._state = _State.TELLING
        self._held = {}  # a stream lasts as long as its link, and a hub has one for each node

    def _on_change(self, said: Change) -> None:
        self._seq += 1
        if said.seq != self._seq:
            raise RemoteProtocolError(f"{type(said).__name__}: seq {said.seq}, not {self._seq}")
        if isinstance(said, InStep):
            if self._in_step:
                raise RemoteProtocolError("InStep: twice, with no change in between")
            self._in_step = True
            return
        self._in_step = False
        size = _least_size(said)
        self._under_way.append((said.seq, size))
        self.unstored_bytes += size
        if self.unstored_bytes > self._budget_bytes and len(self._under_way) > 1:
            why = f"{self.unstored_bytes} bytes are not stored, and {self._budget_bytes} were agreed"
            raise RemoteProtocolError(f"{type(said).__name__}: {why}")


def _is_another(known: Stamp | None, stamp: Stamp) -> bool:
    return known is not None and known.uid != stamp.uid


def _least_size(said: Held | Put | Drop) -> int:
    # Never more than the message's encoded bytes.
    ref = said.ref
    size = len(ref.kind) + len(ref.namespace) + len(ref.name) + len(said.uid)
    if isinstance(said, Put):
        return size + len(said.object.stamp.version) + len(said.body)
    return size + len(said.stamp.version) if isinstance(said, Held) else size


def _parts(stamps: Iterable[tuple[Ref, Stamp]]) -> Iterator[bytes]:
    part = bytearray()
    for ref, stamp in stamps:
        part += encode(held(ref, stamp))
        if len(part) >= _PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def _out_of_turn(said: SyncMessage) -> RemoteProtocolError:
    return RemoteProtocolError(f"{type(said).__name__} is not allowed now, or not from this side")
