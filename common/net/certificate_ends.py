"""A certificate's end: until when the certificate and the CA of this process are valid.

Rules:

* A warning comes a week before the end, or in the last fifth of a shorter life. A node renews at two thirds of the
  life, so a certificate that is renewed in time never has a warning.
* If a file has several certificates, the first one that ends counts.
* The dates are read here from the DER (RFC 5280, section 4.1): `common.net.certificate` would take 9 MB of an agent.
"""

import asyncio
import binascii
import logging
import ssl
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from common.errors import timestamp
from common.observe.metrics import Metrics

log = logging.getLogger("csi_bridge.tls")

_SOON_S: Final = 7 * 86_400.0
_LAST_PART: Final = 5
_LOOK_S: Final = 3_600.0

OWN, CA = "own", "ca"  # values of the metric's label `certificate`: this process's, and the CA of its peers


@dataclass(frozen=True, slots=True)
class Term:
    """The time in which a certificate is valid, in seconds since the epoch."""

    begins_at: float  # 0: not known
    ends_at: float

    def ends_soon(self, now: float) -> bool:
        return self.ends_at - now < min(_SOON_S, (self.ends_at - self.begins_at) / _LAST_PART)


def terms_in(pem: bytes) -> list[Term]:
    """The terms of all certificates in a PEM file. Raises ValueError if it has none, or one cannot be read."""
    parts = (part.partition(_FOOTER) for part in pem.split(_HEADER)[1:])  # in one pass: a hub gives a node its file
    found = [_term(binascii.a2b_base64(body)) for body, footer, _ in parts if footer]
    if not found:
        raise ValueError("there is no certificate in it")
    return found


_HEADER = ssl.PEM_HEADER.encode()
_FOOTER = ssl.PEM_FOOTER.encode()

_VERSION = 0xA0
_UTC_TIME = 0x17


def _term(der: bytes) -> Term:
    try:
        _, at, _ = _element(der, 0)  # the certificate
        _, at, _ = _element(der, at)  # the part that is signed
        tag, _, _ = _element(der, at)
        for _ in range(4 if tag == _VERSION else 3):  # version, serial number, algorithm, issuer
            _, _, at = _element(der, at)
        _, at, _ = _element(der, at)  # the validity
        begins_at, at = _time(der, at)
        return Term(begins_at, _time(der, at)[0])
    except IndexError as error:
        raise ValueError("a certificate in it is damaged") from error


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    # The tag of an element of DER, where its content begins, and where it ends.
    tag = der[at]
    length = der[at + 1]
    at = at + 2
    if length & 0x80:
        begins = at + (length & 0x7F)
        length = int.from_bytes(der[at:begins])
        at = begins
    if at + length > len(der):
        raise IndexError(at + length)
    return tag, at, at + length


def _time(der: bytes, at: int) -> tuple[float, int]:
    tag, begins, end = _element(der, at)
    text = der[begins:end].decode("ascii")
    if tag == _UTC_TIME:
        text = f"{19 if text >= '5' else 20}{text}"
    return datetime.fromisoformat(f"{text[:8]}T{text[8:]}").timestamp(), end


class CertificateEnds:
    """Watches the certificate files of one process."""

    def __init__(self, cert: Path | None, ca: Path | None, metrics: Metrics, *, renews: bool = False) -> None:
        files = {OWN: cert, CA: ca}
        self._files = {name: path for name, path in files.items() if path is not None}
        self._renews = renews
        self._logged: set[str] = set()
        for name, path in self._files.items():
            metrics.certificate_ends.read_from(partial(_end, path), name)

    def problems(self) -> list[str]:
        now = time.time()
        problems = []
        for name, path in self._files.items():
            term = _first_end(path)
            if term is None or not term.ends_soon(now) or (self._renews and name == OWN):
                continue  # a process that renews its own says so itself if it cannot
            what = "the certificate" if name == OWN else "a CA certificate"
            ends = "has ended" if term.ends_at <= now else "ends"
            do = "renew the file" if name == OWN else "change the CA (docs/trust.md#change-the-ca)"
            problems.append(f"{what} in {path} {ends} at {timestamp(term.ends_at)}; {do}, and no restart is needed")
        return problems

    async def follow(self) -> None:
        while True:
            for sentence in await asyncio.to_thread(self.problems):
                if sentence not in self._logged:
                    self._logged.add(sentence)
                    log.warning("%s", sentence)
            await asyncio.sleep(_LOOK_S)


def _end(path: Path) -> float:
    term = _first_end(path)
    return term.ends_at if term is not None else float("nan")


def _first_end(path: Path) -> Term | None:
    # None if the file cannot be read, which TLS reports.
    try:
        return min(terms_in(path.read_bytes()), key=lambda term: term.ends_at)
    except (OSError, ValueError):
        return None
