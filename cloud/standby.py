"""A standby: a hub that waits for the Lease of its cluster, with its listeners open. When it leads, nobody has to dial.

Rules:

* It accepts a peer whose role and certificate fit (`cloud.trust.admission`), with epoch 0, and keeps the link alive. It
  has read no records, so it knows no denials.
* It serves no stream. It answers a peer on its host with the hub that leads. No other peer of ours opens one, and a
  hostile one could fill the memory with them: its link ends.
* When the hub leads, it decides on each link as if its hello came then. From then on the hub is the link's handler.
* Of several links of one process with one certificate, the last one stays: the others may be dead. With another
  certificate, it may be a thief of the node's identity. The hub that leads can tell.
* A hub that has not to wait opens its listeners when it leads, so no peer meets a standby.
"""

import asyncio
import logging
import secrets
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from cloud.calls.refusals import Refusals
from cloud.hub_settings import HubSettings
from cloud.trust.admission import admit
from cloud.uds_hub import Hub, turn_away, unadmitted_extra
from common.errors import CallError, HandshakeRefused, RemoteProtocolError, seconds_of
from common.links.listener import ConnectionLimits, Listener, listen_tcp
from common.messages import Open, Reason
from common.net.certificate_ends import CertificateEnds
from common.net.settings import INSECURE, as_texts
from common.net.tls import TlsIdentity
from common.observe.metrics import Metrics
from common.observe.version import SOFTWARE, introduce
from common.pages.hub import HubStatus
from common.pages.json_form import time_of
from common.pages.server import Pages
from common.session.link import Link, LinkHandler, Side, Stream
from common.session.receiver import Receiver
from common.status import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloud.leadership.hub_lease import HubLease

log = logging.getLogger("csi_bridge.hub")

_SLICE: Final = 100  # links that the hub gets in one turn of the loop


