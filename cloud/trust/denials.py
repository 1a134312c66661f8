"""A denial: an operator's word that a node or a certificate may not connect.

Rules:

* A denial counts at once, in memory. The order has succeeded only when the records have it, too.
* It lasts until `allow`, across restarts of the hub, and also after `forget`.
* `allow` gives a node its name back, and none of the certificates that the hub had issued: copies of its keys stay
  out, and the node joins again. A node with certificates from files comes back with them.
* The denial of a node revokes the tokens that name it, not those with a pattern: these never give away a name that
  exists. `allow` does not bring them back.
* A node is denied by its name, with every certificate. A certificate is denied by its serial number, with every name.
"""

import logging
import re
import time
from collections.abc import Callable

from cloud.records.records import not_durable
from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.trust_store import CertificateState, Denial, DenialKind, TrustStore
from common.errors import order_refused
from common.operator_orders import Allow, Deny
from common.parsers import is_name
from common.store.database_writer import WriteFailed

log = logging.getLogger("csi_bridge.hub.denials")

# A serial number as `openssl x509 -noout -serial` or `-text` prints it: 20 bytes at most (RFC 5280, 4.1.2.2).
_SERIAL = re.compile(r"serial=(?P<hex>[0-9A-Fa-f]{1,40})|(?P<pairs>[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){1,19})")

_LONGEST_WHY_CHARS = 500  # an operator's reason is cut here


class Denials:
    """The denials of one hub."""

    def __init__(self, store: TrustStore, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        # Called after a denial was added: links that it concerns must end
        self.on_change: Callable[[], None] = lambda: None

    def all(self) -> list[Denial]:
        return sorted(self._store.denials.values(), key=lambda denial: denial.at)

    def find(self, node: str, serial: int) -> Denial | None:
        """The denial of a node (empty: another peer), or of its certificate (serial 0: none)."""
        by_serial = self._store.denials.get((DenialKind.SERIAL, f"{serial:x}")) if serial else None
        return self._store.denials.get((DenialKind.NODE, node)) or by_serial

    def denies(self, node: str) -> bool:
        """Whether a node is denied by its name, with every certificate."""
        return self.find(node, 0) is not None

    async def deny(self, order: Deny, by: str) -> str:
        """Deny a node or a certificate. Returns a sentence for the operator.

        Raises CallError if the order names neither, or the denial does not outlive this hub yet.
        """
        kind, value = _read(order.subject)
        denial = Denial(kind, value, self._now(), order.why[:_LONGEST_WHY_CHARS])
        of_node = value if kind is DenialKind.NODE else None
        tokens = [it.id for it in self._store.tokens.values() if it.nodes == of_node and not it.revoked_at]
        durable = self._store.add_denial(denial, tokens)
        audit.add(Event.DENIAL, who="operator", address=by, kind=kind, subject=value, why=denial.why)
        log.warning("an operator denies %s: %s", in_words(denial), denial.why or "no reason given")
        self.on_change()
        try:
            await durable
        except WriteFailed as error:
            raise not_durable(f"{in_words(denial)} is denied", error) from error
        return f"{in_words(denial)} is denied; csi-bridge allow undoes it"

    async def allow(self, order: Allow, by: str) -> str:
        """Undo a denial. Returns a sentence for the operator; empty if there was none.

        Raises CallError if the order names neither, or the records still have the denial.
        """
        kind, value = _read(order.subject)
        denial = self._store.denials.get((kind, value))
        if denial is None:
            return ""
        known = self._store.certificates.get(value, {}) if kind is DenialKind.NODE else {}
        had_certificates = any(it.state is not CertificateState.VOID for it in known.values())
        try:
            await self._store.remove_denial(denial, lambda known: {it: known[it].voided() for it in known})
        except WriteFailed as error:
            raise order_refused(f"{in_words(denial)} stays denied", str(error)) from error
        audit.add(Event.ALLOWANCE, who="operator", address=by, kind=kind, subject=value)
        log.warning("an operator allows %s again", in_words(denial))
        joins = f"; its certificates stay refused: let it join again (csi-bridge token create --node {value} --replace)"
        return f"{in_words(denial)} is no longer denied{joins if had_certificates else ''}"


def in_words(denial: Denial) -> str:
    """The subject of a denial: `edge node n1`, or `the certificate serial=1A2B`."""
    if denial.kind is DenialKind.NODE:
        return f"edge node {denial.value}"
    return f"the certificate serial={denial.value.upper()}"


def serial_of(text: str) -> str:
    """The serial number in the subject of an order, in lower-case hex; empty if it has none."""
    found = _SERIAL.fullmatch(text)
    return f"{int((found['hex'] or found['pairs']).replace(':', ''), 16):x}" if found is not None else ""


def _read(text: str) -> tuple[DenialKind, str]:
    if serial := serial_of(text):
        return DenialKind.SERIAL, serial
    if is_name(text):
        return DenialKind.NODE, text
    raise order_refused(
        f"{text[:100]!r} is neither a node nor a certificate",
        "write a node's name, or serial=HEX as openssl x509 -noout -serial prints it",
    )
