"""What can go wrong between CSI Bridge and a gRPC peer, by who is at fault.

    RelayError
    ├── FramingError                 a peer's gRPC message framing cannot be read
    │   ├── MessageTooLarge          a length prefix above the limit
    │   └── MessageCompressed        a compressed message, though nobody offered an encoding
    ├── MalformedField               a gRPC header field cannot be read
    ├── Http2Error                   a peer broke HTTP/2; its connection ends
    ├── PeerGone                     a stream ended before all that was for it had left
    ├── ServerClosing                we are stopping: the call was refused or cut by our own server
    └── VendorConnectionError        a call to the vendor's driver has no status of the vendor's
        ├── VendorUnreachable        no connection: nothing of the call left this process
        ├── VendorReplaced           another driver is there than the one that the call is for; nothing was sent
        ├── VendorConnectionLost     the connection ended while the call was under way
        ├── VendorStreamRefused      the driver said that it did not begin the call; tried again some times before
        ├── VendorStreamReset        the driver's HTTP/2 server gave the call up
        ├── VendorAnswerInvalid      the answer is not gRPC, or is cut short
        ├── VendorAnswerTooLarge     a message of the answer is above the limit
        └── VendorStatusDoubtful     a status that a gRPC library made, or that a dying driver sent

None of the `VendorConnectionError` family may reach a sidecar as a final code: what the driver did is unknown.
"""


class RelayError(Exception):
    """Base of everything the relay raises on purpose."""


class FramingError(RelayError):
    """The bytes are not a gRPC length-prefixed message that we accept."""


class MessageTooLarge(FramingError):
    """A length prefix announces more than the limit.

    Attributes:
        size_bytes: what the prefix says.
        limit_bytes: what we accept.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"a message of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes")


class MessageCompressed(FramingError):
    """A message says it is compressed.

    We offer no encoding, so no peer may compress (gRPC over HTTP/2, "Compression").
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
        code: the HTTP/2 error code that our GOAWAY carries.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        self.code = code
        super().__init__(text)


class PeerGone(RelayError):
    """The stream, or its connection, is over: what was sent on it reaches nobody."""

    def __init__(self) -> None:
        super().__init__("the caller is gone")


class ServerClosing(RelayError):
    """Our own server is stopping."""

    def __init__(self) -> None:
        super().__init__("CSI Bridge is stopping")


class VendorConnectionError(RelayError):
    """A call to the vendor's driver ended without a status that is the vendor's own.

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
        why: the cause, for people.
    """

    def __init__(self, path: str, why: str) -> None:
        self.why = why
        super().__init__(path, f"cannot connect to unix://{path}: {why}", sent=False)


class VendorReplaced(VendorConnectionError):
    """Another driver answers at the socket than the one that the call is for.

    Attributes:
        name: what the one that is there calls itself.
    """

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        super().__init__(path, f"its socket unix://{path} now belongs to driver {name}", sent=False)


class VendorConnectionLost(VendorConnectionError):
    """The connection ended while the call was under way, or before it could begin (`sent`)."""

    def __init__(self, path: str, why: str, *, sent: bool) -> None:
        super().__init__(path, why, sent=sent)


class VendorStreamRefused(VendorConnectionError):
    """The driver's HTTP/2 server said that the call did not begin: it is safe to send it again (RFC 9113, 8.7)."""

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
    """What came back is not a whole gRPC answer."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, f"the driver {why}", sent=True)


class VendorAnswerTooLarge(VendorConnectionError):
    """A message of the answer is larger than we carry.

    Attributes:
        size_bytes: what the driver announced.
        limit_bytes: what we accept.
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
    """A status came, but a gRPC library made it, or the driver died with it: its code must not be believed.

    Attributes:
        code: the gRPC code that came.
        message: the text that came.
    """

    def __init__(self, path: str, code: int, message: str, why: str) -> None:
        self.code = code
        self.message = message
        super().__init__(path, f"{why}: {message}" if message else why, sent=True)
