"""Issuance: the hub's answers to nodes that join or renew, on the join listener and on the links of agents.

Rules:

* The messages and their order are in `common.net.enrolment`.
* The hub stores a certificate before it sends it. If that fails, the node gets `BUSY` and asks again.
* The same key gets the same generation again: the answer may have been lost. A pending certificate that is about to
  end, or begins in the future because the hub's clock was ahead, is signed anew for it.
* A node that renews shows a certificate that counts (`cloud.trust.generations`). It shows it to TLS on an admitted
  link; on the join listener its key signs the request.
* A request for the key in use is an earlier one that the network delayed: only the holder of that key can have made it.
  It is refused, and is no copy.
* A refusal is one line in the log and in the audit log. A peer that does not know a token's secret hears that there is
  no such token.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.credentials import Credentials
from cloud.trust.generations import generation_in
from cloud.trust.signer import Signer
from cloud.trust.tokens import CLOCKS_S
from cloud.trust.trust_store import Certificate, CertificateState, Token, use_of
from common.errors import HandshakeRefused, RemoteProtocolError, not_carried
from common.links.handshakes import group_of
from common.messages import Kind, Reason
from common.net.enrolment import (
    NODE_URI,
    Answer,
    AskCa,
    CaCertificates,
    Issued,
    Join,
    JoinRefused,
    RefusedFor,
    Renew,
    Request,
    decode,
    encode,
    rights_in,
)
from common.net.peer import Peer
from common.observe.logs import of_peer
from common.observe.token_bucket import Bucket
from common.parsers import is_name
from common.session.link import Link, Stream
from common.status import Code, Origin, Status
from common.store.database_writer import WriteFailed
from common.store.fault_points import reach

log = logging.getLogger("csi_bridge.hub.enrolment")

# An agent that was refused for a passing reason asks again after this time, and a part of it at random.
RETRY_S: Final = 10

# Requests on one link. An agent renews every few days; one that repeats a request waits much longer.
RENEWALS_A_SECOND: Final = 1.0

_BURST: Final = 5.0
_ENOUGH: Final = 0.5  # the part of a pending certificate's life that must be left for it to be sent again as it is


class Issuance:
    """Answers the nodes of one hub that join or renew."""

    def __init__(
        self,
        trust: Credentials,
        signer: Signer,
        terms: Issued,
        *,
        knows: Callable[[str], bool],
        turned_away: Callable[[str, Reason, str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`terms` is an answer without a certificate. `knows` returns whether the hub knows a node of this name.

        `turned_away` gets each refused peer of the join listener, as `LinkHandler.failed`.
        """
        self._tokens = trust.tokens
        self._generations = trust.generations
        self._denials = trust.denials
        self._signer = signer
        self._terms = terms
        self._knows = knows
        self._turned_away = turned_away
        self._now = now
        # By node: its certificates are issued one after another
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._turns: WeakKeyDictionary[Link, Bucket] = WeakKeyDictionary()

    def has_node(self, node: str) -> bool:
        return self._generations.has_joined(node) or self._knows(node)

    # ---- streams -----------------------------------------------------------------------------------------------------

    async def serve_on_link(self, stream: Stream) -> None:
        link = stream.link
        peer = stream.link.peer_identity
        node = link.peer.name
        who = f"edge {link.peer.name}"
        now = link.loop.time()
        turns = self._turns.setdefault(link, Bucket(RENEWALS_A_SECOND, _BURST, now))
        asked = await _receive(stream)
        if not turns.take(now):
            busy = HandshakeRefused(RefusedFor.BUSY, "this node asks too often")
            return self._end(stream, self._refuse(busy, who, peer))
        if not isinstance(asked, Renew):
            raise not_carried(type(asked).__name__, "an admitted link renews a certificate, and does nothing else")
        stream.detach()  # a certificate that is stored and not sent is found again by its key
        return self._end(stream, await self._answer(self._renew_on_link(node, peer, asked), who, peer))

    async def serve_stranger(self, stream: Stream) -> None:
        assert stream.opened is not None
        peer = stream.link.peer_identity
        asked = await _receive(stream)
        match stream.opened.kind, asked:
            case Kind.CA, AskCa():
                return self._end(stream, CaCertificates(self._signer.bundle()))
            case Kind.JOIN, Join():
                work = self._join(asked, peer)
            case Kind.RENEW, Renew():
                work = self._renew_late(asked, peer)
            case kind, _:
                what = f"stream kind {kind} with {type(asked).__name__}"
                raise not_carried(what, "the join listener does not serve it")
        stream.detach()
        answer = await self._answer(work, group_of(peer.host), peer)
        if isinstance(answer, JoinRefused):
            self._turned_away(peer.address, Reason.CERTIFICATE, f"it gets no certificate: {answer.message}")
        return self._end(stream, answer)

    def _end(self, stream: Stream, answer: Answer) -> None:
        stream.end(Status(Code.OK, origin=Origin.HUB), encode(answer))
        if isinstance(answer, Issued):
            reach("enrolment.after-answer")

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _join(self, asked: Join, peer: Peer) -> Issued:
        key = self._request_key(asked.request)
        if not is_name(asked.node):
            raise HandshakeRefused(RefusedFor.REQUEST, "a node's name must be a lower-case RFC 1123 subdomain")
        self._tokens.check(asked.token, asked.secret, asked.node)
        async with self._tokens.changing, self._locks.setdefault(asked.node, asyncio.Lock()):
            token = self._tokens.check(asked.token, asked.secret, asked.node)
            self._check_denied(asked.node)
            found = self._generations.issued_to(asked.node, key)
            again = found if found is not None and found.token == token.id else None
            if again is not None and (self._lasts(again, 0.0) or again.state is CertificateState.CURRENT):
                return self._issued(again)
            # A hub that died may have written the use, and not its certificate: no later one has this generation then.
            is_counted = token.last_use == use_of(asked.node, self._generations.next_of(asked.node), key)
            counts = again is None and not is_counted
            if counts:
                self._tokens.check_use(token)
            if again is None:
                self._check_name_is_free(asked.node, token)
            made = await self._issue(
                asked.request, asked.node, token.drivers, peer, again=again, token=token.id, counts=counts
            )
        log.info("node %s joined from %s with token %s", asked.node, peer.address, token.id)
        audit.add(
            Event.JOIN, who=asked.node, address=peer.address, token=token.id, generation=made.generation,
            serial=made.serial,
        )  # fmt: skip
        return self._issued(made)

    async def _renew_on_link(self, node: str, peer: Peer, asked: Renew) -> Issued:
        if not generation_in(peer):
            why = "this certificate was not issued by the hub; renew it where it came from, or let the node join"
            raise HandshakeRefused(RefusedFor.CERTIFICATE, why)
        if not self._generations.counts(node, peer):  # no copy: TLS took this key before a later one replaced it
            raise HandshakeRefused(RefusedFor.COPY, "a later certificate has replaced this one")
        return await self._renew(node, peer, asked)

    async def _renew_late(self, asked: Renew, peer: Peer) -> Issued:
        self._check_can_sign()
        shown = self._signer.check_renewal(asked, peer.address, grace_s=self._terms.renew_grace_s)
        names = [uri.removeprefix(NODE_URI) for uri in shown.uris if uri.startswith(NODE_URI)]
        if len(names) != 1 or not generation_in(shown):
            raise HandshakeRefused(
                RefusedFor.CERTIFICATE, "this certificate was not issued by the hub; let the node join"
            )
        node = names[0]
        self._check_denied(node, shown.serial)
        found = self._generations.issued_to(node, self._request_key(asked.request))
        if found is not None and found.state is CertificateState.CURRENT:
            raise HandshakeRefused(RefusedFor.REQUEST, "this request was answered before, and the node uses the answer")
        self._generations.examine(node, shown)
        self._generations.adopt(node, shown)
        return await self._renew(node, shown, asked)

    async def _renew(self, node: str, shown: Peer, asked: Renew) -> Issued:
        key = self._request_key(asked.request)
        async with self._locks.setdefault(node, asyncio.Lock()):
            found = self._generations.issued_to(node, key)
            if key == shown.key or (found is not None and found.state is CertificateState.CURRENT):
                raise HandshakeRefused(
                    RefusedFor.REQUEST, "the request is for a key in use; the next key must be a new one"
                )
            if found is not None and self._lasts(found, _ENOUGH * self._signer.ttl_s):
                return self._issued(found)
            made = await self._issue(asked.request, node, rights_in(shown.uris), shown, again=found)
        log.info("node %s renewed its certificate from %s: generation %d", node, shown.address, made.generation)
        audit.add(Event.RENEWAL, who=node, address=shown.address, generation=made.generation, serial=made.serial)
        return self._issued(made)

    # ---- parts of an answer ------------------------------------------------------------------------------------------

    def _lasts(self, issued: Certificate, least_s: float) -> bool:
        now = self._now()
        return issued.issued_at <= now + CLOCKS_S and issued.not_after - now > least_s

    async def _issue(
        self,
        request: bytes,
        node: str,
        rights: tuple[str, ...],
        peer: Peer,
        *,
        again: Certificate | None,
        token: str = "",
        counts: bool = False,
    ) -> Certificate:
        # The same key gets the same generation: its certificate takes the place of the lost one.
        generation = again.generation if again is not None else self._generations.next_of(node)
        signed = self._signer.sign(request, node=node, generation=generation, rights=rights)
        reach("enrolment.before-issue")
        made = replace(signed, token=token, address=peer.address)
        await self._generations.add(made, uses_token=counts)
        reach("enrolment.after-issue")
        return made

    def _issued(self, certificate: Certificate) -> Issued:
        chain = self._signer.chain(certificate.pem)
        ca = self._signer.bundle()
        return replace(self._terms, chain=chain, ca=ca, generation=certificate.generation)

    def _request_key(self, request: bytes) -> str:
        self._check_can_sign()
        return self._signer.key_in_request(request)

    def _check_can_sign(self) -> None:
        if not self._signer.can_sign:
            why = "the hub signs no certificates (it runs without --ca-key); give the agent its files"
            raise HandshakeRefused(RefusedFor.NO_CA_KEY, why)

    def _check_denied(self, node: str, serial: int = 0) -> None:
        if self._denials.find(node, serial) is not None:
            raise HandshakeRefused(RefusedFor.DENIED, f"edge node {node}, or its certificate, is denied")

    def _check_name_is_free(self, node: str, token: Token) -> None:
        if not token.replace and self.has_node(node):
            who = f"edge node {node} exists"
            rest = (
                f", and this token is for new nodes; to join it again, or a new machine in its place: csi-bridge token "
                f"create --node {node} --replace"
            )
            raise HandshakeRefused(RefusedFor.NODE, who + rest, shown=who + self._generations.joined(node) + rest)

    # ---- refusals ----------------------------------------------------------------------------------------------------

    async def _answer(self, work: Awaitable[Answer], who: str, peer: Peer) -> Answer:
        try:
            return await work
        except HandshakeRefused as error:
            refusal = error
            if isinstance(error.reason, Reason):  # that of a link, which the certificate would not get
                reason = RefusedFor.COPY if error.reason == Reason.DENIED else RefusedFor.CERTIFICATE
                refusal = HandshakeRefused(reason, error.why, shown=error.shown)
        except WriteFailed as error:
            log.warning("no certificate was issued: %s", error)
            why = "the hub cannot write its records at the moment; its log says why"
            refusal = HandshakeRefused(RefusedFor.BUSY, why)
        return self._refuse(refusal, who, peer)

    def _refuse(self, refusal: HandshakeRefused, who: str, peer: Peer) -> JoinRefused:
        log.warning("no certificate for %s at %s: %s", who, peer.address, refusal.shown, extra=of_peer(who))
        audit.add(
            Event.REFUSAL, who=who, address=peer.address, role="enrolment", reason=refusal.reason, why=refusal.shown
        )
        return JoinRefused(refusal.reason, refusal.why, RETRY_S if refusal.reason == RefusedFor.BUSY else 0)


async def _receive(stream: Stream) -> Request:
    try:
        asked = decode(await stream.receive() or b"")
    except RemoteProtocolError as error:
        raise not_carried("this message", str(error)) from error
    if not isinstance(asked, Request):
        raise not_carried(type(asked).__name__, "it is no request of an agent")
    return asked
