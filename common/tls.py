"""A TLS identity: CA, certificate and key in three files, and the TLS contexts made of them.

Rules:

* Links use TLS 1.3 with certificates from both sides.
* The CA is the bridge's own. Every certificate that it signs makes its holder a node or a driver of the bridge, so it
  must not be the cluster's client CA.
* A certificate that works on one version of Python works on all. From 3.13 on, Python refuses certificates without some
  extensions of RFC 5280, such as the Authority Key Identifier (`ssl.VERIFY_X509_STRICT`). These contexts accept them.
"""

import errno
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.files import Stamp, stamp_of

log = logging.getLogger("csi_bridge.tls")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of the PEM files: the peers' CA, this side's certificate with its chain, and its private key."""

    ca: Path
    cert: Path
    key: Path


class TlsIdentity:
    """The TLS context of three files, reloaded when one changes. If the new files cannot be used, it stays.

    Attributes:
        certificate: the content of the certificate file in the context.
    """

    def __init__(self, files: TlsFiles, *, server: bool, asks: bool = True) -> None:
        """Read the files.

        Args:
            files: their paths.
            server: whether this side accepts connections.
            asks: whether a server asks for a certificate. The join listener does not: a joining node has none yet.

        Raises:
            OSError: a file is missing or unreadable, or holds no matching PEM (`ssl.SSLError` is an OSError).
        """
        self._files = files
        self._server, self._asks = server, asks
        self.certificate = b""
        self._seen = self._stamps()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps  # also for files that cannot be used, so that they are tried and logged once
            try:
                self._context = self._load()
            except OSError as error:
                log.error("the TLS files changed and cannot be used, so the old ones stay in use: %s", error)  # noqa: TRY400  # the sentence says it all
            else:
                log.info("the TLS files changed; new connections use %s", self._files.cert)
        return self._context

    def _stamps(self) -> tuple[Stamp, ...]:
        return tuple(stamp_of(path) for path in (self._files.ca, self._files.cert, self._files.key))

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._asks:
            context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with _blaming(self._files.ca):
            context.load_verify_locations(self._files.ca)
        with _blaming(self._files.cert, self._files.key):
            certificate = self._files.cert.read_bytes()
            context.load_cert_chain(self._files.cert, self._files.key, password=self._refuse_password)
        if self._server:
            context.num_tickets = 0  # links last for days, so no TLS session is resumed, and a ticket costs memory
        self.certificate = certificate
        return context

    def _refuse_password(self) -> str:
        """Called only for an encrypted key. Without this function OpenSSL would wait for input on the terminal."""
        raise OSError(errno.EINVAL, f"{self._files.key}: the key is encrypted; it must have no password")


@contextmanager
def _blaming(*files: Path) -> Iterator[None]:
    """Add the files' names to errors: OpenSSL does not say which file it means."""
    try:
        for file in files:
            file.open("rb").close()
        yield
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        why = "the key is not that certificate's" if mismatch else "it is not a PEM file of that kind"
        raise ssl.SSLError(error.errno, f"{' with '.join(map(str, files))}: {why} ({error.reason or error})") from error
