"""A limit: what a session allows itself and its peer."""

from dataclasses import dataclass
from typing import Protocol

MESSAGE_OVERHEAD_BYTES = 64
"""What a message costs of the credit beside its bytes, so that a flood of empty messages is bounded too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session allows itself and its peer. All sizes in bytes, all times in seconds.

    Attributes:
        chunk_bytes: the largest piece of a message. 16 KiB is 2 s on a 64 kbit/s link, a fifth of the keepalive.
        max_message_bytes: the largest message accepted: gRPC's own default of 4 MiB.
        stream_window_bytes: unconsumed bytes on one stream before its sender must wait.
        session_window_bytes: the same for all streams together.
        max_streams: the peer's streams that are open or not yet acknowledged.
        keepalive_s: silence after which a ping is sent; after twice as much the peer is taken for dead.
        hello_timeout_s: how long the peer may take to say hello.

    Raises:
        ValueError: they do not fit together: every peer would refuse them.
    """

    chunk_bytes: int = 16_384
    max_message_bytes: int = 4 * 1_048_576
    stream_window_bytes: int = 262_144
    session_window_bytes: int = 64 * 1_048_576
    max_streams: int = 1_024
    keepalive_s: float = 10.0
    hello_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Find out here, not from the peer's goodbye."""
        if why := flaw(self):
            raise ValueError(why)


class Allowance(Protocol):
    """What one side of a session allows the other: of `Limits` here, of the `Hello` there."""

    @property
    def max_message_bytes(self) -> int:
        """The largest message."""

    @property
    def stream_window_bytes(self) -> int:
        """Unconsumed bytes on one stream."""

    @property
    def session_window_bytes(self) -> int:
        """The same of all streams together."""

    @property
    def max_streams(self) -> int:
        """Streams at once."""


def flaw(allowed: Allowance) -> str:
    """Why a session that allows its peer this could get stuck, or an empty text."""
    # A quarter of the window may be owed and not yet given back (see the inbox): the rest must hold any message.
    if allowed.session_window_bytes * 3 < (allowed.max_message_bytes + MESSAGE_OVERHEAD_BYTES) * 4:
        return "its session window is too small for its largest message"
    if not (allowed.stream_window_bytes and allowed.max_streams):
        return "it allows no stream, or nothing on one"
    return ""
