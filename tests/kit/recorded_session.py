"""A recorded session: a session that writes down, as its receivers do, each call as an event."""

from collections import deque
from typing import Any

from common.errors import CallTimeout, TunnelClosed
from common.messages import Hello, Open
from common.session.limits import Limits
from common.session.session import Session, SessionState
from common.status import Status
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


class Way:
    """A session's way out. While it is not free, all waits for `Session.to_send()`."""

    def __init__(self) -> None:
        self.is_free = False
        self.wire: deque[bytes] = deque()

    def write(self, data: bytes) -> None:
        self.wire.append(data)

    def flush_soon(self) -> None: ...

    def flush_later(self) -> None: ...


class RecordedSession(Session):
    def __init__(self, hello: Hello, *, dialler: bool, limits: Limits, now: float) -> None:
        self._now = now
        self.way = Way()
        self._events: list[Event] = []
        super().__init__(hello, dialler=dialler, limits=limits, clock=lambda: self._now, writer=self.way)

    def events(self) -> list[Event]:
        """The events since the last call, oldest first."""
        found, self._events = self._events, []
        return found

    def open(self, kind: int, message: bytes | None = None, *, now: float, **how: Any) -> int:
        """Open a stream whose receiver writes down its calls."""
        self._now = now
        receiver = _Recorder(self._note)
        receiver.stream = self.start(receiver, kind, message, **how)
        return receiver.stream

    # ---- the application

    def on_hello(self) -> None:
        kind = HelloReceived if self.state is SessionState.DECIDING else Welcomed
        self._note(kind(self.peer))

    def on_open(self, frame: Open, deadline: float | None) -> "_Recorder":
        self._note(Opened(frame.stream, frame, deadline))
        return _Recorder(self._note, frame.stream)

    def on_call(self, frame: Open, deadline: float | None, request: bytes) -> "_Recorder":
        receiver = self.on_open(frame, deadline)
        receiver.took(request)
        return receiver

    def on_drain(self, message: str) -> None:
        self._note(PeerDraining(message))

    def on_fault(self, error: Exception) -> None:
        raise error

    def on_closed(self, reason: str, message: str) -> None:
        self._note(Closed(reason, message))

    def _note(self, event: Event) -> None:
        self._events.append(event)


class _Recorder:
    def __init__(self, note: Any, stream: int = 0) -> None:
        self.stream = stream
        self._note = note

    def took(self, message: bytes) -> None:
        self._note(Message(self.stream, message))

    def ended(self, status: Status, _message: bytes | None) -> None:
        self._note(Ended(self.stream, status))

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        self._note(Failed(self.stream, error))

    def left(self) -> None:
        self._note(Cancelled(self.stream))

    def released(self, delivered: bool) -> None:  # as in `Receiver`
        self._note(Released(self.stream, delivered))

    def writable(self) -> None:
        self._note(Writable(self.stream))
