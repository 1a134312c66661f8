"""An event: what a session tells its application. What each one asks for stands in its class."""

from dataclasses import dataclass

from common.errors import CallTimeout, TunnelClosed
from common.messages import Hello, Open
from common.status import Status


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The acceptor heard the dialler's hello: answer with `accept()` or `refuse()`."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The dialler was accepted: streams may be opened."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream. `deadline` is in this side's clock, or None."""

    stream: int
    frame: Open
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message. Call `consumed(stream, len(payload))` when it needs no memory here any more."""

    stream: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream of ours ended with the acceptor's status. Answer with `acknowledge()`."""

    stream: int
    status: Status


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream of ours ended without the acceptor's status. Nothing is left to do for it."""

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
