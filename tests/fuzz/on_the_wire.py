"""The targets of the wire: its codec, sessions, syncs, enrolment, and the answers of an API server and of a shim."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from cloud.kube.http_answer import AnswerReader
from common import messages
from common.codec import LARGEST_NUMBER
from common.errors import BridgeError, MessageTooLarge, Overloaded, RemoteProtocolError, TunnelClosed
from common.net import enrolment
from common.objects import sync_messages
from common.objects.digest import digest_of
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync import Learner, Teller
from common.objects.sync_messages import Change
from common.session.session import SessionState
from common.status import Code, Status
from edge.direct.shim_client import _parse, _read_stats
from tests.fuzz.cutter import Cutter
from tests.kit.events import Cancelled, Ended, Failed, HelloReceived, Message, Opened, Released
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import SMALL, hello_of

_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 100, 399, 400, 1_000, 4_000, 2**31, LARGEST_NUMBER)
_TEXTS = ("", "edge", "driver", "n7", "d.example", "/csi.v1.Controller/CreateVolume", "x" * 1_100)

_FIRST, *_LATER = messages.TYPES.values()
_FRAMES = (*_LATER, _FIRST)  # the corpus numbers them so
_SYNC = tuple(sync_messages.TYPES.values())


def codec(data: bytes) -> None:
    """Frames: broken bytes are a protocol error, and what is read is written and read again as it was."""
    with contextlib.suppress(RemoteProtocolError):
        for frame in messages.decode(data):
            assert messages.decode(messages.encode(frame)) == [frame]


def enrolling(data: bytes) -> None:
    """The messages of joins and renewals, and the certificates' generations."""
    with contextlib.suppress(RemoteProtocolError):
        said = enrolment.decode(data)
        assert enrolment.decode(enrolment.encode(said)) == said
    with contextlib.suppress(ValueError):
        enrolment.generation_of([enrolment.GENERATION_URI + data.decode("utf-8", "replace")])


def token(data: bytes) -> None:
    for text in (data.decode("utf-8", "replace"), f"csi1.{data.decode('latin-1')}"):
        try:
            found = enrolment.parse_token(text)
        except ValueError as error:
            assert len(text.strip()) < 8 or text.strip() not in str(error)
            continue
        assert enrolment.parse_token(enrolment.format_token(found)) == found


def session(data: bytes) -> None:
    """A session with a peer that sends any frames, at any time, to an application that keeps to the rules."""
    cut = Cutter(data)
    driven = _Driven(dialler=bool(cut.number() & 1))
    if cut.number() & 1:
        driven.greet()
    while cut.left and driven.session.state is not SessionState.CLOSED:
        driven.step(cut)
    driven.session.lost("the case is over")
    driven.take_events(cut)
    assert not driven.waiting, "a stream that this side opened never ended"


class _Driven:
    """A session and its application, which notes what it opened and what the peer opened."""

    def __init__(self, *, dialler: bool) -> None:
        self.now = 0.0
        self.session = RecordedSession(hello_of("hub"), dialler=dialler, limits=SMALL, now=self.now)
        self.waiting: set[int] = set()
        self.theirs: set[int] = set()
        self.held: list[tuple[int, int]] = []
        self._dialler = dialler

    def greet(self) -> None:
        self.session.receive(messages.encode(hello_of("hub" if self._dialler else "edge")), self.now)
        if self.session.state is SessionState.DECIDING:
            self.session.accept(1)

    def step(self, cut: Cutter) -> None:
        match cut.number() % 8:
            case 0:
                self.session.receive(cut.part(), self.now)
            case 1 | 2 | 3:
                frames = [messages.encode(_frame(cut, _FRAMES)) for _ in range(1 + cut.number() % 3)]
                self.session.receive(b"".join(frames), self.now)
            case 4:
                self._act(cut)
            case 5:
                self.now += cut.choose((0.0, 0.5, 5.0, 10.0, 20.0))
                self.session.tick(self.now)
            case 6 | 7:
                while self.session.to_send():
                    pass
        self.take_events(cut)

    def take_events(self, cut: Cutter) -> None:
        for event in self.session.events():
            match event:
                case HelloReceived() if self.session.state is SessionState.DECIDING:
                    if cut.number() & 3:
                        self.session.accept(1)
                    else:
                        self.session.goodbye("conflict", "another one")
                case Opened():
                    assert event.stream not in self.theirs
                    self.theirs.add(event.stream)
                case Message():
                    assert len(event.payload) <= SMALL.max_message_bytes
                    self.held.append((event.stream, len(event.payload)))
                case Ended():
                    self.waiting.remove(event.stream)
                    self.session.acknowledge(event.stream, delivered=bool(cut.number() & 1))
                case Failed():
                    self.waiting.remove(event.stream)
                case Cancelled():
                    assert event.stream in self.theirs
                case Released():
                    self.theirs.remove(event.stream)
        room = SMALL.session_window_bytes + len(self.held) * 64
        assert sum(size for _, size in self.held) <= room, "a peer sent more than its credit"

    def _act(self, cut: Cutter) -> None:
        with contextlib.suppress(TunnelClosed, Overloaded, MessageTooLarge):
            match cut.number() % 7:
                case 0:
                    timeout_s = cut.choose((None, 1.0, 30.0))
                    kind, subject = cut.number() % 16, cut.choose(_TEXTS)
                    self.waiting.add(
                        self.session.open(
                            kind, now=self.now, timeout_s=timeout_s, subject=subject, priority=cut.number() % 3
                        )
                    )
                case 1 if self.waiting or self.theirs:
                    self.session.send(cut.choose(sorted(self.waiting | self.theirs)), bytes(cut.choose(_NUMBERS[:14])))
                case 2 if self.theirs:
                    self.session.end(cut.choose(sorted(self.theirs)), Status(Code.OK))
                case 3 if self.waiting:
                    number = cut.choose(sorted(self.waiting))
                    self.waiting.remove(number)
                    self.session.cancel(number)
                case 4 | 5 if self.held:
                    self.session.consumed(*self.held.pop())
                case 6:
                    self.session.drain("it stops")


