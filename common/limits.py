"""A limit: the sizes and times that a session keeps to and grants its peer."""

from dataclasses import dataclass
from typing import Protocol

MESSAGE_OVERHEAD_BYTES = 64
"""The credit that a message costs in addition to its bytes, so that a flood of empty messages is bounded, too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes (bytes) and times (seconds) of one session.

    Attributes:
        chunk_bytes: the largest piece of a message. 16 KiB is 2 s on a 64 kbit/s link, a fifth of the keepalive.
        max_message_bytes: the largest message accepted: gRPC's own default of 4 MiB.
        stream_window_bytes: the unconsumed bytes on one stream after which its sender has to wait.
        session_window_bytes: the same for all streams together.
        max_streams: the most streams of the peer that are open or not yet acknowledged.
        keepalive_s: silence after which the session sends a ping; after twice this time the peer counts as dead.
        hello_timeout_s: how long the peer's hello may take. It has to outlast a hub's work for a fleet that dials at
            once: 10,000 agents with TLS take a hub 10 to 25 s.

    Raises:
        ValueError: the limits contradict each other, so every peer would refuse them.
    """

    chunk_bytes: int = 16_384
    max_message_bytes: int = 4 * 1_048_576
    stream_window_bytes: int = 262_144
    session_window_bytes: int = 64 * 1_048_576
    max_streams: int = 1_024
    keepalive_s: float = 10.0
    hello_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Check the limits here, before a peer refuses them."""
        if why := flaw(self):
            raise ValueError(why)


class Allowance(Protocol):
    """The limits that one side sets for the other: this side's `Limits`, or a peer's `Hello`."""

    @property
    def max_message_bytes(self) -> int:
        """The largest message."""

    @property
    def stream_window_bytes(self) -> int:
        """The most unconsumed bytes on one stream."""

    @property
    def session_window_bytes(self) -> int:
        """The most unconsumed bytes on all streams together."""

    @property
    def max_streams(self) -> int:
        """The most streams at once."""


def flaw(allowed: Allowance) -> str:
    """The reason why a session with these limits could get stuck, or an empty text."""
    # A quarter of the window may be owed and not yet given back (see the inbox): the rest must hold any message.
    if allowed.session_window_bytes * 3 < (allowed.max_message_bytes + MESSAGE_OVERHEAD_BYTES) * 4:
        return "its session window is too small for its largest message"
    if not (allowed.stream_window_bytes and allowed.max_streams):
        return "it allows no stream, or nothing on one"
    return ""


def has_room(own: int, together: int, most: int, *, sharers: int) -> bool:
    """Whether one of several sharers of a limit, which has `own` places, may have one more.

    The last quarter is for those with few: a sharer gets a place there while it has less than three times the rest.
    """
    rest = most - together
    return rest > 0 and (sharers < 2 or rest > most // 4 or own < 3 * rest)
