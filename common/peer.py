"""A peer: the other side of a connection as the transport knows it, independent of its hello.

Rules:

* Its certificate is read after the TLS handshake has verified it, by one parser.
* `with_certificate` reads the parts that each hello needs. The others are read when something first asks for them: a
  whole fleet may dial within seconds, and they take half of the time.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH.dotted_string
"""The purpose of a certificate with which a client proves its name (RFC 5280, section 4.2.1.12)."""


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

    @cached_property
    def key(self) -> str:
        """SHA-256 of its SubjectPublicKeyInfo, as lower-case hex: two certificates of one key have the same."""
        return key_fingerprint(_load(self.certificate).public_key()) if self.certificate else ""

    @property
    def issuer(self) -> bytes:
        """The DER of its issuer's name; empty without a certificate, or if the name cannot be read."""
        try:
            return _load(self.certificate).issuer.public_bytes() if self.certificate else b""
        except ValueError:
            return b""

    @property
    def common_names(self) -> tuple[str, ...]:
        return self._names(NameOID.COMMON_NAME)

    @property
    def organizations(self) -> tuple[str, ...]:
        return self._names(NameOID.ORGANIZATION_NAME)

    def _names(self, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
        if not self.certificate:
            return ()
        return tuple(str(attribute.value) for attribute in _load(self.certificate).subject.get_attributes_for_oid(oid))


def key_fingerprint(public_key: CertificatePublicKeyTypes) -> str:
    """SHA-256 of a key's SubjectPublicKeyInfo, as lower-case hex."""
    return sha256(public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def with_certificate(address: str, der: bytes, *, proved_at: float = math.inf) -> Peer:
    """The peer at an address, with a certificate that TLS has verified. One that cannot be read counts as none."""
    try:
        found = _load(der)
        # Read now, because it shows damage now: a certificate with an unreadable part counts as none.
        found.subject, found.public_key()
        extensions = found.extensions
        return Peer(
            address,
            local=False,
            certificate=der,
            uris=_uris(extensions),
            purposes=_purposes(extensions),
            serial=found.serial_number,
            not_after=found.not_valid_after_utc.timestamp(),
            not_before=found.not_valid_before_utc.timestamp(),
            proved_at=proved_at,
        )
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return Peer(address, local=False)


_load = x509.load_der_x509_certificate


def _uris(extensions: x509.Extensions) -> tuple[str, ...]:
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def _purposes(extensions: x509.Extensions) -> tuple[str, ...] | None:
    try:
        usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
    return tuple(purpose.dotted_string for purpose in usage)
