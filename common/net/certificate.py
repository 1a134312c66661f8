"""A certificate: read with the library for it.

Rules:

* The library takes 9 MB of memory. An agent never reads a certificate with it, so only a process that accepts links,
  makes certificates or checks them imports this module.
* A peer's certificate is read after the TLS handshake has verified it, by one parser.
* `with_certificate` reads the parts that each hello needs. The others are read when something first asks for them: a
  whole fleet may dial within seconds, and they take half of the time.
"""

import math
from functools import cached_property
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from common.net.peer import Peer

_load = x509.load_der_x509_certificate


class _Certified(Peer):
    @cached_property
    def key(self) -> str:
        return key_fingerprint(_load(self.certificate).public_key())

    @property
    def issuer(self) -> bytes:
        try:
            return _load(self.certificate).issuer.public_bytes()
        except ValueError:
            return b""

    @property
    def common_names(self) -> tuple[str, ...]:
        return self._names(NameOID.COMMON_NAME)

    @property
    def organizations(self) -> tuple[str, ...]:
        return self._names(NameOID.ORGANIZATION_NAME)

    def _names(self, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
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
        return _Certified(
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


def chain_above(pem: bytes, authorities: bytes) -> list[bytes]:
    """The CAs above a certificate that stands alone, up to the last one that is there."""
    try:
        (last,), known = x509.load_pem_x509_certificates(pem), x509.load_pem_x509_certificates(authorities)
    except ValueError:  # it has a chain, or OpenSSL will say what is wrong
        return []
    chain: list[bytes] = []
    while (
        last.issuer != last.subject
        and (above := next((it for it in known if is_signed(last, by=it)), None)) is not None
    ):
        known.remove(above)
        last = above
        chain.append(last.public_bytes(Encoding.PEM))
    return chain


def is_signed(certificate: x509.Certificate, *, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
