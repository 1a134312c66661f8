"""The join part of a hub: its tokens, its CA key, and the listener at which nodes join.

Rules:

* Without TLS files there is none: an insecure hub issues no certificates.
* Without `--ca-key` the hub signs nothing, and nodes get their certificates from elsewhere. It still takes the next key
  of such a node on its link.
* Tokens need both `--ca-key` and `--join-listen`.
"""

import asyncio
import logging
import stat
from pathlib import Path
from typing import Final

from cloud.hub_parts import HubParts
from cloud.hub_settings import HubSettings
from cloud.leadership.incarnation import SIGNED
from cloud.trust import audit
from cloud.trust.admission import Role
from cloud.trust.audit import Event
from cloud.trust.issuance import Issuance
from cloud.trust.join_links import LIMITS, MOST, MOST_HANDSHAKES, JoinLinks
from cloud.trust.join_rate import JoinRate
from cloud.trust.signer import Signer
from cloud.trust.trust_store import Token
from common.errors import SettingsError, order_refused
from common.links.listener import ConnectionLimits, Listener, listen_tcp
from common.messages import Kind
from common.net.endpoint import Endpoint, is_loopback
from common.net.enrolment import Issued, JoinToken, format_token
from common.net.tls import TlsFiles, TlsIdentity
from common.observe.version import introduce
from common.operator_orders import CreateToken, Done, NewToken, RevokeToken
from common.pages.json_form import time_of
from common.parsers import HostPort
from common.session.link import Side
from common.store.database_writer import WriteFailed

log = logging.getLogger("csi_bridge.hub.enrolment")

_NOT_MADE: Final = "no token is made"


class JoinPart:
    """The join part of a hub that has TLS files."""

    def __init__(self, settings: HubSettings, parts: HubParts) -> None:
        """Read the CA, and open the join listener's socket. Raises SettingsError."""
        files = settings.tls_files()
        trust = parts.trust
        assert files is not None
        self._settings = settings
        self._trust = trust
        self._files = files
        self._signer = _signer(files, settings.ca_key, settings.cert_ttl_s)
        self._joins = self._addresses(settings.join_address, settings.join_listen)
        terms = Issued(
            chain=b"",
            ca=b"",
            generation=0,
            renew_grace_s=int(settings.renew_grace_s),
            hubs=self._addresses(settings.hub_address, settings.listen),
            one_hub=not settings.hub_address,
            joins=self._joins,
        )
        self._issuance = Issuance(
            trust, self._signer, terms, knows=parts.nodes.knows, turned_away=parts.hub.refusals.add_nameless
        )
        self._links = JoinLinks(self._issuance)
        parts.incarnation.sign = self._signer.secret(SIGNED)
        parts.hub.add(Role.EDGE, Kind.RENEW, self._issuance.serve_on_link)
        parts.orders.add(CreateToken, self._create)
        parts.orders.add(RevokeToken, self._revoke)
        self._listener = self._listen() if settings.join_listen is not None else None

    async def start(self) -> None:
        """Let nodes join, if there is a `--join-listen`."""
        if self._listener is not None:
            await self._listener.start()
            log.info("listening on %s", self._listener.address)

    def drain(self) -> None:
        """Accept no more connections and requests; requests under way go on."""
        self._links.drain()
        if self._listener is not None:
            self._listener.stop_accepting()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()

    def _listen(self) -> Listener:
        assert self._settings.join_listen is not None
        tls = TlsIdentity(self._files, server=True, asks=False)
        clock = asyncio.get_running_loop().time
        rate = JoinRate(clock())
        most = ConnectionLimits(
            admitted=MOST + 1,  # the newest is in when `JoinLinks` ends another
            handshakes=MOST_HANDSHAKES,
            admits=lambda address: rate.admits(address, clock()),
        )
        side = Side(introduce("hub", self._settings.name, instance="hub"), self._links, LIMITS)
        sock = listen_tcp(self._settings.join_listen, flag="--join-listen")
        return Listener(sock, side, tls=tls.context, most=most)

    # ---- orders ------------------------------------------------------------------------------------------------------

    async def _create(self, asked: CreateToken, by: str) -> NewToken:
        if self._settings.join_listen is None:
            raise order_refused(_NOT_MADE, "the hub runs without --join-listen, so no node could use it")
        if not self._signer.can_sign:
            raise order_refused(_NOT_MADE, "the hub runs without --ca-key, so it signs no certificates")
        if not self._joins:
            why = "the hub does not know its address: its certificate has no name; set --join-address"
            raise order_refused(_NOT_MADE, why)
        if self._settings.require_rights and not asked.drivers:
            why = "the hub runs with --require-rights; name the drivers of its nodes: --driver"
            raise order_refused(_NOT_MADE, why)
        if not asked.replace and self._issuance.has_node(asked.node):
            who = f"edge node {asked.node} exists{self._trust.generations.joined(asked.node)}"
            why = f"{who}; with --replace, the token lets a machine join in its place"
            raise order_refused(_NOT_MADE, why)
        try:
            token, secret = await self._trust.tokens.create(asked)
        except WriteFailed as error:
            raise order_refused(_NOT_MADE, str(error)) from error
        self._note(token, by, "made")
        text = format_token(JoinToken(self._joins, bytes.fromhex(self._signer.pin()), token.id, secret))
        return NewToken(id=token.id, token=text, ends_at=time_of(token.ends_at))

    async def _revoke(self, asked: RevokeToken, by: str) -> Done:
        try:
            token = await self._trust.tokens.revoke(asked.id)
        except WriteFailed as error:
            raise order_refused(f"token {asked.id} is not revoked", str(error)) from error
        self._note(token, by, "revoked")
        return Done(said=[f"token {token.id} is revoked; the {token.used} nodes that joined with it stay"])

    def _note(self, token: Token, by: str, what: str) -> None:
        log.warning("an operator (%s): token %s for %s is %s", by, token.id, token.nodes, what)
        audit.add(
            Event.TOKEN, who="operator", address=by, token=token.id, nodes=token.nodes, drivers=list(token.drivers),
            uses=token.uses, replace="yes" if token.replace else "", action=what,
        )  # fmt: skip

    def _addresses(self, given: tuple[Endpoint, ...], listen: HostPort | None) -> tuple[str, ...]:
        if given or listen is None:
            return tuple(map(str, given))
        names = self._signer.hub_names()
        usual = [name for name in names if not is_loopback(name)] or names
        return tuple(f"wss://{HostPort(name, listen.port)}" for name in usual)


def _signer(files: TlsFiles, ca_key: Path | None, ttl_s: float) -> Signer:
    try:
        if ca_key is not None and ca_key.stat().st_mode & stat.S_IROTH:
            log.warning("every user of this machine can read %s, which signs certificates for any node", ca_key)
        return Signer(files, ca_key, ttl_s=ttl_s)
    except (OSError, ValueError) as error:
        flag, value = ("--tls-ca", files.ca) if ca_key is None else ("--ca-key", ca_key)
        raise SettingsError(flag, str(value), f"cannot be used: {error}") from error
