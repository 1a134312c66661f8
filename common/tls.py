"""A TLS identity: three files (CA, certificate, key) and the contexts made of them, made again when a file changes.

TLS 1.3 and a certificate from both sides, always (design, section 9). The CA is the bridge's own: whoever it signed is
a node or a driver of the bridge, so it must never be the cluster's client CA.
"""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("csi_bridge.tls")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files are: the CA that signs the peers, our certificate (with its chain), our private key."""

    ca: Path
    cert: Path
    key: Path


class TlsIdentity:
    """The contexts for the files' present content. A change that cannot be read is logged, and the old one kept."""

    def __init__(self, files: TlsFiles, *, server: bool) -> None:
        """Read the files.

        Raises:
            OSError: a file is missing or unreadable, or holds no matching PEM (`ssl.SSLError` is an OSError).
        """
        self._files = files
        self._server = server
        self._seen = self._stamp()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._context = self._load()
                self._seen = stamp
                log.info("the TLS files changed; new connections use %s", self._files.cert)
        except OSError as error:
            log.error("the TLS files changed and cannot be used, so the old ones stay in use: %s", error)  # noqa: TRY400  # the sentence says it all
        return self._context

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        found = [path.stat() for path in (self._files.ca, self._files.cert, self._files.key)]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self._files.ca)
        context.load_cert_chain(self._files.cert, self._files.key)
        if self._server:
            context.num_tickets = 0  # sessions last for days: nothing is resumed, and a ticket costs memory
        return context
