"""A peer: the other side of a connection as the transport knows it, independent of its hello.

Its certificate is read once, after the TLS handshake has verified it.
"""

import math
from dataclasses import dataclass
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH.dotted_string
"""The purpose of a certificate with which a client proves its name (RFC 5280, section 4.2.1.12)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side of a connection. Without a certificate, the fields after `uid` have their defaults.

    Attributes:
        address: for logs: `10.0.0.7:51234`, or `pid 4711 uid 0` on a UNIX socket.
        local: whether it is connected by a UNIX socket.
        uid: its user id on the UNIX socket, else None.
        common_names: the certificate's CN values, in their order.
        organizations: its O values.
        uris: the URIs of its subjectAltName.
        purposes: the object identifiers of its extended key usage; None without that extension.
        issuer: the DER of its issuer's name.
        serial: its serial number.
        key: SHA-256 of its SubjectPublicKeyInfo, as lower-case hex: two certificates of one key have the same.
        not_after: the second in which it ends, in seconds since the epoch.
        not_before: the second in which it begins.
        proved_at: when TLS verified it, in seconds of the monotonic clock; infinity if something else proved its key.
    """

    address: str
    local: bool
    uid: int | None = None
    common_names: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    purposes: tuple[str, ...] | None = None
    issuer: bytes = b""
    serial: int = 0
    key: str = ""
    not_after: float = 0.0
    not_before: float = 0.0
    proved_at: float = math.inf

    @property
    def host(self) -> str:
        """The address without its port; the same for all connections of one host."""
        return self.address if self.local else self.address.rpartition(":")[0]


def key_fingerprint(public_key: CertificatePublicKeyTypes) -> str:
    """SHA-256 of a key's SubjectPublicKeyInfo, as lower-case hex."""
    return sha256(public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def with_certificate(address: str, der: bytes, *, proved_at: float = math.inf) -> Peer:
    """The peer at an address, with a certificate that TLS has verified. One that cannot be read gives no names."""
    try:
        found = x509.load_der_x509_certificate(der)
        subject, extensions = found.subject, found.extensions
        return Peer(
            address,
            local=False,
            common_names=_names(subject, NameOID.COMMON_NAME),
            organizations=_names(subject, NameOID.ORGANIZATION_NAME),
            uris=_uris(extensions),
            purposes=_purposes(extensions),
            issuer=found.issuer.public_bytes(),
            serial=found.serial_number,
            key=key_fingerprint(found.public_key()),
            not_after=found.not_valid_after_utc.timestamp(),
            not_before=found.not_valid_before_utc.timestamp(),
            proved_at=proved_at,
        )
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return Peer(address, local=False)


def _names(name: x509.Name, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
    return tuple(str(attribute.value) for attribute in name.get_attributes_for_oid(oid))


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
