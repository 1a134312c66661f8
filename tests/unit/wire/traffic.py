"""A traffic model: two sessions, two applications, a link that delays, batches, stalls and dies, and one book of all.

Every event is checked against the book the moment it comes. WebSocket messages stay whole and in order; everything else
is up to whoever drives the model (`test_session_model.py`). A lost link is followed by a new pair of sessions.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from common.errors import CallTimeout, MessageTooLarge, Overloaded, TunnelClosed
from common.messages import Kind
from common.session.limits import MESSAGE_OVERHEAD_BYTES, Limits
from common.session.session import SessionState
from common.status import Code, Status
from tests.kit.events import (
    Cancelled,
    Closed,
    Ended,
    Event,
    Failed,
    HelloReceived,
    Message,
    Opened,
    PeerDraining,
    Released,
    Welcomed,
    Writable,
)
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import hello_of

_CLOCKS_DIFFER_S = 86_400.0  # the edge's clock is a day ahead

_DRAINED = "model, and every call is finished"


@dataclass
class Call:
    """Everything that is true of one stream, whoever knows it."""

    opener: str
    number: int
    deadline: float | None
    up: list[bytes] = field(default_factory=list)
    """Messages that the opener queued, then those that the acceptor got: each a beginning of the other."""
    got_up: list[bytes] = field(default_factory=list)
    down: list[bytes] = field(default_factory=list)
    got_down: list[bytes] = field(default_factory=list)
    given_up: bool = False  # by `cancel()` of the opener's
    ended: Status | None = None
    failed: TunnelClosed | CallTimeout | None = None
    acknowledged: bool | None = None
    opened: bool = False
    end: Status | None = None  # what the acceptor ended it with
    cancelled: bool = False
    released: bool | None = None

    @property
    def over(self) -> bool:
        """Whether the opener has heard or caused the end of it."""
        return self.given_up or self.ended is not None or self.failed is not None

    @property
    def alive(self) -> bool:
        """Whether either side has still something to do for it."""
        return not self.over or (self.ended is not None and self.acknowledged is None) or self.served

    @property
    def served(self) -> bool:
        """Whether the acceptor still works on it."""
        return self.opened and not self.cancelled and self.end is None and self.released is None


@dataclass
class Party:
    """One side: its session, its limits, its clock, what it holds, and what is on the wire from it."""

    name: str
    session: RecordedSession
    limits: Limits
    clock_s: float
    wire: deque[bytes]
    held: deque[tuple[int, bytes]] = field(default_factory=deque)
    closed: bool = False


class Traffic:
    """The model. Each method is one thing that may happen; none of them waits."""

    def __init__(self, hub: Limits, edge: Limits) -> None:
        self.limits = {"hub": hub, "edge": edge}
        self.now = 1_000.0
        self.calls: dict[tuple[str, int], Call] = {}
        self.parties: dict[str, Party] = {}
        self.seen: Counter[str] = Counter()
        self.connect()

    def connect(self) -> None:
        for name in self.parties:
            self.lose(name)
        for call in self.calls.values():
            self._check_finished(call)
        self.calls = {}
        self.parties = {name: self._party(name) for name in ("hub", "edge")}
        self.flow()
        self.parties["hub"].session.accept(1)
        self.flow()
        assert all(party.session.state is SessionState.OPEN for party in self.parties.values())

    def _party(self, name: str) -> Party:
        limits, clock_s = self.limits[name], self._clock(name)
        session = RecordedSession(hello_of(name, name), dialler=name == "edge", limits=limits, now=clock_s)
        return Party(name, session, limits, clock_s, session.way.wire)

    # ---- what applications do ----------------------------------------------------------------------------------------

    def open(self, name: str, priority: int, timeout_s: float | None, first: int | None = None) -> Call | None:
        """Open a stream, if the session takes it, with a first message of a size."""
        party = self.parties[name]
        payload = None if first is None else bytes(first)
        mine_open = party.session._mine_open
        try:
            number = party.session.open(
                Kind.ORDER, payload, now=self._clock(name), priority=priority, call=name, timeout_s=timeout_s
            )
        except MessageTooLarge:
            assert first is not None
            assert first > self.limits[self._other(name)].max_message_bytes
            return None
        except TunnelClosed:
            draining = party.session._peer_draining or party.session._draining is not None
            assert party.session.state is not SessionState.OPEN or draining
            return None
        except Overloaded:
            assert mine_open == self.limits[self._other(name)].max_streams
            return None
        assert (name, number) not in self.calls, "an id was used again"
        deadline = None if timeout_s is None else self.now + timeout_s
        call = self.calls[name, number] = Call(name, number, deadline)
        if payload is not None:
            call.up.append(payload)
        self._hear(party)
        return call

    def send(self, call: Call, *, up: bool, size: int) -> None:
        """Queue a message of a size, if whoever sends it still has reason to."""
        if call.over if up else not call.served:
            return
        party = self.parties[call.opener if up else self._other(call.opener)]
        queued = call.up if up else call.down
        tag = f"{call.opener} {call.number} {'up' if up else 'down'} {len(queued)}; ".encode()
        payload = (tag * (size // len(tag) + 1))[:size]
        try:
            party.session.send(call.number, payload)
        except MessageTooLarge:
            assert size > self.limits[self._other(party.name)].max_message_bytes
        else:
            queued.append(payload)
            assert party.session.watch_unsent(call.number)  # so that `Writable` follows
        self._hear(party)

    def end(self, call: Call, code: int = Code.OK, last: int | None = None) -> None:
        """The acceptor ends a stream, with a last message of a size; late ends are the session's to ignore."""
        party = self.parties[self._other(call.opener)]
        payload = None if last is None else bytes(last)
        ends = call.served
        end = Status(code, f"{call.opener} {call.number}", "vendor")
        if call.opened:
            try:
                party.session.end(call.number, end if ends else Status(Code.INTERNAL, "nobody may see this"), payload)
            except MessageTooLarge:
                ends = False
        if ends:
            call.end = end
            call.down += [] if payload is None else [payload]
        self._hear(party)

    def cancel(self, call: Call) -> None:
        if call.ended is not None and call.acknowledged is None:
            call.acknowledged = False
        call.given_up = call.given_up or not call.over
        self.parties[call.opener].session.cancel(call.number)
        self._hear(self.parties[call.opener])

    def acknowledge(self, call: Call, *, delivered: bool) -> None:
        """The opener releases an ended stream."""
        if call.ended is None or call.acknowledged is not None:
            return
        call.acknowledged = delivered
        self.parties[call.opener].session.acknowledge(call.number, delivered=delivered)
        self._hear(self.parties[call.opener])

    def consume(self, name: str, place: int) -> None:
        """Consume a message that came, not always the oldest."""
        party = self.parties[name]
        if party.held:
            party.held.rotate(-(place % len(party.held)))
            number, payload = party.held.popleft()
            party.session.consumed(number, len(payload))
            self._hear(party)

    def drain(self, name: str) -> None:
        """Ask for no new streams; a goodbye follows when none is left."""
        self.parties[name].session.drain("model")
        self._hear(self.parties[name])

    def goodbye(self, name: str) -> None:
        self.parties[name].session.goodbye("model", "model")
        self._hear(self.parties[name])

    # ---- what the link does ------------------------------------------------------------------------------------------

    def free(self, name: str, *, is_free: bool) -> None:
        """Let the session of a side write at once, or let all wait for `pull`."""
        self.parties[name].session.way.is_free = is_free

    def pull(self, name: str, most: int = 1) -> bool:
        """Hand WebSocket messages to the transport; False if there is none."""
        party = self.parties[name]
        for count in range(most):
            data = party.session.to_send()
            self._hear(party)
            if not data:
                return count > 0
            assert len(data) <= 4 * party.limits.chunk_bytes + 300, "more than control frames and about one chunk"
            party.wire.append(data)
        return True

    def deliver(self, name: str, most: int = 1) -> bool:
        """Bring what is on the wire from a side to its peer; False if there is nothing."""
        party, peer = self.parties[name], self.parties[self._other(name)]
        for count in range(most):
            if not party.wire:
                return count > 0
            peer.session.receive(party.wire.popleft(), self._clock(peer.name))
            self._hear(peer)
        return True

    def lose(self, name: str) -> None:
        """A side notices that the link is gone. What it sent may still arrive."""
        self.parties[name].session.lost("model")
        self._hear(self.parties[name])

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, party in self.parties.items():
            party.session.tick(self._clock(name))
            self._hear(party)

    def flow(self, most: int = 1_000_000) -> None:
        """Bring up to so many WebSocket messages each way, in turn, until nothing moves."""
        for _ in range(most):
            if not self._move():
                return

    def cut(self) -> None:
        """Both sides notice at once, and what is on the wire is gone."""
        for name, party in self.parties.items():
            party.wire.clear()
            self.lose(name)

    def _move(self) -> bool:
        """One WebSocket message each way; False if nothing moved."""
        moved = [self.pull(name) | self.deliver(name) for name in self.parties]
        return any(moved)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def consume_all(self) -> None:
        while True:
            for name, party in self.parties.items():
                while party.held:
                    self.consume(name, 0)
            if not self._move():
                return

    def release_all(self) -> None:
        """Consume, carry and acknowledge until nothing moves: an end gives back the credit of a half-sent request."""
        self.consume_all()
        while ended := [call for call in self.calls.values() if call.ended is not None and call.acknowledged is None]:
            for call in ended:
                self.acknowledge(call, delivered=True)
            self.consume_all()

    def finish(self) -> None:
        """Consumed is delivered, released is forgotten: nothing may wait, leak or be left at the end."""
        self.release_all()
        if any(party.closed for party in self.parties.values()):
            self.connect()
            return
        for call in self.calls.values():
            if not call.over and call.end is None:
                assert call.got_up == call.up, "a message did not come though there is room"
                assert call.got_down == call.down, "a message did not come though there is room"
        for call in self.calls.values():
            self.end(call)
        self.release_all()
        if not any(party.closed for party in self.parties.values()):  # a drain may have ended in a goodbye by now
            self._check_books()
        for call in self.calls.values():
            self._check_finished(call)

    def _check_books(self) -> None:
        for name, party in self.parties.items():
            sender, receiver = party.session, self.parties[self._other(name)].session
            window = receiver._limits.session_window_bytes
            assert not sender._streams
            assert sender._mine_open == sender._theirs_open == 0
            assert sender._outbox.credit == receiver._inbox.granted == window - receiver._inbox.owed, "credit leaked"
            assert receiver._inbox.owed * 4 < window, "credit was not given back"
            assert not sender._outbox.unopened
            assert not sender._outbox.starved
            assert sender._outbox.held is None
            assert not any(sender._outbox.rings)

    def _check_finished(self, call: Call) -> None:
        assert call.given_up + (call.ended is not None) + (call.failed is not None) == 1, "not exactly one end"
        assert call.opened == (call.released is not None), "opened, and never released"

    # ---- what sessions say -------------------------------------------------------------------------------------------

    def _hear(self, party: Party) -> None:
        for event in party.session.events():
            assert not party.closed, "an event after the last one"
            self.seen[type(event).__name__] += 1
            handler: Any = self._HEARD[type(event)]
            handler(self, party, event)
        self._check_memory(party)

    def _check_memory(self, party: Party) -> None:
        held: Counter[int] = Counter()
        for number, payload in party.held:
            held[number] += len(payload) + MESSAGE_OVERHEAD_BYTES
        for stream in party.session._streams.values():
            held[stream.id] += len(stream.parts or b"")
        limits = party.limits
        assert held.total() <= limits.session_window_bytes
        most = limits.stream_window_bytes + limits.max_message_bytes + MESSAGE_OVERHEAD_BYTES
        assert all(size <= most for size in held.values())
        assert party.session._theirs_open <= limits.max_streams

    def _on_opened(self, party: Party, event: Opened) -> None:
        call = self.calls[self._other(party.name), event.stream]
        assert not call.opened
        assert event.frame.call == call.opener
        assert not (isinstance(call.failed, TunnelClosed) and not call.failed.sent), "sent=False, and it was seen"
        assert (event.deadline is None) == (call.deadline is None)
        call.opened = True

    def _on_message(self, party: Party, event: Message) -> None:
        call = self.calls.get((party.name, event.stream))
        party.held.append((event.stream, event.payload))
        if call is not None:
            assert not call.over
            got, queued = call.got_down, call.down
        else:
            call = self.calls[self._other(party.name), event.stream]
            assert call.served
            got, queued = call.got_up, call.up
        assert event.payload == queued[len(got)], "not the next message of this stream"
        got.append(event.payload)

    def _on_ended(self, party: Party, event: Ended) -> None:
        call = self.calls[party.name, event.stream]
        assert not call.over
        assert event.status == call.end
        assert call.got_down == call.down, "ended before its last message"
        call.ended = event.status

    def _on_failed(self, party: Party, event: Failed) -> None:
        call = self.calls[party.name, event.stream]
        assert not call.over
        call.failed = event.error
        if isinstance(event.error, CallTimeout):
            assert call.deadline is not None
            assert call.deadline <= self.now + 1e-6
        elif not event.error.sent:
            assert not call.opened, "sent=False, and it was seen"
        else:
            assert event.error.why != _DRAINED, "a drain cut a call"

    def _on_cancelled(self, party: Party, event: Cancelled) -> None:
        call = self.calls[self._other(party.name), event.stream]
        assert call.served
        call.cancelled = True

    def _on_released(self, party: Party, event: Released) -> None:
        call = self.calls[self._other(party.name), event.stream]
        assert call.opened
        assert call.released is None
        assert call.end is not None or call.cancelled
        assert not event.delivered or call.acknowledged
        call.released = event.delivered

    def _on_writable(self, party: Party, event: Writable) -> None:
        assert party.session.watch_unsent(event.stream) == 0

    def _on_closed(self, party: Party, event: Closed) -> None:
        assert event.reason in {"model", "link-lost", "peer-silent", "drained"}, event
        if event.reason == "drained":
            for call in self.calls.values():
                assert not call.alive if call.opener == party.name else call.opened == (call.released is not None)
        party.closed = True
        party.held.clear()

    def _ignore(self, party: Party, event: Event) -> None:
        """Nothing to check."""

    def _other(self, name: str) -> str:
        return "edge" if name == "hub" else "hub"

    def _clock(self, name: str) -> float:
        return self.now + (_CLOCKS_DIFFER_S if name == "edge" else 0.0)

    _HEARD = {  # noqa: RUF012  # a table of this class's own methods, never changed
        HelloReceived: _ignore,
        Welcomed: _ignore,
        PeerDraining: _ignore,
        Opened: _on_opened,
        Message: _on_message,
        Ended: _on_ended,
        Failed: _on_failed,
        Cancelled: _on_cancelled,
        Released: _on_released,
        Writable: _on_writable,
        Closed: _on_closed,
    }
