"""The hub: takes links from edge agents, proxy drivers and operators, and serves the streams that they open.

Rules:

* Agents and proxy drivers come and go in any order; the hub dials nobody.
* Each kind of stream has its own module. The table in `Hub` says which role may open which kind.
* A hub that stops refuses new peers and new streams, and waits for the calls under way.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

from cloud.admission import Admitted, Role, admit
from cloud.call_streams import CallStreams
from cloud.edge_nodes import Nodes
from cloud.orders import Orders
from cloud.placement.decisions import Mode
from cloud.refusals import Refusals
from cloud.report_streams import ReportStreams
from cloud.sync_part import Sync
from common.errors import Draining, HandshakeRefused, NotCarried
from common.link import Link, Stream
from common.messages import Kind, Reason
from common.metrics import Metrics
from common.pages.hub import ProxyDriver
from common.pages.json_form import time_of
from common.status import Origin

log = logging.getLogger("csi_bridge.hub")

_SHOWN_CHARS = 100
"""The log and the operators see so much of a peer's own words."""


class Hub:
    """Serves every link of the hub (`common.link.LinkHandler`). `cloud.hub_process` makes one, with its listeners."""

    origin = Origin.HUB

    def __init__(
        self,
        nodes: Nodes,
        calls: CallStreams,
        reports: ReportStreams,
        orders: Orders,
        sync: Sync,
        *,
        refusals: Refusals,
        metrics: Metrics,
        insecure: bool,
    ) -> None:
        """A hub without links.

        Args:
            nodes: the edge nodes.
            calls: serves CSI calls.
            reports: serves the nodes' reports of their drivers, and the proxy drivers' watches of them.
            orders: serves the operators' orders.
            sync: serves objects and facts.
            refusals: takes the peers that the hub refuses.
            metrics: counts links.
            insecure: the hub listens without TLS (loopback only): it believes the names of its peers.
        """
        self._nodes = nodes
        self._calls = calls
        self._refusals = refusals
        self._metrics = metrics
        self._insecure = insecure
        self._links: dict[Link, None] = {}  # a dict keeps their order
        self._draining = False
        self._serve: dict[tuple[Role, int], Callable[[Stream], Awaitable[None]]] = {
            (Role.DRIVER, Kind.CALL): calls.serve,
            (Role.DRIVER, Kind.WATCH): reports.serve_watch,
            (Role.OPERATOR, Kind.CALL): calls.serve,
            (Role.OPERATOR, Kind.STATUS): _refuse_status,
            (Role.OPERATOR, Kind.FORGET): orders.serve_forget,
            (Role.OPERATOR, Kind.TRUST): orders.serve_trust,
            (Role.EDGE, Kind.REPORT): reports.serve_report,
            (Role.EDGE, Kind.SYNC): lambda stream: sync.serve_sync(stream, stream.link.peer.name),
            (Role.EDGE, Kind.FACTS): lambda stream: sync.serve_facts(stream, stream.link.peer.name),
            (Role.EDGE, Kind.OBSERVE): lambda stream: sync.serve_observe(stream, stream.link.peer.name),
        }
        """Which role may open which kind of stream."""

    # ---- links -------------------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """Let a peer in that said hello, or refuse it with the reason."""
        try:
            link.context = self._admit(link)
        except HandshakeRefused as refusal:
            said = link.peer
            log.warning(
                "refused %s %s from %s: %s",
                said.role[:_SHOWN_CHARS],
                said.name[:_SHOWN_CHARS],
                link.peer_identity.address,
                refusal.why,
            )
            self._refusals.add(link, refusal.reason, refusal.why)
            link.refuse(refusal)
            return
        self._refusals.settle(link)
        self._links[link] = None
        link.accept()
        self._metrics.link_ups.inc()
        self._metrics.connected_nodes.set(self._nodes.connected)
        log.log(
            _level(link),
            "%s %s is connected from %s (%s)",
            link.context.role,
            link.peer.name,
            link.peer_identity.address,
            link.peer.software[:_SHOWN_CHARS],
        )

    def _admit(self, link: Link) -> Admitted:
        if self._draining:
            raise HandshakeRefused(Reason.DRAINING, "the hub is shutting down")
        role = admit(link.peer, link.peer_identity, insecure=self._insecure)
        if role is Role.EDGE:
            self._nodes.connect(link.peer, link)
        if role is Role.DRIVER and link.peer.placement not in ("", *Mode):
            shown = link.peer.placement[:_SHOWN_CHARS]
            why = f"this hub knows the placements {', '.join(Mode)}, not {shown!r}; a newer hub may know it"
            raise HandshakeRefused(Reason.PROTOCOL_ERROR, why)
        return Admitted(role, time.time(), "" if role is Role.OPERATOR else link.peer.placement or Mode.AUTO)

    def refused(self, link: Link, reason: str, message: str) -> None:
        """Note that a connection ended before its hello."""
        self._metrics.link_down(reason)
        log.warning("no hello from %s: %s", link.peer_identity.address, message)

    def closed(self, link: Link, reason: str, message: str) -> None:
        """Note that a link is gone."""
        self._links.pop(link, None)
        self._metrics.link_down(reason)
        if link.context is None:  # refused, which was logged
            return
        if link.context.role is Role.EDGE:
            self._nodes.disconnect(link.peer.name, link)
            self._metrics.connected_nodes.set(self._nodes.connected)
        log.log(_level(link), "%s %s is gone: %s", link.context.role, link.peer.name, message)

    def draining(self, link: Link, message: str) -> None:
        """Log that a peer shuts down; its calls fail one by one with its own reason."""
        log.info("%s %s is draining: %s", link.context.role, link.peer.name, message)

    async def drain(self) -> None:
        """Take no new calls, and wait until every link has finished its own."""
        self._draining = True
        self._calls.drain()
        links = list(self._links)
        for link in links:
            link.drain("the hub is shutting down")
        await asyncio.gather(*(link.wait_closed() for link in links))

    def proxy_drivers(self) -> Iterator[ProxyDriver]:
        """Tell of the proxy drivers that are connected, in the order of their names."""
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

    async def serve(self, stream: Stream) -> None:
        """Serve a stream of any kind that the peer's role may open."""
        assert stream.opened is not None
        role = stream.link.context.role
        serve = self._serve.get((role, stream.opened.kind))
        if serve is None:
            raise NotCarried(f"stream kind {stream.opened.kind}", f"this hub does not serve it to the role {role}")
        if self._draining:
            raise Draining("hub")
        await serve(stream)


async def _refuse_status(_stream: Stream) -> None:
    raise NotCarried("the question for its state", "this hub answers it over HTTP; use the csi-bridge of its version")


def _level(link: Link) -> int:
    return logging.DEBUG if link.context.role is Role.OPERATOR else logging.INFO
