"""A teller and a learner with a wire between them that can be cut anywhere, and what must hold at every step."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from common.objects.objects import Object, Ref, Stamp
from common.objects.sync import MISSED_KINDS, PASSING_KINDS, Confirmed, Learner, Teller, Untold
from common.objects.sync_messages import Change, Drop, InStep, Put, Stored, SyncMessage, decode, encode

MAX_MESSAGE_BYTES = 3_000


def refusable(item: Object) -> bool:
    """Whether this learner refuses it."""
    return item.body.startswith(b"refuse")


class Truth:
    """What the teller knows: any object, in the order in which it came."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Object] = {}
        self.uids: dict[Ref, str] = {}  # of each object, as it was known last
        self.unknown: set[Ref] = set()  # what is there of these is not known; `objects` may have stand-ins of them

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {ref: item.stamp for ref, item in self.objects.items()}

    def read(self, ref: Ref) -> Object | None:
        return self.objects.get(ref)

    def is_unknown(self, ref: Ref) -> bool:
        return ref in self.unknown


class Copy:
    """What the learner has on its disk."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Object] = {}
        self.passed: set[tuple[Ref, str]] = set()

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {ref: item.stamp for ref, item in self.objects.items()}

    def apply(self, change: Change) -> str:
        """Store one change; why not, if it is refused."""
        if isinstance(change, Put):
            item = change.object
            if refusable(item):
                return "we do not take this"
            if item.ref.kind in PASSING_KINDS:
                self.passed.add((item.ref, item.stamp.version))
            else:
                known = self.objects.get(item.ref)
                assert known is None or known.stamp.uid == item.stamp.uid, "another uid without a drop"
                self.objects[item.ref] = item
        elif isinstance(change, Drop):
            assert self.objects.pop(change.ref).stamp.uid == change.uid
        return ""


@dataclass(frozen=True, slots=True)
class Told:
    """A change on its way, as the teller's owner sees it."""

    seq: int
    ref: Ref
    size: int


@dataclass(frozen=True, slots=True)
class Known:
    """What the teller knew at one point."""

    objects: dict[Ref, Object]
    unknown: set[Ref]


