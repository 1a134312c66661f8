"""The credentials of the hub's peers: all that it trusts, and whether a certificate counts while its link lives.

A certificate counts until it ends, unless an operator denies it or its node, or its CA was taken
out of `--tls-ca`. Of a node that has joined, a later generation replaces it. `cloud.trust.admission` compares the names
in it before.
"""

import time
from collections.abc import Callable
from pathlib import Path

from cloud.records.records import Records
from cloud.trust.admission import Role
from cloud.trust.authorities import Authorities
from cloud.trust.denials import Denials, in_words
from cloud.trust.generations import Generations
from cloud.trust.tokens import Tokens
from cloud.trust.trust_store import TrustStore
from common.errors import HandshakeRefused
from common.messages import Reason
from common.net.enrolment import rights_in
from common.net.peer import Peer
from common.observe.metrics import Metrics


class Credentials:
    """Judges the certificates of one hub's peers by its records and its CAs."""

    def __init__(
        self,
        records: Records,
        metrics: Metrics,
        *,
        tls_ca: Path | None,
        require_rights: bool,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Read the records and the CAs. Raises SettingsError."""
        store = TrustStore(records)
        self.denials, self.generations = Denials(store, now=now), Generations(store, metrics)
        self.tokens, self.authorities = Tokens(store, now=now), Authorities(tls_ca)
        self._require_rights = require_rights
        self._now = now

    def check(self, role: Role, name: str, peer: Peer) -> None:
        """Check that a peer whose name is proved may connect, or that its link may go on.

        Raises HandshakeRefused if its certificate has ended, its CA was taken out, or it is denied.
        """
        if peer.not_after and self.is_past(peer.not_after):
            raise HandshakeRefused(
                Reason.EXPIRED, f"the certificate of {role} {name} has ended; connect with a renewed one"
            )
        if not self.authorities.count(peer):
            raise HandshakeRefused(
                Reason.EXPIRED,
                f"the CA of {role} {name} was taken out of the hub's --tls-ca; connect with a new certificate",
            )
        if (denial := self.denials.find(name if role is Role.EDGE else "", peer.serial)) is not None:
            why = f"an operator denies {in_words(denial)}" + (f": {denial.why}" if denial.why else "")
            raise HandshakeRefused(Reason.DENIED, f"the hub denies {role} {name}: ask its operator", shown=why)

    def check_node(self, node: str, peer: Peer) -> None:
        """Raise HandshakeRefused if a node's certificate is replaced, or names no drivers and must."""
        if self._require_rights and not rights_in(peer.uris):
            raise HandshakeRefused(
                Reason.CERTIFICATE,
                f"the certificate of edge {node} names no drivers, and the hub runs with --require-rights; let it join "
                f"again with csi-bridge token create --node {node} --replace --driver DRIVER",
            )
        if peer.certificate:
            self.generations.examine(node, peer)

    def admitted(self, node: str, peer: Peer) -> None:
        """Note that a node was admitted: its certificate is the current one, and earlier ones are void."""
        if peer.certificate:
            self.generations.authenticated(node, peer)

    def is_past(self, moment: float) -> bool:
        return moment <= self._now()
