"""An identity: the key, certificate and settings that a node has from its join, on disk.

Files of `identity/` in the state directory (mode 0700, keys 0600):

* `node.pem`: the key and its certificate chain, in one file, so that one rename replaces both.
* `ca.crt`: the CAs that sign the hub's certificate.
* `joined.json`: the node's name, and the hub's addresses.
* `next.pem`: the next key and its certificate request. That of a join is `next-….pem`, with a hash of the token's id.
* `lock`: held while the agent, or `edge join`, gets a certificate.

Rules:

* A key is made here, and leaves the directory in no form.
* The next key is on the disk (fsync) before the agent sends its request. If the answer is lost, the agent sends the
  same request again.
* A join makes a key of its own, and the requests of before end with it: whoever had a copy of the directory has none of
  the keys that come now.
* A certificate is on the disk before the agent uses it, and from then on the agent uses no older one: the hub
  refuses a key that a newer one has replaced.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.certificate_ends import Term, term_of
from common.database import lock
from common.endpoint import hub_endpoint
from common.enrolment import NODE_URI, Issued, Renew, fingerprint, renewal_text
from common.errors import SettingsError
from common.fault_points import reach
from common.files import replace_file, sync_directory
from common.parsers import node_name
from common.peer import with_certificate
from common.state_file import Form, read_state, write_state
from common.tls import TlsFiles

FORM = Form("edge agent")  # of `joined.json`
FOLDER = "identity"  # the directory in the state directory

_PEM = serialization.Encoding.PEM
_DER = serialization.Encoding.DER


@dataclass(frozen=True, slots=True)
class Joined:
    """The settings of a joined agent."""

    node: str
    hubs: tuple[str, ...]  # the hub's addresses, as `--hub` takes them; at least one
    joins: tuple[str, ...]  # the addresses of the hub's join listener


class Identity:
    """The files of one state directory. Everything here blocks, for small files and their fsync."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER
        self._joined = self._folder / "joined.json"
        node = self._folder / "node.pem"
        self.files = TlsFiles(self._folder / "ca.crt", node, node)  # the files as TLS uses them

    def joined(self) -> Joined | None:
        try:
            if not self.files.cert.exists():  # the join writes it last
                return None
            return _joined(read_state(self._joined, FORM))
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            advice = f"{self._joined} cannot be used: {why}; repair it, or join again with a new token"
            raise SettingsError("--state-dir", str(self._folder.parent), advice) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from getting a certificate here meanwhile. Raises BlockingIOError if one is at it."""
        if not self._folder.exists():
            self._make_folder()
        descriptor = lock(self._folder / "lock")
        try:
            yield
        finally:
            os.close(descriptor)

    def term(self) -> Term:
        """The time in which the certificate is valid, counted by this node's clock from the moment of its storing."""
        # A clock that is behind the hub's does not lengthen it: it ends after its life, if its date has not come then.
        own, stored_at = self.dates(), self.files.cert.stat().st_mtime
        left_s = min(own.ends_at - own.begins_at, own.ends_at - stored_at)
        return Term(stored_at, stored_at + left_s) if left_s > 0 else own

    def dates(self) -> Term:
        return term_of(x509.load_pem_x509_certificate(self.files.cert.read_bytes()))

    def request(self, token: str = "") -> bytes:
        """The certificate request (PKCS#10, DER) of the next key. The next key is made if there is none yet."""
        path = self._next(token)  # of a renewal, if there is no token
        try:  # a present key is not renewed; but a join that was killed after it had stored its certificate asks again
            content = path.read_bytes()
            if token or _public(_key(content)) != self._present_key():
                return x509.load_pem_x509_csr(content).public_bytes(_DER)
        except (FileNotFoundError, ValueError):
            pass  # there is none, or it is damaged: a request for a new key takes its place
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        self._make_folder()
        reach("identity.before-request")
        replace_file(path, _private(key) + request.public_bytes(_PEM), durable=True, mode=0o600)
        reach("identity.after-request")
        return request.public_bytes(_DER)

    def renewal(self, *, signed: bool) -> Renew:
        """The request for the next certificate, `signed` with the present key for the join listener."""
        request = self.request()
        if not signed:
            return Renew(request)
        content = self.files.cert.read_bytes()
        certificate = x509.load_pem_x509_certificate(content).public_bytes(_DER)
        signature = _key(content).sign(renewal_text(certificate, request), ec.ECDSA(hashes.SHA256()))
        return Renew(request, certificate, signature)

    def store(self, issued: Issued, node: str, *, now: float, host: str = "", token: str = "") -> None:
        """Store the certificate of the next key. After a ValueError nothing has changed.

        `host` is the hub's host that this node can reach, whose addresses come first; empty for that of before.
        """
        reach("identity.before-store")
        path = self._next(token)
        key = _key(path.read_bytes())
        _check(issued, node, key, now)
        for other in self._folder.glob("next*.pem"):  # before this key is in use: they are of the time before
            if other != path:
                other.unlink()
        replace_file(self.files.ca, issued.ca, durable=True, mode=0o644)
        reach("identity.after-ca")
        host = host or self._host()
        hubs, joins = (
            sorted(told, key=lambda it: hub_endpoint(it).host != host) for told in (issued.hubs, issued.joins)
        )
        settings = {"node": node, "hubs": hubs[:1] if issued.one_hub else hubs, "joins": joins}
        write_state(self._joined, FORM, settings, mode=0o600)
        reach("identity.after-settings")
        content = _private(key) + issued.chain
        renaming = partial(reach, "identity.before-rename")
        replace_file(self.files.cert, content, durable=True, mode=0o600, reached=renaming)
        reach("identity.after-certificate")
        path.unlink()  # after the rest: it is the proof of a request whose answer was lost
        reach("identity.after-store")

    def _next(self, token: str) -> Path:
        return self._folder / (f"next-{hashlib.sha256(token.encode()).hexdigest()[:16]}.pem" if token else "next.pem")

    def _host(self) -> str:
        former = self.joined()
        return hub_endpoint(former.hubs[0]).host if former is not None else ""

    def _present_key(self) -> str:
        try:
            content = self.files.cert.read_bytes()
        except FileNotFoundError:
            return ""
        return _public(_key(content))

    def _make_folder(self) -> None:
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o700)
        sync_directory(self._folder.parent)


