"""An event: a session's message to its application. Each class says how the application has to respond."""

from dataclasses import dataclass

from common.errors import CallTimeout, TunnelClosed
from common.messages import Hello, Open
from common.status import Status


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The dialler's hello arrived at the acceptor. Answer with `accept()` or `refuse()`."""

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
    """A whole message. Call `consumed(stream, len(payload))` when its memory is free again."""

    stream: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that this side opened ended with the acceptor's status. Answer with `acknowledge()`."""

    stream: int
    status: Status


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream that this side opened ended without the acceptor's status. It needs no answer."""

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
    """Every message given to `send()` for this stream was handed to the transport."""

    stream: int


@dataclass(frozen=True, slots=True)
class PeerDraining:
    """The peer takes no new streams and will end the session when the open ones are finished."""

    message: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is over; always the last event. `reason` is a `Reason` or a newer peer's, `message` is for people."""

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
