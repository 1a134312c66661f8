"""The revocation list: certificates that their CA has revoked (a CRL, RFC 5280, section 5).

Rules:

* One PEM file may hold several lists, of several CAs. A CA of --tls-ca must have signed each of them.
* The hub reads the file again when it changes. If it cannot be used then, the last good lists stay, and the hub says
  so.
* A list that is past its nextUpdate still counts, and the hub says so: to refuse every peer would be worse.
* Lists about other issuers' certificates (indirect ones) and lists of changes (delta ones) are refused: to skip their
  entries would admit a revoked peer.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from common.errors import SettingsError, timestamp
from common.files import Stamp, stamp_of

log = logging.getLogger("csi_bridge.hub.revocations")

_BEGIN = b"-----BEGIN X509 CRL-----"
_END = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class _List:
    """One revocation list.

    Attributes:
        issuer: the DER of its CA's name.
        serials: the revoked serial numbers.
        next_update: when its CA promised a newer one, in seconds since the epoch; None: never.
    """

    issuer: bytes
    serials: frozenset[int]
    next_update: float | None


class Revocations:
    """The revocation lists of one file, or none."""

    def __init__(self, path: Path | None, ca: Path | None, *, now: Callable[[], float] = time.time) -> None:
        """Read the file.

        Args:
            path: the file; None: nothing is revoked.
            ca: the certificates of the CAs (`--tls-ca`).
            now: the time, in seconds since the epoch.

        Raises:
            SettingsError: the file cannot be used.
        """
        self._path, self._ca, self._now = path, ca, now
        self._seen = self._stamps()
        self._trouble = ""
        self._lists: tuple[_List, ...] = ()
        if path is not None and ca is not None:
            try:
                self._lists = _read(path, ca)
            except (OSError, ValueError) as error:
                raise SettingsError("--tls-crl", str(path), str(error)) from error

    @property
    def has_lists(self) -> bool:
        """Whether there is any list."""
        return bool(self._lists)

    def is_revoked(self, serial: int, issuer: bytes) -> bool:
        """Whether a list names a certificate, by its serial number and the DER of its issuer; empty: any issuer."""
        return any(serial in found.serials and issuer in (b"", found.issuer) for found in self._lists)

    def has_changed(self) -> bool:
        """Whether the file, or that of the CAs, has changed since it was read."""
        return self._path is not None and self._stamps() != self._seen

    def reload(self) -> int | None:
        """Read the file again. Blocks.

        Returns:
            How many certificates are revoked that were not before. None: the file cannot be used, and the last good
            lists stay. If it could not be read, `has_changed` stays true.
        """
        assert self._path is not None
        assert self._ca is not None
        seen = self._stamps()
        try:
            lists = _read(self._path, self._ca)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError):  # its content: it is tried once
                self._seen = seen
            trouble = f"the revocation list {self._path} cannot be used, so the last good one counts: {error}"
            if trouble != self._trouble:
                log.error("%s", trouble)  # noqa: TRY400  # the sentence says it all
            self._trouble = trouble
            return None
        self._seen = seen
        before, self._lists, self._trouble = self._entries(), lists, ""
        more = len(self._entries() - before)
        log.info("the revocation list %s changed; certificates that it newly revokes: %d", self._path, more)
        return more

    def problems(self) -> Iterable[str]:
        """A list that cannot be used, or that is past its time, a sentence each."""
        if self._trouble:
            yield self._trouble
        for found in self._lists:
            if found.next_update is not None and found.next_update < self._now():
                yield (
                    f"the revocation list {self._path} should have been replaced at {timestamp(found.next_update)}; it "
                    f"still counts, but newer revocations are missing"
                )

    def _entries(self) -> set[tuple[bytes, int]]:
        return {(found.issuer, serial) for found in self._lists for serial in found.serials}

    def _stamps(self) -> tuple[Stamp, Stamp] | None:
        if self._path is None or self._ca is None:
            return None
        return stamp_of(self._path), stamp_of(self._ca)


def _read(path: Path, ca: Path) -> tuple[_List, ...]:
    """The lists of a file.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no list, or none that can be used.
    """
    authorities = x509.load_pem_x509_certificates(ca.read_bytes())
    parts = path.read_bytes().split(_BEGIN)[1:]
    if not parts:
        raise ValueError("it holds no revocation list in PEM (BEGIN X509 CRL)")
    return tuple(_read_list(_BEGIN + part.partition(_END)[0] + _END + b"\n", authorities) for part in parts)


def _read_list(pem: bytes, authorities: list[x509.Certificate]) -> _List:
    found = x509.load_pem_x509_crl(pem)
    name = found.issuer.rfc4514_string()
    if not any(_is_signed_by(found, authority) for authority in authorities):
        raise ValueError(f"no CA of --tls-ca has signed the list of {name}")
    unfit = [extension.oid.dotted_string for extension in found.extensions if not _is_fit(extension)]
    if unfit:
        raise ValueError(f"the list of {name} is no whole list of its CA (critical extension {', '.join(unfit)})")
    next_update = found.next_update_utc
    return _List(
        found.issuer.public_bytes(),
        frozenset(entry.serial_number for entry in found),
        next_update.timestamp() if next_update is not None else None,
    )


def _is_fit(extension: x509.Extension[x509.ExtensionType]) -> bool:
    """Whether the entries of a list with this extension are certificates of the list's own issuer, and all of them."""
    if isinstance(extension.value, x509.IssuingDistributionPoint):
        return not extension.value.indirect_crl
    return not extension.critical


def _is_signed_by(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    if authority.subject != found.issuer:
        return False
    try:
        return found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # else TypeError
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
