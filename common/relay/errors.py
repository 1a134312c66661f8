"""A relay error: a fault between CSI Bridge and a gRPC peer.

No `VendorConnectionError` may reach a sidecar as a final code, because the call's outcome is unknown
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
"""


class MessageTooLarge(Exception):
    """A length prefix announces more than the limit.

    Attributes:
        size_bytes: the announced size.
        limit_bytes: the limit.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"a message of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes")


class MessageCompressed(Exception):
    """A message's flag says that it is compressed.

    The relay offers no encoding, so no peer may compress (gRPC over HTTP/2, "Compression").
    """

    def __init__(self) -> None:
        super().__init__("a message is compressed, and no compression was offered")


class MalformedField(Exception):
    """A gRPC header field has a value that cannot be read."""

    def __init__(self, name: str, value: bytes) -> None:
        super().__init__(f"an unreadable {name} {value[:40]!r}")


class Http2Error(Exception):
    """The peer broke the HTTP/2 protocol (RFC 9113), or does not speak it.

    Attributes:
        code: the HTTP/2 error code for the GOAWAY.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        self.code = code
        super().__init__(text)


class PeerGone(Exception):
    """The stream or its connection is over, so the caller cannot get the message."""

    def __init__(self) -> None:
        super().__init__("the caller is gone")


class ServerClosing(Exception):
    """This process's server is stopping: it refused or cut the call."""

    def __init__(self) -> None:
        super().__init__("CSI Bridge is stopping")


class VendorConnectionError(Exception):
    """A call to the vendor's driver ended without the vendor's own status.

    Attributes:
        sent: False only if no byte of the request's headers was written: the driver cannot have begun the call.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(text)


class VendorUnreachable(VendorConnectionError):
    """There is no usable connection to the driver's socket.

    Attributes:
        why: the reason, for people.
    """

    def __init__(self, path: str, why: str) -> None:
        self.why = why
        super().__init__(f"cannot connect to unix://{path}: {why}", sent=False)


class VendorCallWithheld(VendorConnectionError):
    """The call may not begin any more (`ClientCall.may_begin`)."""

    def __init__(self) -> None:
        super().__init__("the call was withheld", sent=False)


class VendorStreamRefused(VendorConnectionError):
    """The driver's HTTP/2 server did not begin the call, so it is safe to send it again (RFC 9113, 8.7)."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=True)


class VendorAnswerInvalid(VendorConnectionError):
    """The driver's answer is not a whole gRPC answer."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the driver {why}", sent=True)


class VendorAnswerTooLarge(VendorConnectionError):
    """A message of the answer is larger than the limit.

    Attributes:
        size_bytes: the announced size.
        limit_bytes: the limit.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the driver's answer of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes", sent=True
        )