def _check(issued: Issued, node: str, key: ec.EllipticCurvePrivateKey, now: float) -> None:
    chain = x509.load_pem_x509_certificates(issued.chain)
    authorities = x509.load_pem_x509_certificates(issued.ca)
    told = with_certificate("", chain[0].public_bytes(_DER))
    if told.key != _public(key):
        raise ValueError("the hub's certificate is for another key, or cannot be read")
    if f"{NODE_URI}{node}" not in told.uris:
        raise ValueError("the hub's certificate is for another node")
    if told.not_after <= now:
        raise ValueError("the hub's certificate has ended; compare the clocks of this node and of the hub")
    if not authorities or not issued.hubs:
        raise ValueError("the hub told no CA, or no address")
    for address in issued.hubs + issued.joins:
        if not hub_endpoint(address).tls:
            raise ValueError(f"the hub told the address {address}, which does not begin with wss://")


def _joined(found: dict[str, Any]) -> Joined:
    hubs, joins = (tuple(map(str, found[name])) for name in ("hubs", "joins"))
    if not hubs:
        raise ValueError("it has no hub")
    for address in hubs + joins:
        hub_endpoint(address)
    return Joined(node_name(found["node"]), hubs, joins)


def _key(content: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # a TypeError: it is encrypted
        raise ValueError(f"the key cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is no elliptic curve's")  # noqa: TRY004  # what a file holds is a value
    return key


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _public(key: ec.EllipticCurvePrivateKey) -> str:
    return fingerprint(key.public_key().public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo))
