"""A limit: what a session allows itself and its peer."""

from dataclasses import dataclass

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
    """

    chunk_bytes: int = 16_384
    max_message_bytes: int = 4 * 1_048_576
    stream_window_bytes: int = 262_144
    session_window_bytes: int = 64 * 1_048_576
    max_streams: int = 1_024
    keepalive_s: float = 10.0
    hello_timeout_s: float = 10.0
