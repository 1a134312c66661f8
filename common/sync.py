"""A sync: a teller, who knows the truth about a set of objects, and a learner, who holds a copy. Without I/O.

It is used twice: the hub tells an agent what concerns its node (`Kind.SYNC`), and an agent tells the hub what is so at
its node (`Kind.FACTS`). Each runs on a stream of its own, which begins from nothing whenever the link comes back:

    teller                                   learner
                              ◀──────────────  Digest      2 KB that sum up what it has on its disk
      Differ  ───────────────────────────────▶             which of the 256 buckets differ; none: in step at once
                              ◀──────────────  Held…  HeldAll    what is in these buckets
      Put…  Drop…  InStep  ──────────────────▶             the difference; then each change
                              ◀──────────────  Stored      after it is on the disk; up to which `seq`

* The teller holds stamps alone and reads a body when it sends it: what changes meanwhile is sent once, in its newest
  state.
* Of an object at most one state is under way. Another uid under the same name is told as a `Drop`, and as a `Put` when
  that is stored.
* What is under way, that is told and not yet stored, is at most the budget, or one object that is larger.
* What comes first in the truth is told first; drops go before that, the last told first.
* An object that cannot be told (it is too large for the peer, or the learner refuses it) is named in an event and left
  alone until it changes. The others go on, and `InStep` is said without it; but as long as the learner holds no state
  at all of an untold one of `MISSED_KINDS`, nobody says `InStep`, for ever if it stays so.
* Unknown is not gone: of an object of which the teller cannot say what there is, whoever holds it keeps it. Who holds
  none may be told a stand-in, which has no uid and says why; it takes no object's place, and any object takes its.
* Objects of `PASSING_KINDS` are told and then forgotten: they are in no digest, and their end is not told.
* A learner that cannot store does not acknowledge; so the teller stops at the budget, and nothing is lost.
* A peer that breaks a rule gets a `RemoteProtocolError`, and the stream ends.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from common.digest import Digest as Sums
from common.digest import bucket_of, in_buckets
from common.errors import LocalProtocolError, RemoteProtocolError
from common.objects import Object, Ref, Stamp
from common.sync_messages import (
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

BUDGET_BYTES = 262_144
"""What may be under way: enough to fill a link of 10 Mbit/s at 200 ms, little enough for 10,000 nodes at once."""

PASSING_KINDS = frozenset({"Event"})
"""Kinds whose objects tell what happened: once the learner has one, the teller forgets it."""

MISSED_KINDS = frozenset({"Pod"})
"""Kinds of which one that is missing is taken for gone, by who is in step, with all that it had. What names a missing
object of another kind only waits for it: one Secret that is too large must not keep a node from ever cleaning up."""

_PART_BYTES = 16_384
"""Messages are put together up to this size, a chunk of the session's."""

_IN_STEP_BYTES = 16
"""No `InStep` is longer."""

_MOST_HELD_BYTES = 16 * 1_048_576
"""What a learner may list: 10,000 objects with names of 1,500 characters."""

_HELD_BYTES = 100
"""What an object of the list weighs beside its texts."""

_WHY_CHARS = 1_000
"""A refusal's words are cut here."""


class Truth(Protocol):
    """What a teller knows."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        """Every object's state, in the order in which they are to be told."""

    def read(self, ref: Ref) -> Object | None:
        """An object as it is now, perhaps newer than its stamp; None if it is no more, or cannot be read now.

        One that `stamps` still names is asked for again at the next turn, and until then nobody is told `InStep`.
        """


class Copy(Protocol):
    """What a learner holds. It changes by what the learner hands out, and by nothing else."""

    def sums(self) -> bytes:
        """Its digest (`common.digest.Digest.sums`)."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        """Every object's state, without those of `PASSING_KINDS`."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The teller knows what the learner holds: this. For reading at once; it changes afterwards."""

    held: Mapping[Ref, Stamp]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The learner has stored an object in this state; None: it has dropped it."""

    ref: Ref
    stamp: Stamp | None


@dataclass(frozen=True, slots=True)
class Untold:
    """An object in this state is not told, and is left alone until it changes. `why` is for people."""

    ref: Ref
    stamp: Stamp
    why: str


Event = Compared | Confirmed | Untold
"""What a teller's owner hears."""