def syncing(data: bytes) -> None:
    """A teller and a learner, each with a peer that sends any messages."""
    cut = Cutter(data)
    kept = _Kept()
    side: Teller | Learner
    side = Teller(kept, max_message_bytes=1_000) if cut.number() & 1 else Learner(kept.stamps(), budget_bytes=2_000)
    changes: list[Change] = []
    try:
        while cut.left:
            match cut.number() % 4:
                case 0:
                    said = cut.part()
                case 1:
                    said = sync_messages.encode(sync_messages.Digest(cut.choose(_NUMBERS), cut.choose(kept.digests)))
                case _:
                    said = b"".join(sync_messages.encode(_frame(cut, _SYNC)) for _ in range(1 + cut.number() % 3))
            if isinstance(side, Teller):
                side.receive(said)
                _take_all(side)
                side.events()
                if cut.number() & 1:
                    kept.change(cut)
                    side.changed()
            else:
                changes += side.receive(said)
                assert side.unstored_bytes <= 2_000 or len(changes) <= 1
                if changes and cut.number() & 1:
                    last = changes[-1].seq
                    side.stored(last, {last: "no"} if cut.number() & 1 else None)
                    changes.clear()
            _take_all(side)
    except RemoteProtocolError:
        pass


def _take_all(side: Teller | Learner) -> None:
    for _ in range(1_000):
        if not side.next_message():
            return
    raise AssertionError("it never stops sending")


class _Kept:
    """A few objects, as a teller's truth and a learner's copy."""

    def __init__(self) -> None:
        self.objects = {
            ref: Object(ref, Stamp("u", "1"), b"{}")
            for ref in (Ref("Pod", "default", "web"), Ref("Secret", "default", "s"), Ref("Event", "default", "e"))
        }
        self.digests = (digest_of({}), digest_of(self.stamps()), b"", b"x" * 2_048)

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {ref: found.stamp for ref, found in self.objects.items() if ref.kind != "Event"}

    def read(self, ref: Ref) -> Object | None:
        return self.objects.get(ref)

    def change(self, cut: Cutter) -> None:
        ref = cut.choose(sorted(self.objects) or [Ref("Pod", "", "p")])
        if cut.number() & 1:
            self.objects.pop(ref, None)
        else:
            body = bytes(cut.choose(_NUMBERS[:14]))
            self.objects[ref] = Object(ref, Stamp(cut.choose(("u", "v")), str(cut.number())), body)


def _frame(cut: Cutter, classes: tuple[type[Any], ...]) -> Any:
    made = cut.choose(classes)
    hints = get_type_hints(made)
    return made(*(_value(cut, hints[field.name]) for field in dataclasses.fields(made)))


def _value(cut: Cutter, kind: Any) -> Any:
    if kind is int:
        return cut.choose(_NUMBERS)
    if kind is bool:
        return bool(cut.number() & 1)
    if kind is bytes:
        return cut.take(cut.number())
    if kind is str:
        return cut.choose(_TEXTS) if cut.number() & 1 else cut.text()
    return (cut.text(),)


def shim_answers(data: bytes) -> None:
    """What listens on a shim's socket: each answer is read, or has an error of its own."""
    path = Path("/run/vc/sbs/s/shim-monitor.sock")
    with contextlib.suppress(BridgeError):
        _, body = _parse(path, data)
        _read_stats(path, body)


def answers(data: bytes) -> None:
    """An API server's answers over HTTP/1.1: the same whether they come at once or in pieces."""
    cut = Cutter(data)
    first, rest = cut.part(), cut.take(cut.left)
    at_once, in_pieces = AnswerReader(), AnswerReader()
    with contextlib.suppress(ValueError):
        whole = at_once.feed(first + rest)
        begun = in_pieces.feed(first)
        assert whole == (in_pieces.feed(rest) if begun is None else begun)
