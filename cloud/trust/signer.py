"""The signer: issues certificates of nodes with the CA's key, and checks requests for them.

Rules:

* `--ca-key` is the key of one certificate in `--tls-ca`. Both files are read again when they change, so a CA can be
  replaced while the hub runs; a file that cannot be used leaves the earlier one in use.
* The signer takes only the public key from a request, after it has checked the request's own signature. The hub chooses
  all names.
* A certificate begins five minutes before its issue, for clocks that differ, and never outlives the CA's certificate.
* A node that renews at the join listener may show a certificate that has expired. The signer checks all else: a CA of
  `--tls-ca` has signed the certificate, it is for a client, and its key has signed the request.
"""

import datetime as dt
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloud.trust.trust_store import Certificate, CertificateState
from common.errors import HandshakeRefused
from common.net.certificate import is_signed, key_fingerprint, with_certificate
from common.net.enrolment import GENERATION_URI, NODE_URI, RIGHT_URI, RefusedFor, Renew, renewal_text
from common.net.peer import CLIENT_AUTH, Peer
from common.net.tls import TlsFiles

log = logging.getLogger("csi_bridge.hub.signer")

ORGANIZATION: Final = "system:nodes"  # the O of a node's certificate, as of a kubelet's
_COMMON_NAME: Final = "system:node:"
_NO_COMMON_NAME: Final = "csi-bridge node"  # the CN of a node whose name is too long for one; its name is in the URI
_LONGEST_CN_CHARS: Final = 64  # RFC 5280, appendix A: ub-common-name
_BACKDATE: Final = dt.timedelta(minutes=5)

_CA_KEYS: Final = (ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey, rsa.RSAPrivateKey)

# TLS 1.3 signs with a client's key, and does nothing else with it.
_KEY_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)

# Raised by `cryptography` for bytes that are no certificate, request or key.
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)


@dataclass(frozen=True, slots=True)
class _Authority:
    bundle: tuple[x509.Certificate, ...]  # all certificates of `--tls-ca`
    certificate: x509.Certificate | None  # the CA certificate of `key`
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | None


