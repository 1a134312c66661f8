"""An event: a call of a session to its application or to a receiver, as a test wrote it down (`recorded_session`)."""

from dataclasses import dataclass

from common.errors import CallTimeout, TunnelClosed
from common.messages import Hello, Open
from common.status import Status


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The dialler's hello arrived at the acceptor."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The acceptor took the dialler's hello. Streams may be opened."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream. `deadline` is in this side's clock, or None."""

    stream: int
    frame: Open
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Message:
    stream: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that this side opened ended with the acceptor's status."""

    stream: int
    status: Status


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream that this side opened ended without the acceptor's status."""

    stream: int
    error: TunnelClosed | CallTimeout


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The opener of a stream no longer waits, or the link is gone."""

    stream: int


@dataclass(frozen=True, slots=True)
class Released:
    """An accepted stream is over. `delivered`: the answer reached the caller, so its result need not be kept."""

    stream: int
    delivered: bool


@dataclass(frozen=True, slots=True)
class Writable:
    """Every message of an awaited stream was handed to the transport."""

    stream: int


@dataclass(frozen=True, slots=True)
class PeerDraining:
    """The peer takes no new streams and will end the session when the open ones are finished."""

    message: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is over; always the last event."""

    reason: str
    message: str


Event = (
    HelloReceived
    | Welcomed
    | Opened
    | Message
    | Ended
    | Failed
    | Cancelled
    | Released
    | Writable
    | PeerDraining
    | Closed
)
