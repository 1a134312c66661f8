"""A certificate authority for tests, and certificates for every role of the bridge."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

_CA_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Pem:
    """Three PEM files, for `--tls-ca`, `--tls-cert` and `--tls-key`."""

    ca: Path
    cert: Path
    key: Path

    @property
    def flags(self) -> list[str]:
        """The command line's three flags."""
        return ["--tls-ca", str(self.ca), "--tls-cert", str(self.cert), "--tls-key", str(self.key)]


class Authority:
    """Signs certificates into a directory.

    Args:
        directory: for the files.
        name: the CA's name.
        strict: all certificates have the extensions that RFC 5280 demands and many clusters' lack: key identifiers, and
            the key usage of a CA.
        parent: the authority that signs this one's certificate; None: it signs its own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "csi-bridge test CA",
        strict: bool = True,
        parent: Authority | None = None,
    ) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._strict = strict
        signer = parent or self
        builder = signer._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if strict:
            builder = builder.add_extension(_CA_USAGE, critical=True)
        certificate = builder.sign(signer._key, hashes.SHA256())
        self.path = directory / f"{name.replace(' ', '-')}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def hub(self) -> Pem:
        """Issue a certificate for a hub on this machine."""
        return self.issue("csi-bridge:hub", "csi-bridge:hubs", file="hub")

    def edge(self, node: str) -> Pem:
        """Issue a certificate for the agent of a node."""
        return self.issue(f"system:node:{node}", "system:nodes", file=f"edge-{node}")

    def driver(self, name: str) -> Pem:
        """Issue a certificate for a proxy driver on another host."""
        return self.issue(f"csi-bridge:driver:{name}", "csi-bridge:drivers", file=f"driver-{name}")

    def issue(self, common_name: str, organization: str, *, file: str, expired: bool = False) -> Pem:
        """Issue any certificate for 127.0.0.1 and localhost, valid for an hour, or until a minute ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            self._builder(subject, key, valid=dt.timedelta(minutes=-1) if expired else dt.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        found = Pem(self.path, self.directory / f"{file}.crt", self.directory / f"{file}.key")
        found.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return found

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        valid: dt.timedelta = dt.timedelta(hours=1),
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + valid)
        )
        if not self._strict:
            return builder
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        ).add_extension(ours, critical=False)
