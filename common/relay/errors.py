"""A relay error: a fault between CSI Bridge and a gRPC peer.

    RelayError
    ├── FramingError                 a peer's gRPC message framing cannot be read
    │   ├── MessageTooLarge          a length prefix is above the limit
    │   └── MessageCompressed        a message is compressed, although no encoding was offered
    ├── MalformedField               a gRPC header field cannot be read
    ├── Http2Error                   a peer broke HTTP/2; its connection ends
    ├── PeerGone                     a stream ended before all of its bytes had left
    ├── ServerClosing                this server is stopping: it refused or cut the call
    └── VendorConnectionError        a call to the vendor's driver ended without the vendor's status
        ├── VendorUnreachable        no connection: no byte of the call left this process
        ├── VendorReplaced           another driver than the call's serves the socket; nothing was sent
        ├── VendorCallWithheld       the caller's permission ended while the call waited; nothing was sent
        ├── VendorConnectionLost     the connection ended during the call
        ├── VendorStreamRefused      the driver did not begin the call, not even at further attempts
        ├── VendorStreamReset        the driver's HTTP/2 server reset the call
        ├── VendorAnswerInvalid      the answer is not gRPC, or is incomplete
        ├── VendorAnswerTooLarge     a message of the answer is above the limit
        └── VendorStatusDoubtful     a gRPC library made the status, or a stopping driver sent it

No `VendorConnectionError` may reach a sidecar as a final code, because the call's outcome is unknown
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
"""


class RelayError(Exception):
    """The base of the relay's errors."""


class FramingError(RelayError):
    """The bytes are not an acceptable length-prefixed message of gRPC."""


class MessageTooLarge(FramingError):
    """A length prefix announces more than the limit.

    Attributes:
        size_bytes: the announced size.
        limit_bytes: the limit.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"a message of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes")


class MessageCompressed(FramingError):
    """A message's flag says that it is compressed.

    The relay offers no encoding, so no peer may compress (gRPC over HTTP/2, "Compression").
    """

    def __init__(self) -> None:
        super().__init__("a message is compressed, and no compression was offered")


class MalformedField(RelayError):
    """A gRPC header field has a value that cannot be read.

    Attributes:
        name: the field.
    """

    def __init__(self, name: str, value: bytes) -> None:
        self.name = name
        super().__init__(f"an unreadable {name} {value[:40]!r}")


class Http2Error(RelayError):
    """The peer broke the HTTP/2 protocol (RFC 9113), or does not speak it.

    Attributes:
        code: the HTTP/2 error code for the GOAWAY.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        self.code = code
        super().__init__(text)


class PeerGone(RelayError):
    """The stream or its connection is over, so the caller cannot get the message."""

    def __init__(self) -> None:
        super().__init__("the caller is gone")


class ServerClosing(RelayError):
    """This process's server is stopping."""

    def __init__(self) -> None:
        super().__init__("CSI Bridge is stopping")


class VendorConnectionError(RelayError):
    """A call to the vendor's driver ended without the vendor's own status.

    Attributes:
        path: the driver's socket.
        sent: False only if no byte of the request's headers was written: the driver cannot have begun the call.
    """

    def __init__(self, path: str, text: str, *, sent: bool) -> None:
        self.path = path
        self.sent = sent
        super().__init__(text)


class VendorUnreachable(VendorConnectionError):
    """There is no usable connection to the driver's socket.

    Attributes:
        why: the reason, for people.
    """

    def __init__(self, path: str, why: str) -> None:
        self.why = why
        super().__init__(path, f"cannot connect to unix://{path}: {why}", sent=False)


class VendorReplaced(VendorConnectionError):
    """Another driver than the call's answers at the socket.

    Attributes:
        name: the other driver's name.
    """

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        super().__init__(path, f"its socket unix://{path} now belongs to driver {name}", sent=False)


class VendorCallWithheld(VendorConnectionError):
    """The call may not begin any more (`ClientCall.may_begin`)."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the call was withheld", sent=False)


class VendorConnectionLost(VendorConnectionError):
    """The connection ended during the call, or before it could begin (`sent`)."""

    def __init__(self, path: str, why: str, *, sent: bool) -> None:
        super().__init__(path, why, sent=sent)


class VendorStreamRefused(VendorConnectionError):
    """The driver's HTTP/2 server did not begin the call, so it is safe to send it again (RFC 9113, 8.7)."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why, sent=True)


class VendorStreamReset(VendorConnectionError):
    """The driver ended the call with RST_STREAM, which carries no gRPC status.

    Attributes:
        code: the HTTP/2 error code.
    """

    def __init__(self, path: str, code: int, code_name: str) -> None:
        self.code = code
        super().__init__(path, f"the driver reset the stream (HTTP/2 error {code_name})", sent=True)


class VendorAnswerInvalid(VendorConnectionError):
    """The driver's answer is not a whole gRPC answer."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, f"the driver {why}", sent=True)


class VendorAnswerTooLarge(VendorConnectionError):
    """A message of the answer is larger than the limit.

    Attributes:
        size_bytes: the announced size.
        limit_bytes: the limit.
    """

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            path,
            f"the driver's answer of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes",
            sent=True,
        )


class VendorStatusDoubtful(VendorConnectionError):
    """A gRPC library made the status, or the driver was stopping: the code tells nothing about the call.

    Attributes:
        code: the received gRPC code.
        message: the received text.
    """

    def __init__(self, path: str, code: int, message: str, why: str) -> None:
        self.code = code
        self.message = message
        super().__init__(path, f"{why}: {message}" if message else why, sent=True)
