"""A node that joins: its keys, requests and signatures, for tests of enrolment."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from common.messages import Chunk, End, Kind, Open, Priority
from common.net.certificate import key_fingerprint, with_certificate
from common.net.enrolment import Answer, Issued, Renew, Request, decode, encode, renewal_text
from common.net.peer import Peer
from tests.kit.stranger import Stranger


@dataclass
class NodeKey:
    """A node's key, and the certificate that the hub issued for it."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    issued: Issued | None = None

    @property
    def fingerprint(self) -> str:
        return key_fingerprint(self.key.public_key())

    @property
    def request(self) -> bytes:
        """A certificate request (DER) whose names the hub must ignore."""
        names = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "system:node:somebody-else")])
        builder = x509.CertificateSigningRequestBuilder().subject_name(names)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.DER)

    @property
    def certificate(self) -> x509.Certificate:
        assert self.issued is not None
        return x509.load_pem_x509_certificates(self.issued.chain)[0]

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def peer(self, address: str = "10.0.0.7:1") -> Peer:
        return with_certificate(address, self.der)

    def late_renewal(self, following: "NodeKey", *, signer: "NodeKey | None" = None) -> Renew:
        """A renewal for the join listener, signed by this key or another one."""
        request = following.request
        text = renewal_text(self.der, request)
        return Renew(request, self.der, (signer or self).key.sign(text, ec.ECDSA(hashes.SHA256())))

    def client(self, ca: Path, directory: Path) -> ssl.SSLContext:
        """A client's TLS context that shows the certificate."""
        assert self.issued is not None
        cert, key = directory / f"{self.fingerprint[:16]}.crt", directory / f"{self.fingerprint[:16]}.key"
        cert.write_bytes(self.issued.chain)
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        context = trusting(ca)
        context.load_cert_chain(cert, key)
        return context


def trusting(ca: Path) -> ssl.SSLContext:
    """A client's TLS context that shows no certificate."""
    return ssl.create_default_context(cafile=str(ca))


def ask(stranger: Stranger, request: Request, kind: Kind, *, stream: int = 1) -> Answer | End:
    """Make a request on a link that has greeted. Returns the answer, or the end of a stream without one."""
    stranger.frames(Open(stream, kind, Priority.CALL, "", "", "", "", 0), Chunk(stream, 0, encode(request)))
    payload = b""
    while True:
        for frame in stranger.next_frames():
            if isinstance(frame, Chunk):
                payload += frame.payload
            elif isinstance(frame, End):
                return decode(payload) if payload else frame  # type: ignore[return-value]  # a hub sends answers
