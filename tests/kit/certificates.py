"""A certificate authority for tests, and certificates for every role of the bridge."""

import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.net.certificate import key_fingerprint

CLIENT_AUTH, SERVER_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

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

_ROLES = {
    "node": ("system:node:", "system:nodes", "edge-"),
    "driver": ("csi-bridge:driver:", "csi-bridge:drivers", "driver-"),
}
"""By role: what its common name begins with, its organization, and what its file's name begins with."""

_LONGEST_CN_CHARS = 64  # RFC 5280, appendix A: ub-common-name


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

    def client(self) -> ssl.SSLContext:
        """A client's TLS context with these files."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context

    @property
    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.cert.read_bytes())

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key's SubjectPublicKeyInfo, as `common.net.peer.Peer.key`."""
        return key_fingerprint(self.certificate.public_key())


class Authority:
    """Signs certificates into a directory.

    Args:
        name: the CA's name.
        strict: all certificates have the extensions that RFC 5280 demands and many clusters' lack: key identifiers, and
            the key usage of a CA.
        parent: the authority that signs this one's certificate; None: it signs its own.
        lifetime_s: the life of the CA's certificate from now on.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "csi-bridge test CA",
        strict: bool = True,
        parent: "Authority | None" = None,
        lifetime_s: float = 3600.0,
    ) -> None:
        self.directory = directory  # for the files
        self._issued = 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._strict = strict
        signer = parent or self
        builder = signer._builder(self._name, self._key.public_key(), lifetime_s=lifetime_s).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if strict:
            builder = builder.add_extension(_CA_USAGE, critical=True)
        certificate = builder.sign(signer._key, hashes.SHA256())
        self.path = directory / f"{name.replace(' ', '-')}.pem"  # its certificate
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key_path = self.path.with_suffix(".key")  # its private key
        _write_key(self.key_path, self._key)

    def hub(self, *addresses: str, names: Iterable[str] = (), serves: Sequence[str] = ()) -> Pem:
        """Issue a certificate for a hub on this machine, with further addresses, names, and drivers that it serves."""
        return self.issue(
            "csi-bridge:hub",
            "csi-bridge:hubs",
            file="hub",
            addresses=addresses,
            names=names,
            uris=[f"csi-bridge:driver:{driver}" for driver in serves],
            purposes=[SERVER_AUTH, CLIENT_AUTH] if serves else [SERVER_AUTH],
        )

    def edge(self, node: str, *, drivers: Iterable[str] = (), lifetime_s: float = 3600.0) -> Pem:
        """Issue a certificate for the agent of a node, which may report these drivers; none: every driver."""
        return self._issue_role("node", node, lifetime_s, drivers)

    def driver(self, name: str, *, lifetime_s: float = 3600.0) -> Pem:
        """Issue a certificate for a proxy driver on another host."""
        return self._issue_role("driver", name, lifetime_s)

    def _issue_role(self, role: str, name: str, lifetime_s: float, drivers: Iterable[str] = ()) -> Pem:
        prefix, organization, file = _ROLES[role]
        common_name = prefix + name
        self._issued += 1  # two certificates of one name have files of their own
        return self.issue(
            common_name if len(common_name) <= _LONGEST_CN_CHARS else f"csi-bridge {role}",
            organization,
            file=f"{(file + name)[:200]}-{self._issued}",
            uris=[f"csi-bridge:{role}:{name}", *(f"csi-bridge:may-run:{driver}" for driver in drivers)],
            purposes=[CLIENT_AUTH],
            lifetime_s=lifetime_s,
        )

    def issue(
        self,
        common_name: str | Sequence[str],
        organization: str,
        *,
        file: str,
        uris: Iterable[str] = (),
        addresses: Iterable[str] = (),
        names: Iterable[str] = (),
        purposes: Sequence[x509.ObjectIdentifier] | None = (CLIENT_AUTH, SERVER_AUTH),
        lifetime_s: float = 3600.0,
        expired: bool = False,
        extensions: Iterable[x509.ExtensionType] = (),
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Pem:
        """Issue any certificate for 127.0.0.1 and localhost.

        Args:
            common_name: its CN, or several.
            organization: its O.
            file: the name of its files, without `.crt` and `.key`.
            uris: URIs in its subjectAltName.
            addresses: further IP addresses there.
            names: further names there.
            purposes: its extended key usage; None: no such extension.
            lifetime_s: its life from now on. A certificate ends at a whole second.
            expired: it ended a minute ago.
            extensions: more extensions, not critical.
            key: its key; None makes one.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        common_names = [common_name] if isinstance(common_name, str) else common_name
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                *(x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common_names),
            ]
        )
        alternatives: list[x509.GeneralName] = [
            *(x509.DNSName(name) for name in ("localhost", *names)),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in dict.fromkeys(("127.0.0.1", *addresses))),
            *(x509.UniformResourceIdentifier(uri) for uri in uris),
        ]
        builder = self._builder(subject, key.public_key(), lifetime_s=-60.0 if expired else lifetime_s)
        for extension in [x509.SubjectAlternativeName(alternatives), *extensions]:
            builder = builder.add_extension(extension, critical=False)
        if purposes is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        found = Pem(self.path, self.directory / f"{file}.crt", self.directory / f"{file}.key")
        found.cert.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        _write_key(found.key, key)
        return found

    def sign(
        self,
        key: object,
        node: str,
        *,
        lifetime_s: float = 3600.0,
        names: x509.ExtensionType | None = None,
    ) -> bytes:
        """Sign a public key for a node's agent; `names` replaces its URI. Returns the certificate as PEM."""
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes")])
        usual = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"csi-bridge:node:{node}")])
        builder = self._builder(subject, key, lifetime_s=lifetime_s)  # type: ignore[arg-type]  # a request's key
        builder = builder.add_extension(names or usual, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([CLIENT_AUTH]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def sign_again(self, certificate: bytes, *, lifetime_s: float) -> bytes:
        """Sign the key and the names of a node's certificate (PEM) once more."""
        former = x509.load_pem_x509_certificate(certificate)
        names = former.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return self.sign(former.public_key(), "", lifetime_s=lifetime_s, names=names)

    def reissue(self, pem: Pem, node: str) -> Pem:
        """Issue another certificate for the key of a node's agent."""
        cert = pem.cert.with_suffix(".again.crt")
        cert.write_bytes(self.sign(pem.certificate.public_key(), node))
        return Pem(pem.ca, cert, pem.key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, lifetime_s: float
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # A node's later certificate begins at a later second, as one that is renewed does.
            .not_valid_before(now - dt.timedelta(minutes=5) + dt.timedelta(seconds=self._issued))
            .not_valid_after(now + dt.timedelta(seconds=lifetime_s))
        )
        if not self._strict:
            return builder
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False).add_extension(
            ours, critical=False
        )


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, *, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Let a client and a server shake hands in memory. Returns their ends, or raises what one of them does not take."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = client.wrap_bio(to_client, to_server, server_hostname=name)
    here = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (there, here, there, here):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return there, here


def bundle(path: Path, *authorities: Authority) -> Path:
    """Write the certificates of several authorities to one file, for `--tls-ca`."""
    path.write_bytes(b"".join(authority.path.read_bytes() for authority in authorities))
    return path


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
