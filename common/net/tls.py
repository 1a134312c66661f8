"""A TLS identity: CA, certificate and key in three files, and the TLS contexts made of them.

Rules:

* Links use TLS 1.3 with certificates from both sides.
* The CA is the bridge's own. Every certificate that it signs makes its holder a node or a driver of the bridge, so it
  must not be the cluster's client CA.
* A server sends its certificate with the CAs above it, as OpenSSL does by itself. OpenSSL would put them together, and
  verify them, at each handshake.
* A certificate that works on one version of Python works on all. From 3.13 on, Python refuses certificates without some
  extensions of RFC 5280, such as the Authority Key Identifier (`ssl.VERIFY_X509_STRICT`). These contexts accept them.
"""

import errno
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.store.files import Stamp, stamp_of

log = logging.getLogger("csi_bridge.tls")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of the PEM files: the peers' CA, this side's certificate with its chain, and its private key."""

    ca: Path
    cert: Path
    key: Path


class TlsIdentity:
    """The TLS context of three files, reloaded when one changes. If the new files cannot be used, it stays.

    Files that cannot be read are tried again for each connection: a process without a free descriptor must not stay on
    an old certificate, or on a CA that was taken out.
    """

    def __init__(self, files: TlsFiles, *, server: bool, asks: bool = True) -> None:
        """Read the files. A server that `asks` wants a certificate; a joining node has none yet.

        Raises OSError: a file is missing or unreadable, or holds no matching PEM.
        """
        self._files = files
        self._server = server
        self._asks = asks
        self.certificate = b""
        self._seen = self._told = self._stamps()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._context = self._load()
            except OSError as error:
                if isinstance(error, ssl.SSLError):  # their content: it is tried once
                    self._seen = stamps
                if stamps != self._told:
                    log.error("the TLS files changed and cannot be used, so the old ones stay in use: %s", error)  # noqa: TRY400  # the sentence says it all
                self._told = stamps
            else:
                self._seen = self._told = stamps
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
            with _with_chain(certificate, self._files.ca.read_bytes() if self._server else b"") as chain:
                context.load_cert_chain(chain or self._files.cert, self._files.key, password=self._refuse_password)
        if self._server:
            context.num_tickets = 0  # links last for days, so no TLS session is resumed, and a ticket costs memory
        self.certificate = certificate
        return context

    def _refuse_password(self) -> str:
        # Called only for an encrypted key. Without it OpenSSL would wait for input on the terminal.
        raise OSError(errno.EINVAL, f"{self._files.key}: the key is encrypted; it must have no password")


@contextmanager
def _with_chain(pem: bytes, authorities: bytes) -> Iterator[str]:
    # A file of a certificate and the CAs above it; empty if it has a chain already, or its CA is not there.
    chain: list[bytes] = []
    if authorities:  # of a server
        from common.net.certificate import chain_above  # noqa: PLC0415  # see its rules

        chain = chain_above(pem, authorities)
    if not chain:
        yield ""
        return
    with os.fdopen(os.memfd_create("csi-bridge-chain", os.MFD_CLOEXEC), "wb") as file:  # OpenSSL reads files alone
        file.write(b"\n".join([pem, *chain]))
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


@contextmanager
def _blaming(*files: Path) -> Iterator[None]:
    # OpenSSL does not say which file it means.
    try:
        for file in files:
            file.open("rb").close()
        yield
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        why = "the key is not that certificate's" if mismatch else "it is not a PEM file of that kind"
        raise ssl.SSLError(error.errno, f"{' with '.join(map(str, files))}: {why} ({error.reason or error})") from error
