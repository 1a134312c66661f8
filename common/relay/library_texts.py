"""A library text: the message of a status that a gRPC server library made, not the driver.

A library makes such a status if a message is too large or cannot be (de)serialised. That may happen before the driver's
code has seen the call, or after it has done the work. The status comes in real trailers, so only the text distinguishes
it. Passed on unchanged, it would be final, and the sidecar would forget a created volume
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).

Some statuses are the driver's although a library words them, and are not listed: grpcio's "Exception calling
application: …", C++'s "Unexpected error in RPC handling", and UNIMPLEMENTED for a method that the driver lacks.
"""

from common.status import Code

LIBRARY_TEXTS: tuple[tuple[int, str], ...] = (
    # grpc-go: server.go, rpc_util.go, stream.go
    (Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max"),
    (Code.RESOURCE_EXHAUSTED, "grpc: received message after decompression larger than max"),
    (Code.RESOURCE_EXHAUSTED, "grpc: message after decompression larger than max"),
    (Code.RESOURCE_EXHAUSTED, "grpc: trying to send message larger than max"),
    (Code.RESOURCE_EXHAUSTED, "trying to send message larger than max"),
    (Code.RESOURCE_EXHAUSTED, "grpc: message too large"),
    (Code.INTERNAL, "grpc: error unmarshalling request"),
    (Code.INTERNAL, "grpc: failed to unmarshal the received message"),
    (Code.INTERNAL, "grpc: error while marshaling"),
    (Code.INTERNAL, "grpc: error while compressing"),
    (Code.INTERNAL, "grpc: failed to decompress"),
    (Code.INTERNAL, "grpc: failed to read decompressed data"),
    (Code.INTERNAL, "grpc: no decompressor available"),
    (Code.INTERNAL, "grpc: compressed flag set with identity or empty encoding"),
    (Code.INTERNAL, "grpc: Decompressor is not installed"),
    (Code.INTERNAL, "grpc: received unexpected payload format"),
    (Code.INTERNAL, "grpc: failed to set send compressor"),
    (Code.INTERNAL, "cardinality violation: received no request message"),
    (Code.INTERNAL, "cardinality violation: received multiple request messages"),
    (Code.INTERNAL, "unexpected EOF"),
    (Code.INTERNAL, "no codec registered for content-subtype"),
    (Code.INTERNAL, "malformed grpc-timeout"),
    (Code.INTERNAL, "transport: "),
    # C-core, and so grpcio and C++: message_size_filter, before 1.60 without the end's name
    (Code.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max"),
    (Code.RESOURCE_EXHAUSTED, "SERVER: Sent message larger than max"),
    (Code.RESOURCE_EXHAUSTED, "Received message larger than max"),
    (Code.RESOURCE_EXHAUSTED, "Sent message larger than max"),
    # grpcio's own part (_server.py)
    (Code.INTERNAL, "Exception deserializing request!"),
    (Code.INTERNAL, "Failed to serialize response!"),
    (Code.UNKNOWN, "Error in service handler!"),
    # grpc-java: MessageDeframer, ServerCallImpl, ServerCalls
    (Code.RESOURCE_EXHAUSTED, "gRPC message exceeds maximum size"),
    (Code.RESOURCE_EXHAUSTED, "Compressed gRPC message exceeds maximum size"),
    (Code.RESOURCE_EXHAUSTED, "Decompressed gRPC message exceeds maximum size"),
    (Code.INTERNAL, "Half-closed without a request"),
    (Code.INTERNAL, "Too many requests"),
    # tonic (Rust): codec/decode.rs, codec/encode.rs
    (Code.OUT_OF_RANGE, "Error, decoded message length too large"),
    (Code.OUT_OF_RANGE, "Error, encoded message length too large"),
    # grpc-dotnet: GrpcProtocolHelpers
    (Code.RESOURCE_EXHAUSTED, "Received message exceeds the maximum configured message size"),
    (Code.RESOURCE_EXHAUSTED, "Sending message exceeds the maximum configured message size"),
)
"""Each text's code and beginning."""

_BY_CODE: dict[int, tuple[str, ...]] = {
    code: tuple(text for other, text in LIBRARY_TEXTS if other == code) for code, _ in LIBRARY_TEXTS
}


def made_by_library(code: int, message: str) -> bool:
    """Whether a status is a gRPC library's own, by its code and text."""
    prefixes = _BY_CODE.get(code)
    return prefixes is not None and message.startswith(prefixes)
