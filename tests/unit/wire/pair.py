"""A session pair: a hub and an edge agent with nothing but bytes between them, and everything that they were told.

The edge dials, so its streams have odd ids; the hub accepts and opens calls, with even ids. Time is `pair.now`.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from common.messages import WIRE_VERSION, Frame, Hello, Kind, decode, encode
from common.session.limits import Limits
from common.session.session import SessionState
from common.status import Code, Status
from tests.kit.apart import apart
from tests.kit.events import Closed, Event, HelloReceived, Message
from tests.kit.recorded_session import RecordedSession

SMALL = Limits(
    chunk_bytes=100,
    max_message_bytes=1_000,
    stream_window_bytes=400,
    session_window_bytes=4_000,
    max_streams=8,
    keepalive_s=10.0,
    hello_timeout_s=5.0,
)
"""Limits so small that a test can reach each of them with a few bytes."""

OK = Status(Code.OK)

E = TypeVar("E", bound=Event)


def hello_of(role: str = "edge", name: str = "n7", **changes: int) -> Hello:
    """A hello; a session overwrites its limits. `changes`: other numbers, for a peer that says something odd."""
    values = {
        "version": WIRE_VERSION,
        "oldest": 1,
        "boot": 1,
        "max_message_bytes": 1_000,
        "stream_window_bytes": 400,
        "session_window_bytes": 4_000,
        "max_streams": 8,
    }
    return Hello(
        role=role, name=name, instance="i-1", software="csi-bridge 0.1.0", features=(), **{**values, **changes}
    )


@dataclass
class Side:
    """One end: its session, and all events in the order in which they came."""

    session: RecordedSession
    seen: list[Event] = field(default_factory=list)
    looked_at: int = 0  # of `seen`, by `consume()`

    def events(self) -> list[Event]:
        """The events since the last call; they are kept in `seen` too."""
        fresh = self.session.events()
        self.seen += fresh
        return fresh

    def all(self, kind: type[E]) -> list[E]:
        self.events()
        return [event for event in self.seen if isinstance(event, kind)]

    def one(self, kind: type[E]) -> E:
        (event,) = self.all(kind)
        return event

    def payloads(self, stream: int) -> list[bytes]:
        return [event.payload for event in self.all(Message) if event.stream == stream]

    def consume(self) -> None:
        """Consume every message that came and was not consumed before."""
        self.events()
        fresh, self.looked_at = self.seen[self.looked_at :], len(self.seen)
        for event in fresh:
            if isinstance(event, Message):
                self.session.consumed(event.stream, len(event.payload))

    @property
    def closed(self) -> tuple[str, str] | None:
        ends = self.all(Closed)
        return (ends[0].reason, ends[0].message) if ends else None


class SessionPair:
    """A hub's and an edge's session, welcomed unless a test wants to see the greeting itself."""

    def __init__(
        self, hub: Limits = SMALL, edge: Limits = SMALL, *, welcome: bool = True, now: float = 1_000.0
    ) -> None:
        self.now = now
        self.hub = Side(RecordedSession(hello_of("hub", "hub-1"), dialler=False, limits=hub, now=now))
        self.edge = Side(RecordedSession(hello_of(), dialler=True, limits=edge, now=now))
        if welcome:
            self.pump()
            self.hub.one(HelloReceived)
            self.hub.session.accept(1)
            self.pump()
            assert (self.hub.session.state, self.edge.session.state) == (SessionState.OPEN, SessionState.OPEN)

    def other(self, side: Side) -> Side:
        return self.edge if side is self.hub else self.hub

    def carry(self, side: Side, most: int = 1_000_000) -> list[bytes]:
        """Bring up to `most` WebSocket messages from a side to its peer; returns them."""
        carried: list[bytes] = []
        while len(carried) < most and (data := side.session.to_send()):
            carried.append(data)
            self.other(side).session.receive(data, self.now)
        return carried

    def pump(self) -> None:
        """Bring everything both ways until nothing moves any more."""
        while self.carry(self.hub) or self.carry(self.edge):
            pass

    def settle(self) -> None:
        """Pump and consume everything until nothing moves any more."""
        while True:
            self.hub.consume()
            self.edge.consume()
            if not (self.carry(self.hub) or self.carry(self.edge)):
                return

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.hub.session.tick(self.now)
        self.edge.session.tick(self.now)

    def call(self, request: bytes | None = b"request", timeout_s: float | None = None) -> int:
        """The hub opens a call, with its request queued; nothing is carried yet."""
        number = self.hub.session.open(
            Kind.ORDER, now=self.now, subject="dir.csi", method="/csi.v1.X/Y", timeout_s=timeout_s
        )
        if request is not None:
            self.hub.session.send(number, request)
        return number

    def answered_call(self) -> int:
        """A call from open to acknowledged, everything carried."""
        number = self.call()
        self.settle()
        self.edge.session.send(number, b"answer")
        self.edge.session.end(number, OK)
        self.settle()
        self.hub.session.acknowledge(number, delivered=True)
        self.settle()
        return number


def assert_books_agree(pair: SessionPair) -> None:
    """With nothing under way: what each sender may send is what its peer still takes, nothing is lost, no stream left.

    Call it when every message was consumed and every stream released.
    """
    for side in (pair.hub, pair.edge):
        sender, receiver = side.session, pair.other(side).session
        assert sender.state is SessionState.OPEN, side.closed
        assert sender.open_streams == receiver.open_streams == 0
        assert sender._outbox.credit == receiver._inbox.granted, "the two ends count differently"
        assert receiver._inbox.granted + receiver._inbox.owed == receiver._limits.session_window_bytes, "credit leaked"
        assert receiver._inbox.owed * 4 < receiver._limits.session_window_bytes, "credit was not given back"
        assert sender._mine_open == sender._theirs_open == 0


def open_session(limits: Limits = SMALL, *, now: float = 0.0, **peer: int) -> RecordedSession:
    """An acceptor's session, open, whose peer is a test that sends bytes by hand: `receive(encode(frame), now)`."""
    session = RecordedSession(hello_of("hub", "hub-1"), dialler=False, limits=limits, now=now)
    session.receive(encode(hello_of("edge", "n7", **peer)), now)
    session.accept(1)
    session.events()
    while session.to_send():
        pass
    return session


def dialled_session(limits: Limits = SMALL, *, now: float = 0.0, **peer: int) -> RecordedSession:
    """The same for a dialler's session."""
    session = RecordedSession(hello_of(), dialler=True, limits=limits, now=now)
    session.receive(encode(hello_of("hub", "hub-1", **{"epoch": 1} | peer)), now)
    session.events()
    while session.to_send():
        pass
    return session


def sent_frames(session: RecordedSession) -> list[Frame]:
    """Everything that a session has to send, decoded."""
    found: list[Frame] = []
    while data := session.to_send():
        found += apart(decode(data))
    return found
