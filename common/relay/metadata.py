"""gRPC's header fields: request headers, time-outs, percent-encoded messages, statuses in trailers.

Pure. The rules are in "gRPC over HTTP2" (grpc/doc/PROTOCOL-HTTP2.md). A value that cannot be read is a ValueError.
"""

import re
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from common.relay.hpack import Header, encode
from common.status import Code, Status

CONTENT_TYPE = b"application/grpc"

# The headers before the first message of every answer.
RESPONSE_HEADERS: list[Header] = [
    (b":status", b"200"),
    (b"content-type", CONTENT_TYPE),
    (b"grpc-accept-encoding", b"identity"),
]

RESPONSE_BLOCK = encode(RESPONSE_HEADERS)
OK_BLOCK = encode([(b"grpc-status", b"0")])

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

_PRINTABLE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")
_OUTER_SPACES = re.compile("^ +|(?<! ) +$")  # looks at each space once: a node may send many
_MAX_TIMEOUT_DIGITS = 99_999_999


def is_grpc(content_type: bytes | None) -> bool:
    """Whether a content-type is gRPC's: `application/grpc`, or that followed by `+format` or `;parameters`."""
    return content_type is not None and (
        content_type == CONTENT_TYPE or content_type.startswith((b"application/grpc+", b"application/grpc;"))
    )


@lru_cache(maxsize=256)  # most calls of a method have the same time
def request_block(method: str, timeout_s: float | None) -> bytes:
    """The header block of a call to a driver.

    `:authority` is `localhost`, as in grpc-go's UNIX resolver. Other clients send the percent-encoded socket path,
    which strict servers refuse.
    """
    block = _method_block(method)
    return block if timeout_s is None else block + encode([(b"grpc-timeout", encode_timeout(timeout_s))])


@lru_cache(maxsize=256)
def _method_block(method: str) -> bytes:
    return encode(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", CONTENT_TYPE),
            (b"user-agent", b"csi-bridge"),  # for a driver's access log
        ]
    )


def encode_timeout(timeout_s: float) -> bytes:
    """A `grpc-timeout` value in the finest unit that needs at most eight digits. A passed deadline is 1 µs."""
    for unit, per_second in ((b"u", 1_000_000), (b"m", 1_000)):
        if (amount := round(timeout_s * per_second)) <= _MAX_TIMEOUT_DIGITS:
            return b"%d%s" % (max(amount, 1), unit)
    return b"%dS" % min(round(timeout_s), _MAX_TIMEOUT_DIGITS)