class Standby(LinkHandler):
    """The listeners of one hub, and their links until it leads."""

    origin = Origin.HUB

    def __init__(
        self, settings: HubSettings, tls: TlsIdentity | None, metrics: Metrics, lease: "HubLease | None"
    ) -> None:
        """Nothing is open yet. Without a `lease`, the hub has no other beside it."""
        self.on_listen: Callable[[], None] = lambda: None  # called when the listeners are open
        self.hello = introduce("hub", settings.name, instance=secrets.token_hex(8))
        self._settings = settings
        self._tls = tls
        self._metrics = metrics
        self._lease = lease
        self._insecure = settings.tls_cert is None
        self.ends = CertificateEnds(settings.tls_cert, settings.tls_ca, metrics)
        self._refusals = Refusals()
        # By role, name, instance and certificate, and whether it is of this host.
        self._links: dict[tuple[str, str, str, bytes, bool], Link] = {}
        self._hub: Hub | None = None
        self._pages = Pages({"/status": self._status}, why_no_more=self._refusal)
        self._listeners: list[Listener] = []

    # ---- its process -------------------------------------------------------------------------------------------------

    def ready(self) -> tuple[bool, str]:
        """Whether the listeners are open, for `/readyz`."""
        return bool(self._listeners), self._why

    def active(self) -> tuple[bool, str]:
        """Whether this hub leads, for `/readyz/active`."""
        return self._hub is not None and (self._lease is None or self._lease.is_held), self._why

    async def listen(self) -> None:
        """Open the listeners, unless they are open. Raises SettingsError if one cannot be."""
        if self._listeners:
            return
        settings = self._settings
        side = Side(self.hello, self, self._settings.limits())
        opened = []
        try:
            if settings.listen is not None:
                opened.append(
                    Listener(
                        listen_tcp(settings.listen, flag="--listen"),
                        side,
                        tls=self._tls.context if self._tls is not None else None,
                        most=ConnectionLimits(admitted=settings.max_connections, handshakes=settings.max_handshakes),
                    )
                )
            # Last, because it makes a file, and an earlier failure must leave none.
            mode = 0o600 if settings.uds_group is None else 0o660
            uids = frozenset(settings.uds_allow_uid) if settings.uds_group is not None else None
            opened.append(
                Listener(
                    settings.listen_unix("uds", mode=mode, gid=settings.uds_gid()),
                    side,
                    most=ConnectionLimits(handshakes=settings.max_handshakes, uids=uids),
                    pages=self._pages,
                )
            )
            for listener in opened:
                await listener.start()
                log.info("listening on %s", listener.address)
            self.on_listen()
        finally:
            self._listeners = opened

    async def lead(self, hub: Hub, pages: Pages) -> None:
        """Give the hub all links, and serve its pages from now on. Opens the listeners as `listen` does."""
        while self._links:
            for key in list(islice(self._links, _SLICE)):
                self._links.pop(key).give(hub)
            await asyncio.sleep(0)
        self._hub = hub
        self._pages = pages
        self._refusals = hub.refusals
        for listener in self._listeners:
            if listener.pages is not None:
                listener.pages = pages
        await self.listen()

    def stop_accepting(self) -> None:
        """Accept no more connections; open ones go on."""
        for listener in self._listeners:
            listener.stop_accepting()

    async def close(self) -> None:
        """Close the listeners and all connections. Idempotent."""
        for link in [*self._links.values()]:
            link.goodbye(Reason.STOPPED, "this hub stops")
        if self._hub is not None:
            self._hub.say_goodbye()
        await asyncio.sleep(0)  # in which the goodbyes are written
        listeners = self._listeners
        self._listeners = []
        await asyncio.gather(*(listener.close() for listener in listeners))

    @property
    def _why(self) -> str:
        return self._lease.why_not if self._lease is not None else "this hub starts"

    def _status(self) -> HubStatus:
        leader, since = self._lease.holder if self._lease is not None else ("", "")
        settings = self._settings
        return HubStatus(
            software=SOFTWARE,
            leads=False,
            leader=leader,
            since=time_of(at) if (at := seconds_of(since)) else None,  # somebody may have edited the Lease
            links=len(self._links),
            known=0,
            connected=0,
            max_nodes=settings.max_nodes,
            has_source=settings.kubeconfig is not None,
            problems=[
                *([INSECURE] if settings.listen is not None and self._insecure else []),
                *([self._lease.trouble] if self._lease is not None and self._lease.trouble else []),
            ],
            refused=self._refusals.all(),
            ending=self.ends.problems(),
            settings=as_texts(settings),
        )

    # ---- its links ---------------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        if self._hub is not None:
            link.give(self._hub)
            return
        said = link.peer
        try:
            role = admit(said, link.peer_identity, insecure=self._insecure)
        except HandshakeRefused as refusal:
            turn_away(link, refusal, self._refusals)
            return
        self._refusals.settle(link)
        if (former := self._links.pop(_key(link), None)) is not None:
            former.goodbye(Reason.REPLACED, f"{said.name} has connected again")
        self._links[_key(link)] = link
        link.accept(0)
        log.debug("%s %s waits for a leader from %s", role, said.name, link.peer_identity.address)

    def called(self, link: Link, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        self._check(link)
        return super().called(link, frame, deadline, request)

    def opened(self, link: Link, frame: Open, deadline: float | None) -> Receiver:
        self._check(link)
        return super().opened(link, frame, deadline)

    @staticmethod
    def _check(link: Link) -> None:
        if not link.peer_identity.local:
            raise RemoteProtocolError("Open: from a standby")

    async def serve(self, _stream: Stream) -> NoReturn:
        raise CallError(self._refusal())

    def _refusal(self) -> str:
        return f"this hub is a standby, and only the hub that leads takes calls and orders: {self._why}"

    def refused(self, link: Link, reason: str, message: str) -> None:
        # Also while the hub leads: it gets the links that have said hello.
        self._metrics.link_down(reason)
        log.warning("no hello from %s: %s", link.peer_identity.address, message, extra=unadmitted_extra(link))
        self.failed(link.peer_identity.address, reason, f"no hello: {message}")

    def failed(self, address: str, reason: str, why: str) -> None:
        self._refusals.add_nameless(address, reason, why)

    def closed(self, link: Link, _reason: str, message: str) -> None:
        if self._links.get(_key(link)) is link:
            del self._links[_key(link)]
            log.debug("%s %s waits no more: %s", link.peer.role, link.peer.name, message)


def _key(link: Link) -> tuple[str, str, str, bytes, bool]:
    said = link.peer
    shown = link.peer_identity
    return said.role, said.name, said.instance, shown.certificate, shown.local
