"""The generations of a node's certificate: which one counts, and how a copy of a node's keys is seen.

Rules:

* Each certificate that the hub issues to a node has the next generation of this node. It is pending until its key
  authenticates, and current from then on; the earlier ones are void then. So a lost answer locks no node out: the
  present key counts until the agent has used the next one, and the agent uses it only after it is on its disk.
* A void key that appears is refused. The hub shows it, because an agent never goes back: either its state directory
  was restored from a copy, or somebody else has its keys. The newest key goes on, also in the wrong hands.
* A generation above all that the hub knows counts: the CA has signed it, so the hub has lost its record (it was
  restored from a backup). Of two keys of one generation, the one that the hub has a record of counts.
* A node that has connected with a generation is admitted with its generations alone, also when all of them are void
  (`cloud.trust.denials`). A certificate without one, from files, is refused.
* Certificates of nodes that have never joined have no generation, and no rules here.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.trust_store import Certificate, Certificates, CertificateState, TrustStore
from common.errors import HandshakeRefused, timestamp
from common.messages import Reason
from common.net.enrolment import generation_of
from common.net.peer import Peer
from common.observe.logs import of_peer
from common.observe.metrics import Metrics
from common.store.fault_points import reach

log = logging.getLogger("csi_bridge.hub.generations")

MOST_VOID: Final = 4  # of a node: the newest, for operators; and that of its last join

# A node that asks for more loses the oldest of them. It needs one of a renewal, and perhaps one of a join meanwhile.
# Its record has each as a whole, and should stay below 6 KiB.
MOST_PENDING: Final = 2


class Generations:
    """Judges the certificates of nodes, and keeps their generations in the trust store."""

    def __init__(self, store: TrustStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        # By node: the serial of the last void certificate that appeared, and a sentence about it
        self._copies: dict[str, tuple[str, str]] = {}

    # ---- certificates that appear ------------------------------------------------------------------------------------

    def examine(self, node: str, shown: Peer) -> None:
        """Raise HandshakeRefused if a node's certificate does not count; a void one is noted."""
        if self.counts(node, shown):
            return
        if not generation_in(shown):
            raise HandshakeRefused(
                Reason.CERTIFICATE,
                f"edge node {node} has joined, and this certificate has no generation: an agent that has joined "
                f"uses the certificate that the hub issued; join again to replace it",
            )
        self._note_copy(node, shown)
        asked = self._asked_for(node)

        def why(later: str) -> str:
            return (
                f"a later certificate of edge node {node}{later} has replaced this one; if another machine has this "
                f"node's keys, run csi-bridge deny {node} on the hub's host; then join again with a new token"
            )

        raise HandshakeRefused(Reason.DENIED, why(""), shown=why(f", {asked},") if asked else "")

    def counts(self, node: str, shown: Peer) -> bool:
        """Whether a certificate is current, pending, above all known ones, or of a node that never joined.

        Raises HandshakeRefused if its generation cannot be read.
        """
        known = self._store.certificates.get(node, {})
        generation = generation_in(shown)
        if not generation:
            return all(it.state is CertificateState.PENDING for it in known.values())
        found = known.get(generation)
        if found is None:
            return generation > max(known, default=0)
        return found.key == shown.key and found.state is not CertificateState.VOID

    def authenticated(self, node: str, shown: Peer) -> None:
        """Note that a node was admitted with a certificate that counts: it is current, and earlier ones are void."""
        generation = generation_in(shown)
        known = self._store.certificates.get(node, {})
        found = known.get(generation)
        if not generation or (found is not None and found.state is CertificateState.CURRENT):
            return
        if found is None:
            found = _adopted(node, generation, shown)
        # A join may still be repeated: the agent's machine may have died when it had stored the answer.
        current = replace(found, state=CertificateState.CURRENT, pem=found.pem if found.token else "")
        earlier = {number: it.voided() if number < generation else it for number, it in known.items()}
        reach("generations.before-use")
        self._store.put_certificates(node, _trimmed({**earlier, generation: current}))
        reach("generations.after-use")
        self._copies.pop(node, None)
        line = "generation %d of the certificate of node %s is in use"
        log.info(line, generation, node, extra=of_peer(f"edge {node}"))
        audit.add(Event.RENEWAL, who=node, address=shown.address, generation=generation, in_use="yes")

    # ---- certificates to issue ---------------------------------------------------------------------------------------

    def adopt(self, node: str, shown: Peer) -> None:
        """Note a certificate above all known ones, whose key has signed a request for the next one."""
        generation = generation_in(shown)
        known = self._store.certificates.get(node, {})
        if generation > max(known, default=0):
            self._store.put_certificates(node, {**known, generation: _adopted(node, generation, shown)})

    async def add(self, made: Certificate, *, uses_token: bool) -> None:
        """Store a new certificate before it is sent, in the place of an earlier one of its generation.

        Void the oldest ones that the node asked for and does not use. If that raises WriteFailed, nothing has changed.
        """
        await self._store.change_certificates(
            made.node,
            lambda known: _trimmed({**known, made.generation: made}),
            used_for=made if uses_token else None,
        )

    def next_of(self, node: str) -> int:
        return max(self._store.certificates.get(node, {}), default=0) + 1

    def issued_to(self, node: str, key: str) -> Certificate | None:
        found = self._store.certificates.get(node, {}).values()
        return next((it for it in found if it.key == key and it.state is not CertificateState.VOID), None)

    def outlived_by(self, serial: str) -> tuple[str, str]:
        """The node that has a certificate after the one with this serial number, and may use it; empty: none.

        Also when the newest one was asked for, and from where.
        """
        for node, known in self._store.certificates.items():
            found = next((it.generation for it in known.values() if it.serial == serial), 0)
            if found and any(it.generation > found and it.state is not CertificateState.VOID for it in known.values()):
                return node, self._asked_for(node)
        return "", ""

    def joined(self, node: str) -> str:
        """The last join of a node, such as ` (it joined at … from …)`; empty if the hub has no record of one."""
        join = _last_join(self._store.certificates.get(node, {}))
        return f" (it joined {join.asked})" if join is not None and join.asked else ""

    def has_joined(self, node: str) -> bool:
        return node in self._store.certificates

    # ---- copies ------------------------------------------------------------------------------------------------------

    def settle(self, node: str) -> bool:
        """Show no longer that a void certificate of a node appeared. Returns whether one had."""
        return self._copies.pop(node, None) is not None

    def problems(self) -> Iterable[str]:
        yield from (why for _, why in self._copies.values())

    def _note_copy(self, node: str, shown: Peer) -> None:
        generation = generation_in(shown)
        newest = max(self._store.certificates.get(node, {}), default=0)
        serial = f"{shown.serial:x}"
        asked = self._asked_for(node)
        why = (
            f"a replaced certificate of edge node {node} appeared at {timestamp(time.time())} from {shown.address} "
            f"(generation {generation} of {newest}, serial {serial}) and is refused: either an old state directory was "
            f"restored, or two machines have this node's keys{f'; the one that counts was {asked}' if asked else ''}; "
            f"find out which machine is the node"
        )
        self._metrics.conflicts.inc("copy")
        audit.add(
            Event.COPY, who=node, address=shown.address, generation=generation, newest=newest, serial=serial
        )  # fmt: skip
        if self._copies.get(node, ("", ""))[0] != serial:
            log.warning("%s", why, extra=of_peer(f"edge {node}"))
        self._copies[node] = serial, why

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _asked_for(self, node: str) -> str:
        known = self._store.certificates.get(node, {}).values()
        newest = max(
            (it for it in known if it.state is not CertificateState.VOID), key=lambda it: it.generation, default=None
        )
        return f"asked for {newest.asked}" if newest is not None and newest.asked else ""


def _adopted(node: str, generation: int, shown: Peer) -> Certificate:
    log.warning(
        "node %s has generation %d of its certificate, which this hub has no record of; it is taken over",
        node,
        generation,
    )
    serial = f"{shown.serial:x}"
    return Certificate(node, generation, shown.key, serial, 0.0, shown.not_after, CertificateState.PENDING)


def _trimmed(known: Certificates) -> Certificates:
    # Those that nobody has used go first: a request that is repeated with ever new keys must not fill the record.
    unused = sorted(number for number, it in known.items() if it.state is CertificateState.PENDING)[:-MOST_PENDING]
    found = {number: it.voided() if number in unused else it for number, it in known.items()}
    kept = _last_join(found)
    void = sorted(number for number, it in found.items() if it.state is CertificateState.VOID and it is not kept)
    return {number: it for number, it in found.items() if number not in void[:-MOST_VOID]}


def _last_join(known: Certificates) -> Certificate | None:
    return max((it for it in known.values() if it.token), key=lambda it: it.generation, default=None)


def generation_in(shown: Peer) -> int:
    try:
        return generation_of(shown.uris)
    except ValueError as error:
        raise HandshakeRefused(Reason.CERTIFICATE, str(error)) from error
