"""A peer: the other side of a connection as the transport knows it, independent of its hello."""

import math
from dataclasses import dataclass, field

# The purpose of a certificate with which a client proves its name (RFC 5280, section 4.2.1.12).
CLIENT_AUTH = "1.3.6.1.5.5.7.3.2"


@dataclass(frozen=True)
class Peer:
    """The other side of a connection. Without a certificate, the fields after `uid` have their defaults."""

    address: str  # for logs: `10.0.0.7:51234`, or `pid 4711 uid 0` on a UNIX socket
    local: bool  # whether it is connected by a UNIX socket
    uid: int | None = None  # its user on the UNIX socket
    certificate: bytes = field(default=b"", repr=False)  # DER; empty also if it cannot be read
    uris: tuple[str, ...] = ()  # those of the certificate's subjectAltName
    # The object identifiers of its extended key usage; None without that extension.
    purposes: tuple[str, ...] | None = None
    serial: int = 0
    not_after: float = 0.0  # the second in which it ends, since the epoch
    not_before: float = 0.0  # the second in which it begins
    # When TLS verified it, in seconds of the monotonic clock; infinity if something else proved its key.
    proved_at: float = math.inf

    @property
    def host(self) -> str:
        """The address without its port; the same for all connections of one host."""
        return self.address if self.local else self.address.rpartition(":")[0]

    @property
    def key(self) -> str:
        """SHA-256 of its SubjectPublicKeyInfo, as lower-case hex: two certificates of one key have the same."""
        return ""

    @property
    def issuer(self) -> bytes:
        """The DER of its issuer's name; empty without a certificate, or if the name cannot be read."""
        return b""

    @property
    def common_names(self) -> tuple[str, ...]:
        return ()

    @property
    def organizations(self) -> tuple[str, ...]:
        return ()