def parse_timeout(value: bytes) -> float:
    """Seconds of a `grpc-timeout` value: one to eight digits and a unit."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"an unreadable grpc-timeout {value[:40]!r}")
    return int(match[1]) * _UNIT_S[match[2]]


def encode_message(message: str) -> bytes:
    """A `grpc-message` value: printable ASCII stays, the rest of its UTF-8 is percent-encoded.

    A space at either end is encoded as well: HTTP/2 forbids it there (RFC 9113, 8.2.1).
    """
    text = quote(message, safe=_PRINTABLE, errors="replace")
    return _OUTER_SPACES.sub(lambda spaces: "%20" * len(spaces[0]), text).encode("ascii")


def decode_message(value: bytes) -> str:
    """The text of a `grpc-message` value. Never fails: a broken escape stays as it is, broken UTF-8 becomes U+FFFD."""
    return (unquote_to_bytes(value) if b"%" in value else value).decode("utf-8", "replace")


def trailer_block(status: Status, message_limit_bytes: int) -> bytes:
    """A status as a block of trailers. Details are never sent: the CSI spec has none ("Error Scheme").

    Args:
        status: how the call ended.
        message_limit_bytes: a longer `grpc-message` is cut there, because a client kills the stream for trailers above
            its header limit and makes a final status of its own.
    """
    if status.ok and not status.message:
        return OK_BLOCK
    fields = [(b"grpc-status", b"%d" % status.code)]
    if status.message:
        fields.append((b"grpc-message", _cut(encode_message(status.message), message_limit_bytes)))
    return encode(fields)


def _cut(value: bytes, limit_bytes: int) -> bytes:
    if len(value) <= limit_bytes:
        return value
    kept = value[: limit_bytes - 3]
    # Cut neither inside an escape nor between the escapes of one character, which would end in U+FFFD. A space at the
    # end would be written as %20, and the value would be above the limit again.
    text = decode_message(re.sub(rb"%[0-9A-Fa-f]?$", b"", kept)).rstrip("\ufffd ")
    return encode_message(text) + b"..."


def status_of(found: dict[bytes, bytes]) -> Status | None:
    """The status in trailers, or None if there is no `grpc-status`."""
    code = found.get(b"grpc-status")
    message = found.get(b"grpc-message")
    if code is None:
        return None
    if not code.isdigit() or len(code) > 9:
        raise ValueError(f"an unreadable grpc-status {code[:40]!r}")
    return Status(int(code), decode_message(message or b""))


def made_by_library(status: Status) -> bool:
    """Whether a gRPC server library made the status, not the driver.

    A library makes one if a message is too large or cannot be (de)serialised. That may happen before the driver's code
    has seen the call, or after it has done the work. The status comes in real trailers, so only the text distinguishes
    it. Passed on unchanged, it would be final, and the sidecar would forget a created volume
    (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
    """
    return status.message.startswith(_LIBRARY_TEXTS.get(status.code, ()))


# The beginnings of the libraries' texts, by code. Some statuses are the driver's although a library words them, and are
# not listed: grpcio's "Exception calling application: …", C++'s "Unexpected error in RPC handling", and UNIMPLEMENTED
# for a method that the driver lacks.
_LIBRARY_TEXTS: dict[int, tuple[str, ...]] = {
    Code.RESOURCE_EXHAUSTED: (
        # grpc-go: server.go, rpc_util.go, stream.go
        "grpc: received message larger than max",
        "grpc: received message after decompression larger than max",
        "grpc: message after decompression larger than max",
        "grpc: trying to send message larger than max",
        "trying to send message larger than max",
        "grpc: message too large",
        # C-core, and so grpcio and C++: message_size_filter, before 1.60 without the end's name
        "SERVER: Received message larger than max",
        "SERVER: Sent message larger than max",
        "Received message larger than max",
        "Sent message larger than max",
        # grpc-java: MessageDeframer, ServerCallImpl, ServerCalls
        "gRPC message exceeds maximum size",
        "Compressed gRPC message exceeds maximum size",
        "Decompressed gRPC message exceeds maximum size",
        # grpc-dotnet: GrpcProtocolHelpers
        "Received message exceeds the maximum configured message size",
        "Sending message exceeds the maximum configured message size",
    ),
    Code.INTERNAL: (
        # grpc-go: server.go, rpc_util.go, stream.go
        "grpc: error unmarshalling request",
        "grpc: failed to unmarshal the received message",
        "grpc: error while marshaling",
        "grpc: error while compressing",
        "grpc: failed to decompress",
        "grpc: failed to read decompressed data",
        "grpc: no decompressor available",
        "grpc: compressed flag set with identity or empty encoding",
        "grpc: Decompressor is not installed",
        "grpc: received unexpected payload format",
        "grpc: failed to set send compressor",
        "cardinality violation: received no request message",
        "cardinality violation: received multiple request messages",
        "unexpected EOF",
        "no codec registered for content-subtype",
        "malformed grpc-timeout",
        "transport: ",
        # grpcio's own part (_server.py)
        "Exception deserializing request!",
        "Failed to serialize response!",
        # grpc-java: MessageDeframer, ServerCallImpl, ServerCalls
        "Half-closed without a request",
        "Too many requests",
    ),
    Code.UNKNOWN: (
        # grpcio's own part (_server.py)
        "Error in service handler!",
    ),
    Code.OUT_OF_RANGE: (
        # tonic (Rust): codec/decode.rs, codec/encode.rs
        "Error, decoded message length too large",
        "Error, encoded message length too large",
    ),
}
