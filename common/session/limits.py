"""A limit: the sizes and times that a session keeps to and grants its peer."""

from dataclasses import dataclass

from common.messages import Hello

# The credit that a message costs in addition to its bytes, so that a flood of empty messages is bounded, too.
MESSAGE_OVERHEAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes (bytes) and times (seconds) of one session. Raises ValueError if they contradict each other."""

    chunk_bytes: int = 16_384  # the largest piece of a message: 2 s on a 64 kbit/s link, a fifth of the keepalive
    max_message_bytes: int = 4 * 1_048_576  # gRPC's own default
    stream_window_bytes: int = 262_144  # the unconsumed bytes on one stream after which its sender has to wait
    session_window_bytes: int = 64 * 1_048_576  # the same for all streams together
    max_streams: int = 1_024  # the peer's, open or not yet acknowledged
    # Silence after which the session sends a ping; after twice this time the peer counts as dead.
    keepalive_s: float = 10.0
    # It has to outlast a hub's work for a fleet: 10,000 agents that dial at once with TLS take it 10 to 25 s.
    hello_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if why := flaw(self):
            raise ValueError(why)


def flaw(allowed: Limits | Hello) -> str:
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