class _State(Enum):
    """How far a sync is."""

    GREETING = auto()
    COMPARING = auto()
    TELLING = auto()


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A change that was told and is not stored yet. `stamp` is None for a drop; `before` is what the learner had."""

    seq: int
    ref: Ref
    stamp: Stamp | None
    before: Stamp | None
    size: int


class Teller:
    """The side that knows. `receive()` what comes, send `next_message()` until it is empty, and look at `events()`."""

    __slots__ = ("_budget_bytes", "_events", "_held_bytes", "_in_step", "_is_unknown", "_listed", "_max_message_bytes",
                 "_question", "_refs", "_seq", "_stale", "_state", "_stored", "_todo", "_told", "_truth", "_under_way",
                 "_untold", "unstored_bytes")  # fmt: skip

    def __init__(
        self,
        truth: Truth,
        *,
        max_message_bytes: int,
        budget_bytes: int = BUDGET_BYTES,
        is_unknown: Callable[[Ref], bool] = lambda _: False,
    ) -> None:
        """A teller that waits for the learner's digest.

        Args:
            truth: what it knows.
            max_message_bytes: the largest message that the peer takes.
            budget_bytes: what it keeps under way at most; the learner may want less.
            is_unknown: whether the truth cannot say now what there is of an object; of `MISSED_KINDS` it always can.
        """
        self._truth = truth
        self._is_unknown = is_unknown
        self._max_message_bytes = max_message_bytes
        self._budget_bytes = budget_bytes
        self._state = _State.GREETING
        self._question = b""
        self._listed = b""  # the buckets whose content the learner lists
        self._held_bytes = 0  # what it has listed
        self._told: dict[Ref, Stamp] = {}  # what the learner holds, once it has stored all that is under way
        self._todo: dict[Ref, Stamp | None] = {}
        self._stale = False  # whether `_todo` is to be made anew
        self._in_step = False  # whether the learner was told InStep after the last change
        self._untold: dict[Ref, Stamp] = {}
        self._seq = 0
        self._stored = 0
        self._under_way: deque[_UnderWay] = deque()
        self._refs: set[Ref] = set()  # those of `_under_way`
        self.unstored_bytes = 0
        """What is under way."""
        self._events: list[Event] = []

    def changed(self, refs: Iterable[Ref] | None = None) -> None:
        """The truth has changed: in these objects, or anywhere. Cheap: what it means is found out when it is sent.

        Of an object named here that the learner has stored in its present state, that is heard again.
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
        """The learner said something.

        Raises:
            RemoteProtocolError: it may not say that.
        """
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
            question, self._question = self._question, b""
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
        """What happened since the last look."""
        events, self._events = self._events, []
        return events

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self, theirs: Digest) -> None:
        self._budget_bytes = min(self._budget_bytes, theirs.budget_bytes)
        self._told = {ref: stamp for ref, stamp in self._truth.stamps().items() if ref.kind not in PASSING_KINDS}
        self._listed = Sums(self._told).differing(theirs.sums)
        for ref, _ in in_buckets(self._told, self._listed):
            del self._told[ref]
        self._question = encode(Differ(self._listed))
        if self._listed:
            self._state = _State.COMPARING
        else:
            self._begin()

    def _holds(self, said: Held) -> None:
        ref = said.ref
        if ref.kind in PASSING_KINDS:
            return
        if bucket_of(ref) not in self._listed:
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
        """Whether an object is to be told: `stamp` is its state now."""
        known = self._told.get(ref)
        if stamp is None:
            self._untold.pop(ref, None)
        is_known = known == stamp or (stamp is None and ref.kind in PASSING_KINDS)
        if is_known or (stamp is not None and self._untold.get(ref) == stamp and not _is_another(known, stamp)):
            self._todo.pop(ref, None)
        else:
            self._todo[ref] = stamp

    def _is_kept(self, ref: Ref) -> bool:
        """Whether nothing is to be said of an object because nobody knows what there is, and the learner holds one."""
        known = self._told.get(ref)
        return known is not None and known.uid != "" and self._is_unknown(ref)

    def _tell(self, ref: Ref, stamp: Stamp | None, out: bytearray) -> bool | None:
        """Add what is to be said of an object to a message.

        Returns:
            True: nothing more is to be said of it. False: something is, later. None: message or budget have no room.
        """
        known = self._told.get(ref)
        item = self._truth.read(ref) if stamp is not None else None
        if stamp is not None and item is None:
            return ref not in self._truth.stamps()  # if it is no more, the next comparison tells that
        if known is not None and (item is None or _is_another(known, item.stamp)):
            return (item is None) if self._add(drop(self._seq + 1, ref, known.uid), ref, None, out) else None
        if item is None:
            return True  # it came and went before anything was told
        if why := self._flaw(item):
            self._leave(ref, item.stamp, why)
            return True
        if known == item.stamp:
            return True
        return True if self._add(put(self._seq + 1, item), ref, item.stamp, out) else None

    def _add(self, change: Put | Drop, ref: Ref, stamp: Stamp | None, out: bytearray) -> bool:
        """Add a change to a message, if message and budget have room for it."""
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
        """Why an object cannot be told, or an empty text."""
        if not fits(item.ref, item.stamp):
            return "its name, uid or version is not one that Kubernetes allows"
        size = len(encode(put(2**32, item)))
        if size > self._max_message_bytes:
            return f"it has {size} bytes, and the peer takes {self._max_message_bytes}; raise its --max-message"
        return ""

    def _is_missed(self, ref: Ref) -> bool:
        """Whether somebody in step would take an object that is not told for gone."""
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
    """The side that holds a copy. Store what `receive()` gives, in its order, then say `stored()`.

    To be made when all that was received before is stored, because the copy's digest is the first word.
    """

    __slots__ = ("_budget_bytes", "_copy", "_in_step", "_listing", "_out", "_said_stored", "_seq", "_state", "_stored",
                 "_under_way", "unstored_bytes")  # fmt: skip

    def __init__(self, copy: Copy, *, budget_bytes: int = BUDGET_BYTES) -> None:
        """A learner about to say its first word.

        Args:
            copy: what it holds.
            budget_bytes: what it takes before it has stored anything of it.
        """
        self._copy = copy
        self._budget_bytes = budget_bytes
        self._state = _State.GREETING
        self._out = deque([encode(Digest(budget_bytes, copy.sums()))])
        self._listing: Iterator[bytes] = iter(())
        self._in_step = False
        self._seq = 0
        self._stored = self._said_stored = 0
        self._under_way: deque[tuple[int, int]] = deque()  # seq and size of each put and drop
        self.unstored_bytes = 0
        """What came and is not stored."""

    def receive(self, data: bytes) -> list[Change]:
        """The teller said something: what is to be stored, in this order.

        Raises:
            RemoteProtocolError: it may not say that.
        """
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
        """Everything up to `seq` is on the disk, except what is refused for a reason, by its `seq`."""
        if not self._stored <= seq <= self._seq:
            raise LocalProtocolError(f"stored {seq}, but {self._seq} was received last")
        self._stored = seq
        while self._under_way and self._under_way[0][0] <= seq:
            self.unstored_bytes -= self._under_way.popleft()[1]
        self._out.extend(encode(Refused(number, why[:_WHY_CHARS])) for number, why in (refused or {}).items())

    def next_message(self) -> bytes:
        """The next message to send, or b"" when there is none now."""
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
            self._listing = _parts(in_buckets(self._copy.stamps(), said.buckets))
        else:
            self._state = _State.TELLING

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
    """Whether an object came under the name of another one."""
    return known is not None and known.uid != stamp.uid


def _least_size(said: Held | Put | Drop) -> int:
    """What is counted of what the other side says: never more than its encoded bytes."""
    ref = said.ref
    size = len(ref.kind) + len(ref.namespace) + len(ref.name) + len(said.uid)
    if isinstance(said, Put):
        return size + len(said.object.stamp.version) + len(said.body)
    return size + len(said.stamp.version) if isinstance(said, Held) else size


def _parts(stamps: Iterable[tuple[Ref, Stamp]]) -> Iterator[bytes]:
    """The list of what is held, in messages."""
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
