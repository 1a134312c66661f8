"""The authorities: the CAs of `--tls-ca`. When one is taken out of the file, the links that it had proved end.

Rules:

* TLS reads the file again for new connections (`common.net.tls`). This module ends the older links.
* A link stays if its certificate names an issuer that is in the file and was not taken out. Any other link ends, also
  one whose CA has only the name of the one that was taken out: its peer dials again, and TLS decides.
* A file that cannot be used takes no CA out.
"""

import asyncio
import logging
import time
from pathlib import Path

from cryptography import x509

from cloud.trust import audit
from cloud.trust.audit import Event
from common.errors import SettingsError
from common.net.peer import Peer
from common.store.files import Stamp, stamp_of

log = logging.getLogger("csi_bridge.hub.authorities")


class Authorities:
    """The CAs of one file, or none."""

    def __init__(self, path: Path | None) -> None:
        """Read the file, which TLS has read already; without a path the hub has no TLS.

        Raises SettingsError if it has changed since, or has a certificate that OpenSSL takes and this library does not.
        """
        self._path = path
        self._seen = self._stamp()
        try:
            self._found = _read(path) if path is not None else frozenset()
        except (OSError, ValueError) as error:
            raise SettingsError("--tls-ca", path, f"cannot be used: {error}") from error
        self._taken_out: frozenset[bytes] = frozenset()
        self._taken_at = 0.0

    async def read_again(self) -> bool:
        """Read the file again if it has changed. Returns whether CAs were taken out."""
        if self._path is None or (seen := self._stamp()) == self._seen:
            return False
        try:
            found = await asyncio.to_thread(_read, self._path)
        except OSError:  # tried again; TLS complains
            return False
        except ValueError:
            found = self._found
        self._seen = seen
        gone = self._found - found
        self._found = found
        if not gone:
            return False
        # By name alone: the links' certificates name their issuer, and TLS has not kept which CA proved them.
        self._taken_out, self._taken_at = frozenset(it.subject.public_bytes() for it in gone), time.monotonic()
        names = sorted(it.subject.rfc4514_string() for it in gone)
        log.warning("taken out of %s: %s; the links that it has proved end", self._path, "; ".join(names))
        audit.add(Event.CERTIFICATES, who="hub", read="--tls-ca", taken_out=names)
        return True

    def count(self, peer: Peer) -> bool:
        """Whether a peer's certificate is one of a CA in the file, as far as its issuer's name tells."""
        if peer.proved_at >= self._taken_at or not peer.issuer:  # in this order: an issuer takes time to read
            return True
        names = {it.subject.public_bytes() for it in self._found} - self._taken_out
        return peer.issuer in names

    def _stamp(self) -> Stamp | None:
        return stamp_of(self._path) if self._path is not None else None


def _read(path: Path) -> frozenset[x509.Certificate]:
    return frozenset(x509.load_pem_x509_certificates(path.read_bytes()))
