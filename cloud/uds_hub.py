"""The hub: accepts links from edge agents, proxy drivers and operators, and serves the streams that they open.

A link is one connection with a peer. A stream is one call, report, watch or order on the link. The file's name is for
the UNIX domain socket on which proxy drivers and operators reach the hub; agents come over TCP.

Rules:

* Peers connect and disconnect in any order. The hub opens no connection to a peer.
* Each kind of stream has its own module. `hub_parts` registers a function for each role and kind (`add`). Calls have no
  entry: `called` serves them without a task.
* A hub that has lost its Lease sends nothing more, not even a call or an acknowledgement that has waited: another
  hub may lead by then.
* A pong renews an agent's lease from the time its ping was sent. Before each pong the hub reads its own Lease, because
  after a pause of the machine its clock does not show that another hub leads. So when the next hub starts, an agent's
  lease has at most its full length left, and the next hub waits that long.
* A hub that stops refuses new peers and new streams, and waits until the open streams have ended. If another hub takes
  over, the old hub ends the callers' links instead, and the callers' retries join the operations at the agents. The
  nodes' links end last, after the Lease is released: by then most agents follow the new hub.
* A standby (`cloud.standby`) accepts links with epoch 0. When it begins to lead, the hub judges each link as if its
  hello had just arrived.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator

from cloud.calls.call import Call, Calls
from cloud.calls.refusals import Refusals
from cloud.leadership.incarnation import Incarnation
from cloud.peer_ends import PeerTerm
from cloud.proxy.driver_settings import PER_NODE_MODES, Mode
from cloud.records.records import Records
from cloud.trust import audit
from cloud.trust.admission import Admitted, Role, admit, certified
from cloud.trust.audit import Event
from cloud.trust.credentials import Credentials
from common.errors import HandshakeRefused, not_carried, shutting_down
from common.links.handshakes import group_of
from common.messages import Hello, Kind, Open, Reason
from common.net.certificate_ends import Term
from common.observe.logs import bind_peer, of_peer
from common.observe.metrics import Metrics
from common.pages.hub import ProxyDriver
from common.pages.json_form import time_of
from common.session.link import Link, LinkHandler, Stream
from common.session.receiver import Receiver
from common.status import Origin

log = logging.getLogger("csi_bridge.hub")

_SHOWN_CHARS = 100  # Characters of a peer's own text in the log and in the reports for operators. A peer may send more.
_LEASE_CHECK_INTERVAL_S = 0.1  # one read of the Lease answers all pings received before it
_CALLERS = frozenset({Role.DRIVER, Role.OPERATOR})  # the roles that may call drivers

# The placements that proxy drivers of one driver cannot have at the same time.
_OPPOSITES: dict[str, frozenset[Mode]] = {
    Mode.SHARED: PER_NODE_MODES,
    **{it: frozenset({Mode.SHARED}) for it in PER_NODE_MODES},
}


class Hub(LinkHandler):
    """Admits or refuses each peer, and serves its streams. A hub has one."""

    origin = Origin.HUB

    def __init__(
        self,
        calls: Calls,
        records: Records,
        incarnation: Incarnation,
        credentials: Credentials,
        metrics: Metrics,
        *,
        insecure: bool,
    ) -> None:
        """It serves calls, and other streams after `add`. With `insecure` it listens on loopback without TLS."""
        self._nodes = calls.nodes
        self._records = records
        self._incarnation = incarnation
        incarnation.announce = self._announce
        self._calls = calls
        self._credentials = credentials
        self.refusals = Refusals()
        self._metrics = metrics
        self._insecure = insecure
        self._links: dict[Link, None] = {}  # a dict keeps their order
        self._draining = False
        self._pings: dict[Link, int] = {}  # by link: the number of the last ping that has no pong yet
        self._lease_check: asyncio.Task[None] | None = None
        self._serve: dict[tuple[Role, int], Callable[[Stream], Awaitable[None]]] = {}

    def add(self, role: Role, kind: Kind, serve: Callable[[Stream], Awaitable[None]]) -> None:
        """Serve the streams of a kind that peers of a role open.

        The hub refuses every other pair. Calls need no entry.
        """
        self._serve[role, kind] = serve

    # ---- links -------------------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """Admit a peer whose hello has come, or refuse it and send it the reason."""
        try:
            link.context = self._admit(link)
        except HandshakeRefused as refusal:
            turn_away(link, refusal, self.refusals)
            return
        link.may_send = self._nodes.leads
        link.before_pong = self._pinged
        self.refusals.settle(link)
        self._links[link] = None
        self._welcome(link)
        self._metrics.link_ups.inc()
        log.log(
            _level(link),
            "%s %s is connected from %s (%s)",
            link.context.role,
            link.peer.name,
            link.peer_identity.address,
            link.peer.software[:_SHOWN_CHARS],
            extra=_admitted_extra(link),
        )
        if link.context.role is not Role.OPERATOR:  # the audit log gets each order of an operator instead
            audit.add(
                Event.ADMISSION,
                who=link.peer.name,
                address=link.peer_identity.address,
                role=link.context.role,
                instance=link.peer.instance,
                serial=f"{link.peer_identity.serial:x}" if link.peer_identity.serial else "",
                software=link.peer.software,
            )

    def _welcome(self, link: Link) -> None:
        is_agent = link.context.role is Role.EDGE
        # By the mark that an agent shows, a hub notices that its records were lost (`cloud.leadership.incarnation`).
        mark = self._incarnation.meet(link.peer.name, link.peer.mark) if is_agent else ""
        link.accept(self._incarnation.epoch, mark)

    def _announce(self) -> None:
        # The hub's epoch has changed. A second hello tells the peers.
        for link in list(self._links):
            self._welcome(link)

    def _admit(self, link: Link) -> Admitted:
        if self._draining:
            raise HandshakeRefused(Reason.DRAINING, "the hub is shutting down")
        role = admit(link.peer, link.peer_identity, insecure=self._insecure)
        self._check_credentials(role, link)
        if role is Role.EDGE:
            self._credentials.check_node(link.peer.name, link.peer_identity)
            replaced = self._nodes.connect(link.peer, link)
            # After all checks: this voids the node's earlier certificates, and a refused link must not do that.
            self._credentials.admitted(link.peer.name, link.peer_identity)
            if replaced is not None:
                before = replaced.peer_identity.address
                address = link.peer_identity.address
                audit.add(Event.TAKEOVER, who=link.peer.name, address=address, before=before)
        if role is Role.DRIVER:
            self._check_placement(link.peer)
        placement = ""
        if role is not Role.OPERATOR:
            placement = link.peer.placement or Mode.AUTO
        return Admitted(role, time.time(), placement)

    def _check_credentials(self, role: Role, link: Link) -> None:
        if role is not Role.OPERATOR:
            self._credentials.check(role, link.peer.name, link.peer_identity)

    def _check_placement(self, wanted: Hello) -> None:
        # `local` and `shared` say opposite things of the driver's storage, and the hub keeps different records.
        if wanted.placement not in ("", *Mode):
            shown = wanted.placement[:_SHOWN_CHARS]
            why = f"this hub knows the placements {', '.join(Mode)}, not {shown!r}; a newer hub may know it"
            raise HandshakeRefused(Reason.PROTOCOL_ERROR, why)
        opposites = _OPPOSITES.get(wanted.placement, ())
        namesakes = (link.context for link in self._links if link.peer.name == wanted.name)
        drivers = (peer.placement for peer in namesakes if peer.role is Role.DRIVER)
        if opposite := next((placement for placement in drivers if placement in opposites), ""):
            raise HandshakeRefused(
                Reason.CONFLICT,
                f"a proxy driver of {wanted.name} with --placement={opposite} is connected, and this one has "
                f"--placement={wanted.placement}: give both the same",
            )

    def _pinged(self, link: Link, number: int) -> None:
        self._pings[link] = number
        if self._lease_check is None and self._nodes.leads():
            self._lease_check = link.loop.create_task(self._answer_pings(), name="pings of leases")

    async def _answer_pings(self) -> None:
        try:
            while self._pings:
                pings = self._pings
                self._pings = {}
                try:
                    await self._records.still_leads()
                except OSError as error:
                    log.debug(
                        "the hub cannot confirm its Lease, so it renews no agent's lease, and tries again: %s", error
                    )
                    # Ask again for these. A ping that came meanwhile replaces the earlier one of its link.
                    self._pings = {link: number for link, number in pings.items() if not link.over} | self._pings
                else:
                    for link, number in pings.items():
                        link.pong(number)
                await asyncio.sleep(_LEASE_CHECK_INTERVAL_S)
        finally:
            self._lease_check = None

    async def stop_lease_check(self) -> None:
        if self._lease_check is not None:
            self._lease_check.cancel()
            await asyncio.wait([self._lease_check])

    def end_unfit(self) -> None:
        """End each link whose peer is denied by now, or whose certificate has ended."""
        for link in list(self._links):
            try:
                self._check_credentials(link.context.role, link)
            except HandshakeRefused as unfit:
                self._end_link(link, unfit)

    def end_expired(self) -> None:
        ends = (link.peer_identity.not_after for link in self._links)
        if self._credentials.is_past(min(filter(None, ends), default=math.inf)):
            self.end_unfit()

    def _end_link(self, link: Link, unfit: HandshakeRefused) -> None:
        role = link.context.role
        name = link.peer.name
        address = link.peer_identity.address
        log.warning("the link of %s %s at %s ends: %s", role, name, address, unfit.shown)
        audit.add(
            Event.EXPIRY if unfit.reason == Reason.EXPIRED else Event.DENIAL,
            who=name,
            address=address,
            role=role,
            serial=f"{link.peer_identity.serial:x}",
            why=unfit.shown,
        )
        link.goodbye(unfit.reason, unfit.why)  # all that the peer may learn

    def closed(self, link: Link, reason: str, message: str) -> None:
        self._links.pop(link, None)
        if reason == Reason.NOT_LEADING:
            # The peer knows another leader, so the hub reads its Lease at once. Number 0 is no ping: the closed link
            # drops the pong.
            self._pinged(link, 0)
        self._metrics.link_down(reason)
        if link.context is None:  # `greeted` has refused the peer, and logged the reason
            return
        if link.context.role is Role.EDGE:
            self._nodes.disconnect(link.peer.name, link)
        role = link.context.role
        name = link.peer.name
        log.log(_level(link), "%s %s is gone: %s", role, name, message, extra=_admitted_extra(link))

    def draining(self, link: Link, message: str) -> None:
        # `Nodes.reach` refuses new calls to the node.
        log.info("%s %s is draining: %s", link.context.role, link.peer.name, message, extra=_admitted_extra(link))

    async def drain(self) -> None:
        """Refuse new peers and streams, and wait until the open streams have ended and all links are closed."""
        self._draining = True
        self._calls.is_draining = True
        links = list(self._links)
        for link in links:
            link.drain("the hub is shutting down")
        await asyncio.gather(*(link.wait_closed() for link in links))

    async def hand_over(self) -> None:
        """Refuse new peers and streams, and end all calls: another hub takes over. Idempotent."""
        self._draining = True
        self._calls.is_draining = True
        # A call that still waits for the records must not be sent: another hub may have sent its retry by then.
        self._nodes.leads = lambda: False
        self.say_goodbye(lambda link: link.context.role is not Role.EDGE)

    def say_goodbye(self, to: Callable[[Link], bool] = lambda _link: True) -> None:
        for link in filter(to, list(self._links)):
            link.goodbye(Reason.STOPPED, "this hub stops, and another one may lead")

    @property
    def link_count(self) -> int:
        return len(self._links)

    def peer_terms(self) -> list[PeerTerm]:
        terms = list[PeerTerm]()
        for link in list(self._links):  # a copy: any thread may ask
            identity = link.peer_identity
            if identity.not_after:
                terms.append(PeerTerm(link.context.role, link.peer.name, Term(identity.not_before, identity.not_after)))
        return terms

    def proxy_drivers(self) -> Iterator[ProxyDriver]:
        links = [link for link in self._links if link.context.role is Role.DRIVER]
        for link in sorted(links, key=lambda link: (link.peer.name, link.context.since)):
            yield ProxyDriver(
                driver=link.peer.name,
                since=time_of(link.context.since),
                address=link.peer_identity.address,
                software=link.peer.software[:_SHOWN_CHARS],
                placement=link.context.placement,
            )

    # ---- streams -----------------------------------------------------------------------------------------------------

    def called(self, link: Link, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        role = link.context.role
        if role not in _CALLERS:
            # `serve` has no entry for calls, so it refuses this one.
            return link.served(frame, deadline, self.serve, request)
        if role is Role.OPERATOR:
            audit.add(
                Event.ORDER,
                who="operator",
                address=link.peer_identity.address,
                order="call",
                method=frame.method,
                driver=frame.subject,
                node=frame.node,
            )
        call = Call(self._calls, link, frame, deadline)
        call.begin(request)
        return call

    async def serve(self, stream: Stream) -> None:
        """Serve a stream of any kind that the peer's role may open, apart from calls. Raises CallError."""
        assert stream.opened is not None
        role = stream.link.context.role
        serve = self._serve.get((role, stream.opened.kind))
        if serve is None:
            raise not_carried(f"stream kind {stream.opened.kind}", f"this hub does not serve it to the role {role}")
        if self._draining:
            raise shutting_down("hub")
        if role is not Role.OPERATOR:
            bind_peer(_admitted_extra(stream.link)["peer"])
        await serve(stream)


