"""A node that joins: its keys, requests and signatures, for tests of enrolment."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from common.enrolment import Issued, Renew, renewal_text
from common.peer import Peer, key_fingerprint, with_certificate


@dataclass
class NodeKey:
    """A node's key, and the certificate that the hub issued for it."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    issued: Issued | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key."""
        return key_fingerprint(self.key.public_key())

    @property
    def request(self) -> bytes:
        """A certificate request (DER) whose names the hub must ignore."""
        names = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "system:node:somebody-else")])
        builder = x509.CertificateSigningRequestBuilder().subject_name(names)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.DER)

    @property
    def certificate(self) -> x509.Certificate:
        """The issued certificate."""
        assert self.issued is not None
        return x509.load_pem_x509_certificates(self.issued.chain)[0]

    @property
    def der(self) -> bytes:
        """The issued certificate (DER)."""
        return self.certificate.public_bytes(Encoding.DER)

    def peer(self, address: str = "10.0.0.7:1") -> Peer:
        """The peer that shows the certificate."""
        return with_certificate(address, self.der)

    def late_renewal(self, following: NodeKey, *, signer: NodeKey | None = None) -> Renew:
        """A renewal for the join listener, signed by this key or another one."""
        request = following.request
        text = renewal_text(self.der, request)
        return Renew(request, self.der, (signer or self).key.sign(text, ec.ECDSA(hashes.SHA256())))

    def key_pem(self) -> bytes:
        """The private key as PEM."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