class Signer:
    """Issues certificates of nodes."""

    def __init__(
        self, files: TlsFiles, ca_key: Path | None, *, ttl_s: float, now: Callable[[], float] = time.time
    ) -> None:
        """Read the CA. Without its key, this signer only checks.

        Raises OSError if a file cannot be read, ValueError if it holds no usable PEM or the key belongs to no
        certificate in `--tls-ca`.
        """
        self.ttl_s = ttl_s  # how long a certificate is valid
        self._files = files
        self._ca_key = ca_key
        self._now = now
        self._seen = self._contents()
        self._authority = self._load(self._seen)

    @property
    def can_sign(self) -> bool:
        return self._ca_key is not None

    def secret(self, label: bytes) -> bytes:
        """Derives a secret for one purpose (`label`) from the CA's key; empty if this hub has no CA key."""
        key = self._fresh().key
        form = (Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return hmac.digest(key.private_bytes(*form), label, "sha256") if key is not None else b""

    def bundle(self) -> bytes:
        return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self._fresh().bundle)

    def pin(self) -> str:
        """The fingerprint of the root CA's key, under which the hub's certificate was issued."""
        # A file may hold a chain, whose last certificate is nearest to the root.
        certificate = x509.load_pem_x509_certificates(self._files.cert.read_bytes())[-1]
        bundle = self._fresh().bundle
        for _ in bundle:  # one issuer up in each round; a root stays
            certificate = next((ca for ca in bundle if is_signed(certificate, by=ca)), certificate)
        return key_fingerprint(certificate.public_key())

    def hub_names(self) -> list[str]:
        """The DNS names and IP addresses in the hub's own certificate, without wildcards and names inside a cluster."""
        certificate = x509.load_pem_x509_certificates(self._files.cert.read_bytes())[0]
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return []
        inside = (".svc", ".svc.cluster.local")  # no edge node resolves these
        hosts = [
            name for name in names.get_values_for_type(x509.DNSName) if "*" not in name and not name.endswith(inside)
        ]
        return [*hosts, *map(str, names.get_values_for_type(x509.IPAddress))]

    # ---- requests ----------------------------------------------------------------------------------------------------

    def key_in_request(self, request: bytes) -> str:
        """The fingerprint of the key in a certificate request (PKCS#10, DER).

        Raises HandshakeRefused if the bytes are no request, the key is not EC P-256, or another key has signed the
        request.
        """
        return key_fingerprint(_request_key(request))

    def check_renewal(self, renew: Renew, address: str, *, grace_s: float) -> Peer:
        """Check a node's renewal at the join listener. Returns the owner of the certificate that the node has now.

        Raises HandshakeRefused if the signature is not of the certificate's key, no CA of `--tls-ca` has signed the
        certificate, it is not for a client, or it expired longer ago than `grace_s`.
        """
        try:
            certificate = x509.load_der_x509_certificate(renew.certificate)
            public_key = certificate.public_key()
        except _UNREADABLE as error:
            raise HandshakeRefused(RefusedFor.REQUEST, "the present certificate cannot be read") from error
        if not isinstance(public_key, ec.EllipticCurvePublicKey):
            raise HandshakeRefused(RefusedFor.REQUEST, "the present certificate's key is not an EC key")
        if not any(is_signed(certificate, by=ca) for ca in self._fresh().bundle):
            raise HandshakeRefused(RefusedFor.CERTIFICATE, "the present certificate is not signed by a CA of this hub")
        try:
            text = renewal_text(renew.certificate, renew.request)
            public_key.verify(renew.signature, text, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature as error:
            raise HandshakeRefused(
                RefusedFor.REQUEST, "the signature is not of the present certificate's key"
            ) from error
        peer = with_certificate(address, renew.certificate)
        if CLIENT_AUTH not in (peer.purposes or ()) or ORGANIZATION not in peer.organizations:
            raise HandshakeRefused(RefusedFor.CERTIFICATE, "the present certificate is not one of a node")
        ended_s = self._now() - peer.not_after
        if ended_s > grace_s:
            raise HandshakeRefused(
                RefusedFor.CERTIFICATE,
                f"the present certificate ended {ended_s / 86_400:.1f} days ago, longer than --renew-grace; join again "
                f"with a new token",
            )
        return peer

    def sign(self, request: bytes, *, node: str, generation: int, rights: Iterable[str]) -> Certificate:
        """Issue a certificate for a request (PKCS#10, DER). Empty `rights` are for every driver.

        Raises HandshakeRefused as `key_in_request` does, and if the CA's own certificate has ended, or has not begun.
        """
        authority = self._fresh()
        ca = authority.certificate
        ca_key = authority.key
        assert ca is not None  # callers check `can_sign`
        assert ca_key is not None
        public_key = _request_key(request)
        now = dt.datetime.fromtimestamp(self._now(), dt.UTC).replace(microsecond=0)
        ends = min(now + dt.timedelta(seconds=self.ttl_s), ca.not_valid_after_utc)
        if ends <= now:
            raise HandshakeRefused(
                RefusedFor.CERTIFICATE,
                "the hub's CA certificate has ended by the hub's clock; its operator must replace it, or set the clock",
            )
        if now < ca.not_valid_before_utc:
            raise HandshakeRefused(
                RefusedFor.CERTIFICATE, "the hub's CA certificate is not valid yet by the hub's clock; set that clock"
            )
        uris = _identity_uris(node, generation, rights)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_subject(node))
            .issuer_name(ca.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _BACKDATE, ca.not_valid_before_utc))
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName(uris), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_KEY_USAGE, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(_authority_key(ca), critical=False)
            .sign(ca_key, None if isinstance(ca_key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
        )
        return Certificate(
            node,
            generation,
            key_fingerprint(public_key),
            f"{certificate.serial_number:x}",
            issued_at=self._now(),
            not_after=certificate.not_valid_after_utc.timestamp(),
            state=CertificateState.PENDING,
            pem=certificate.public_bytes(Encoding.PEM).decode(),
        )

    def chain(self, pem: str) -> bytes:
        """A certificate of this signer, as PEM, followed by its issuer's certificate if the issuer is no root CA."""
        certificate = x509.load_pem_x509_certificate(pem.encode())
        intermediates = (ca for ca in self._fresh().bundle if ca.issuer != ca.subject and is_signed(certificate, by=ca))
        return pem.encode() + b"".join(ca.public_bytes(Encoding.PEM) for ca in intermediates)

    # ---- files -------------------------------------------------------------------------------------------------------

    def _fresh(self) -> _Authority:
        try:
            contents = self._contents()
            if contents != self._seen:
                self._seen = contents  # also if they cannot be used, so that they are tried and logged once
                self._authority = self._load(contents)
                log.info("the CA files changed; certificates are signed by %s", self._files.ca)
        except (OSError, ValueError) as error:
            log.error("the CA files changed and cannot be used, so the old ones stay in use: %s", error)  # noqa: TRY400  # the sentence says it all
        return self._authority

    def _contents(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in (self._files.ca, self._ca_key) if path is not None)

    def _load(self, contents: tuple[bytes, ...]) -> _Authority:
        try:
            bundle = tuple(x509.load_pem_x509_certificates(contents[0]))
        except _UNREADABLE as error:
            raise ValueError(f"{self._files.ca} holds no certificates") from error
        if self._ca_key is None:
            return _Authority(bundle, None, None)
        try:
            key = load_pem_private_key(contents[1], password=None)
        except _UNREADABLE as error:
            raise ValueError(f"{self._ca_key} holds no private key without a password") from error
        if not isinstance(key, _CA_KEYS):
            raise ValueError(f"{self._ca_key} is a key that signs no certificates")  # noqa: TRY004  # a file's fault
        for certificate in bundle:
            if certificate.public_key() == key.public_key():
                return _Authority(bundle, certificate, key)
        raise ValueError(f"{self._ca_key} is not the key of a certificate in {self._files.ca}")


def _subject(node: str) -> x509.Name:
    common_name = f"{_COMMON_NAME}{node}"
    if len(common_name) > _LONGEST_CN_CHARS:
        common_name = _NO_COMMON_NAME
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _identity_uris(node: str, generation: int, rights: Iterable[str]) -> list[x509.UniformResourceIdentifier]:
    texts = [f"{NODE_URI}{node}", f"{GENERATION_URI}{generation}", *(f"{RIGHT_URI}{driver}" for driver in rights)]
    return [x509.UniformResourceIdentifier(text) for text in texts]


def _request_key(request: bytes) -> ec.EllipticCurvePublicKey:
    try:
        parsed = x509.load_der_x509_csr(request)
        key = parsed.public_key()
        is_valid = parsed.is_signature_valid
    except _UNREADABLE as error:
        raise HandshakeRefused(RefusedFor.REQUEST, "the certificate request cannot be read") from error
    # The agent makes no other key (`edge.identity.key_maker`).
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise HandshakeRefused(RefusedFor.REQUEST, "the certificate request's key is not an EC key on P-256")
    if not is_valid:
        raise HandshakeRefused(RefusedFor.REQUEST, "the certificate request is not signed by its own key")
    return key


def _authority_key(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    # The issuer's key id must be the one in the CA's own certificate (RFC 5280, section 4.2.1.1).
    try:
        key_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        key = ca.public_key()
        assert isinstance(key, (ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey, rsa.RSAPublicKey))
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id.value)
