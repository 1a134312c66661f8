"""A relay error: a fault between CSI Bridge and a gRPC peer.

No `VendorConnectionError` may reach a sidecar as a final code, because the call's outcome is unknown
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
"""

from typing import Final


class MessageAboveLimit(Exception):
    """A length prefix announces `size_bytes`, which is more than the limit."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(f"a message of {size_bytes} bytes is larger than the limit")


class MessageCompressed(Exception):
    """A message is compressed. The relay offers no encoding, so no peer may (gRPC over HTTP/2, "Compression")."""


class Http2Error(Exception):
    """The peer broke the HTTP/2 protocol (RFC 9113), or does not speak it. `code` is for the GOAWAY."""

    def __init__(self, text: str, code: int = 1) -> None:
        self.code = code
        super().__init__(text)


class PeerGone(Exception):
    """The stream or its connection is over, so the caller cannot get the message."""


class VendorConnectionError(Exception):
    """A call to the vendor's driver ended without the vendor's own status."""

    def __init__(self, text: str, *, sent: bool) -> None:
        self.sent = sent  # False only if no byte of the request was written: the driver cannot have begun the call
        super().__init__(text)


# The `why` of a `VendorUnreachable` that is this process's own fault, and says nothing about the driver.
OUT_OF_RESOURCES: Final = "this process has no file descriptor or no memory left"


class VendorUnreachable(VendorConnectionError):
    """There is no usable connection to the driver's socket. `why` is the reason, for people."""

    def __init__(self, path: str, why: str) -> None:
        self.why = why
        super().__init__(f"cannot connect to unix://{path}: {why}", sent=False)


class VendorCallWithheld(VendorConnectionError):
    """The call may not begin any more (`ClientCall.may_begin`)."""

    def __init__(self) -> None:
        super().__init__("the call was withheld", sent=False)


class VendorAnswerTooLarge(VendorConnectionError):
    """A message of the answer announces `size_bytes`, more than `limit_bytes`."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the driver's answer of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes", sent=True
        )