def turn_away(link: Link, refusal: HandshakeRefused, refusals: Refusals) -> None:
    """Refuse a hello: log it, show it to operators, and send the peer the reason."""
    peer = link.peer
    log.warning(
        "refused %s %s from %s: %s",
        peer.role[:_SHOWN_CHARS],
        peer.name[:_SHOWN_CHARS],
        link.peer_identity.address,
        refusal.shown,
        extra=unadmitted_extra(link),
    )
    refusals.add(link, refusal.reason, refusal.shown)
    audit.add(
        Event.CONFLICT if refusal.reason == Reason.CONFLICT else Event.REFUSAL,
        who=certified(link.peer_identity) or peer.name,
        address=link.peer_identity.address,
        role=peer.role,
        name=peer.name,
        reason=refusal.reason,
        why=refusal.shown,
        peer=unadmitted_extra(link)["peer"],
    )
    link.refuse(refusal)


def unadmitted_extra(link: Link) -> dict[str, str]:
    """The `extra` of a line about a peer that the hub has not admitted."""
    identity = link.peer_identity
    return of_peer(f"uid {identity.uid}" if identity.local else group_of(identity.host))


def _admitted_extra(link: Link) -> dict[str, str]:
    return of_peer(f"{link.context.role} {link.peer.name}")


def _level(link: Link) -> int:
    return logging.DEBUG if link.context.role is Role.OPERATOR else logging.INFO