class Synced:
    """Both sides, their disks, and what is on the wire."""

    def __init__(self, *, budget_bytes: int, wanted_bytes: int | None = None, monotonic: bool = True) -> None:
        self.budget_bytes = budget_bytes
        self._wanted_bytes = budget_bytes if wanted_bytes is None else wanted_bytes
        self.limit_bytes = min(self.budget_bytes, self._wanted_bytes)
        self._monotonic = monotonic
        self.truth, self.copy = Truth(), Copy()
        self.events: set[tuple[Ref, str]] = set()
        self.waiting: list[Change] = []
        self.teller: Teller | None = None
        self.learner: Learner | None = None
        self.down: list[bytes] = []
        self.up: list[bytes] = []
        self.unacked: list[Told] = []
        self.snapshots: dict[int, Known] = {}
        self.stored_seq = 0
        self.newest: dict[tuple[Ref, str], int] = {}
        self.sent: Counter[str] = Counter()
        self.sent_bytes = 0
        self.said: Counter[str] = Counter()

    # ---- what happens in the world

    def put(self, item: Object, *, tell: bool = True, whole: bool = False) -> None:
        """An object is new, or changes."""
        if item.ref.kind in PASSING_KINDS:
            self.events.add((item.ref, item.stamp.version))
        self.truth.unknown.discard(item.ref)
        self.truth.objects[item.ref] = item
        self.truth.uids[item.ref] = item.stamp.uid
        self.changed(item.ref, tell=tell, whole=whole)

    def drop(self, ref: Ref, *, tell: bool = True, whole: bool = False) -> None:
        """An object is gone."""
        self.truth.unknown.discard(ref)
        self.truth.objects.pop(ref, None)
        self.truth.uids.pop(ref, None)
        self.changed(ref, tell=tell, whole=whole)

    def lose(self, ref: Ref, stand_in: Object | None = None, *, tell: bool = True, whole: bool = False) -> None:
        """Nobody can say any more what there is of an object; the stand-in says why."""
        self.said["held and lost"] += ref in self.copy.objects and ref not in self.truth.unknown
        self.truth.unknown.add(ref)
        self.truth.objects.pop(ref, None)
        if stand_in is not None:
            self.truth.objects[ref] = stand_in
        self.changed(ref, tell=tell, whole=whole)

    def changed(self, ref: Ref, *, tell: bool = True, whole: bool = False) -> None:
        """The teller hears of a change, in one object or somewhere, or hears it later."""
        if self.teller is not None and tell:
            self.teller.changed(None if whole else [ref])

    def connect(self) -> None:
        """A new stream, once all that came before is stored."""
        self.cut()
        self.store(len(self.waiting))
        self.teller = Teller(
            self.truth,
            max_message_bytes=MAX_MESSAGE_BYTES,
            budget_bytes=self.budget_bytes,
            is_unknown=self.truth.is_unknown,
        )
        self.learner = Learner(self.copy.stamps(), budget_bytes=self._wanted_bytes)

    def cut(self) -> None:
        """The stream ends; what is on the wire is lost."""
        self.teller = self.learner = None
        self.up, self.down, self.unacked = [], [], []
        self.snapshots = {}
        self.stored_seq = 0

    def restart(self) -> None:
        """The learner's process dies, with what it has not stored."""
        self.cut()
        self.waiting = []

    # ---- one step of each side

    def tell(self) -> bool:
        """The teller sends one message."""
        if self.teller is None:
            return False
        message = self.teller.next_message()
        for event in self.teller.events():
            self._hear(event)
        if not message:
            return False
        assert len(message) <= MAX_MESSAGE_BYTES
        for said in decode(message):
            self._count(said)
            if isinstance(said, Put | Drop):
                assert said.ref not in {told.ref for told in self.unacked}, "two states of one object are under way"
                self.unacked.append(Told(said.seq, said.ref, len(encode(said))))
                assert not (said.uid and said.ref in self.truth.unknown), "told of an object that nobody knows"
            if isinstance(said, InStep):
                self.snapshots[said.seq] = self.known()
        total = sum(told.size for told in self.unacked)
        assert self.teller.unstored_bytes == total
        assert total <= self.limit_bytes or len(self.unacked) == 1, "over the budget"
        self.sent_bytes += len(message)
        self.down.append(message)
        return True

    def learn(self) -> bool:
        """The learner sends one message."""
        if self.learner is None or not (message := self.learner.next_message()):
            return False
        for said in decode(message):
            self._count(said)
            if isinstance(said, Stored):
                assert said.seq <= self.stored_seq, "acknowledged before it was stored"
        self.sent_bytes += len(message)
        self.up.append(message)
        return True

    def deliver_down(self) -> bool:
        """One message reaches the learner."""
        if self.learner is None or not self.down:
            return False
        self.waiting += self.learner.receive(self.down.pop(0))
        return True

    def deliver_up(self) -> bool:
        """One message reaches the teller."""
        if self.teller is None or not self.up:
            return False
        message = self.up.pop(0)
        self.teller.receive(message)
        for said in decode(message):
            if isinstance(said, Stored):
                self.unacked = [told for told in self.unacked if told.seq > said.seq]
        for event in self.teller.events():
            if isinstance(event, Untold):  # it was refused, and is no longer under way
                self.unacked = [told for told in self.unacked if told.ref != event.ref]
            self._hear(event)
        return True

    def store(self, count: int) -> bool:
        """The learner's disk takes the next changes."""
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        refused = {}
        for change in batch:
            if why := self.copy.apply(change):
                refused[change.seq] = why
            elif isinstance(change, Put):
                self._check_age(change.object)
            elif isinstance(change, InStep) and self.learner is not None:
                self._check_in_step(change)
        if batch and self.learner is not None:
            self.stored_seq = batch[-1].seq
            self.learner.stored(self.stored_seq, refused)
        return bool(batch)

    def settle(self) -> None:
        """Let everything happen that is under way."""
        if self.teller is not None:
            self.teller.changed()
        while any([self.tell(), self.learn(), self.deliver_down(), self.deliver_up(), self.store(len(self.waiting))]):
            pass

    # ---- what must hold

    def known(self) -> Known:
        """What the teller knows now."""
        return Known(dict(self.truth.objects), set(self.truth.unknown))

    def tellable(self, known: Known) -> dict[Ref, Object]:
        """What the learner should hold. Where an object cannot be told, it may hold an older state.

        Of one that nobody knows it holds the stand-in, or what it has.
        """
        return {
            ref: item
            for ref, item in known.objects.items()
            if ref.kind not in PASSING_KINDS and not refusable(item) and len(item.body) < MAX_MESSAGE_BYTES - 100
        }

    def check_converged(self) -> None:
        """Both hold the same, and a reconnect sends no object."""
        self._check_equal(self.copy.objects, self.known())
        missed = {(ref, version) for ref, version in self.events if (ref, version) not in self.copy.passed}
        assert not [ref for ref, _ in missed if ref in self.truth.objects], "an event was never told"
        self.connect()
        before = self.sent.copy()
        self.settle()
        again = self.sent - before
        untold = len(self.truth.objects) - len(self.tellable(self.known()))
        assert again["Put"] <= untold
        assert not again["Drop"]
        assert again["InStep"] <= 1 + untold

    def _check_equal(self, copy: Mapping[Ref, Object], known: Known) -> None:
        kept = {ref for ref in known.unknown if ref in copy and copy[ref].stamp.uid}
        tellable = {ref: item for ref, item in self.tellable(known).items() if ref not in kept}
        assert {ref: copy.get(ref) for ref in tellable} == tellable
        for ref in copy.keys() - tellable.keys() - kept:  # older states of what cannot be told now
            assert ref in known.objects
            assert known.objects[ref].stamp.uid == copy[ref].stamp.uid

    def _check_in_step(self, change: InStep) -> None:
        self.said["in step"] += 1
        known = self.snapshots.pop(change.seq)
        self._check_equal(self.copy.objects, known)
        for ref, item in known.objects.items():
            assert ref.kind not in MISSED_KINDS or refusable(item) or ref in self.copy.objects, "missing, and not gone"

    def _check_age(self, item: Object) -> None:
        if not self._monotonic:
            return
        key, version = (item.ref, item.stamp.uid), int(item.stamp.version)
        assert version >= self.newest.get(key, 0), "an older state after a newer one"
        self.newest[key] = version

    def _hear(self, event: object) -> None:
        self.said[type(event).__name__] += 1
        if isinstance(event, Confirmed) and event.ref.kind in PASSING_KINDS:
            known = self.truth.objects.get(event.ref)
            if known is not None and known.stamp == event.stamp:
                del self.truth.objects[event.ref]
        if isinstance(event, Untold) and event.ref.kind in PASSING_KINDS:
            self.truth.objects.pop(event.ref, None)

    def _count(self, said: SyncMessage) -> None:
        self.sent[type(said).__name__] += 1
