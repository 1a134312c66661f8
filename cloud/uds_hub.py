"""The hub: takes links from edge agents and proxy drivers, and carries each call to the node it is for.

Rules:

* Agents and proxy drivers come and go in any order; the hub dials nobody.
* A call is forwarded as bytes; of its frames only the `Open` is read.
* Whoever broke off is told apart: a caller who left (the call is cancelled onwards, and the agent decides whether the
  work goes on), a node that left (an error that names it), a hub that stops (it drains first).
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import ClassVar

from cloud import volume_report
from cloud.admission import Role, admit
from cloud.edge_nodes import Call, Nodes, Reply
from cloud.hub_settings import HubSettings
from cloud.node_calls import NodeCalls
from cloud.placement.affinity import Affinity
from cloud.placement.claim_store import ClaimStore
from cloud.placement.decisions import Mode
from cloud.placement.placement import Placement
from cloud.placement.requests import VOLUME
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.refusals import Refusals
from cloud.sources.manifests.claim_sizes import ClaimSizes
from cloud.sources.manifests.good_manifests import GoodManifests
from cloud.sources.manifests.manifests import Manifests
from cloud.store import Store
from cloud.sync.closures import Closures
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.streams import SyncServer
from common.accounting import Account, Accounted
from common.csi.methods import is_controller_side, is_csi
from common.errors import (
    Draining,
    ForeignDriver,
    HandshakeRefused,
    KnowledgeLost,
    MessageTooLarge,
    NoRoute,
    NotCarried,
    OperatorRefused,
    SettingsError,
)
from common.httpd import HttpEndpoint
from common.link import Link, Stream
from common.listener import Listener, listen_tcp
from common.messages import Hello, Kind, Open, Reason
from common.metrics import Metrics
from common.reports import MAX_REPORT_BYTES, DriverReport, decode_reports, encode_reports
from common.settings import as_texts
from common.status import Code, Origin, Status
from common.tasks import Tasks, supervised
from common.version import SOFTWARE, introduce

log = logging.getLogger("csi_bridge.hub")

_QUICK_REPORT_BYTES = 16_384
"""A report up to this size is read on the loop, in half a millisecond at worst; the largest take ten."""

_MOST_WATCHES = 64
"""Watches of one driver at once. Each proxy driver has one; each that is not read holds a report."""

_PART_TEXTS, _PART_CHARS = 100, 2_000
"""Of the sentences about problems in one part of the state, and of one of them: at most 800 KB."""

_PART_VOLUMES = 100
"""Of the volumes in one part: each has 3 KB at most."""

_SHOWN_CHARS = 100
"""What a peer says of itself stands in the log up to here."""


class Hub:
    """Serves every link of the hub (`common.link.LinkHandler`)."""

    origin = Origin.HUB

    def __init__(self, store: Store, claims: ClaimStore, metrics: Metrics, *, insecure: bool, max_nodes: int) -> None:
        """A hub without listeners: see `run`."""
        self.sync: SyncServer | None = None
        """What agents are told and tell; None: this hub has no source of objects."""
        self.problems: Callable[[], list[str]] = list
        """What is wrong with the source."""
        self.volumes: Callable[[volume_report.Placed], Iterable[volume_report.Entry]] = volume_report.report_placed
        """Every volume that is known of (`cloud.volume_report`)."""
        self.settings: Mapping[str, list[str]] = {}
        """What it was started with (`common.settings.as_texts`), for operators."""
        self.nodes = Nodes(store, changed=self._report_changed, max_nodes=max_nodes)
        self._calls = NodeCalls(knows=self.nodes.knows)
        self._refusals = Refusals()
        self.placement = Placement(self.nodes, claims, losses=lambda: store.losses.standing)
        self._store = store
        self._metrics = metrics
        self._insecure = insecure
        self._links: dict[Link, float] = {}  # since when they are up, in seconds since the epoch
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._draining = False

    # ---- links -------------------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """A peer said hello: let it in, or say why not."""
        try:
            role = self._admit(link)
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
        link.context = role
        self._links[link] = time.time()
        link.accept()
        self._metrics.link_ups.inc()
        self._metrics.connected_nodes.set(self.nodes.connected)
        level = logging.DEBUG if role is Role.OPERATOR else logging.INFO
        log.log(
            level,
            "%s %s is connected from %s (%s)",
            role,
            link.peer.name,
            link.peer_identity.address,
            link.peer.software[:_SHOWN_CHARS],
        )

    def _admit(self, link: Link) -> Role:
        if self._draining:
            raise HandshakeRefused(Reason.DRAINING, "the hub is shutting down")
        role = admit(link.peer, link.peer_identity, insecure=self._insecure)
        if role is Role.EDGE:
            self.nodes.connect(link.peer, link)
        if role is Role.DRIVER and link.peer.placement not in ("", *Mode):
            shown = link.peer.placement[:_SHOWN_CHARS]
            why = f"this hub knows the placements {', '.join(Mode)}, not {shown!r}; a newer hub may know it"
            raise HandshakeRefused(Reason.PROTOCOL_ERROR, why)
        return role

    def refused(self, link: Link, reason: str, message: str) -> None:
        """A connection ended before its hello."""
        self._metrics.link_down(reason)
        log.warning("no hello from %s: %s", link.peer_identity.address, message)

    def closed(self, link: Link, reason: str, message: str) -> None:
        """A link is gone."""
        self._links.pop(link, None)
        self._metrics.link_down(reason)
        role = link.context
        if role is None:  # refused, which was logged
            return
        if role is Role.EDGE:
            self.nodes.disconnect(link.peer.name, link)
            self._metrics.connected_nodes.set(self.nodes.connected)
        level = logging.DEBUG if role is Role.OPERATOR else logging.INFO
        log.log(level, "%s %s is gone: %s", role, link.peer.name, message)

    def draining(self, link: Link, message: str) -> None:
        """A peer is shutting down; its calls fail one by one with its own reason."""
        log.info("%s %s is draining: %s", link.context, link.peer.name, message)

    async def drain(self) -> None:
        """Take no new calls, and wait until every link has finished its own."""
        self._draining = True
        links = list(self._links)
        for link in links:
            link.drain("the hub is shutting down")
        await asyncio.gather(*(link.wait_closed() for link in links))

    # ---- streams -----------------------------------------------------------------------------------------------------

    async def serve(self, stream: Stream) -> None:
        """Serve a stream of any kind that the peer's role may open."""
        assert stream.opened is not None
        role = stream.link.context
        serve = self._KINDS.get((role, stream.opened.kind))
        if serve is None:
            raise NotCarried(f"stream kind {stream.opened.kind}", f"this hub does not serve it to the role {role}")
        if self._draining:
            raise Draining("hub")
        await serve(self, stream)

    async def _serve_call(self, stream: Stream) -> None:
        frame = stream.opened
        assert frame is not None
        with Accounted(
            self._metrics,
            log,
            origin=self.origin,
            driver=frame.subject,
            method=frame.method,
            call_id=frame.call,
            node=frame.node,
            timeout_s=stream.remaining_s(),
        ) as account:
            request = await stream.receive() or b""
            account.request_bytes = len(request)
            if self._draining:  # since the call began: the nodes' links take no more
                raise Draining("hub")
            self._check_call(stream, frame)
            call = Call(frame.subject, frame.method, request, frame.call, stream.remaining_s())
            with self._calls.counted(account) as goes_to:
                reply = await self.placement.call(call, wanted=frame.node, mode=_mode(stream.link), goes_to=goes_to)
                await self._forward(stream, reply, account)

    def _check_call(self, stream: Stream, frame: Open) -> None:
        if stream.link.context is Role.DRIVER:
            self._check_driver(stream, frame)
            if not is_controller_side(frame.method):
                why = "a proxy driver serves the controller side of CSI; the Node service is at the edge node"
                raise NotCarried(frame.method, why)
        elif not is_csi(frame.method):
            raise NotCarried(frame.method, "the bridge carries only methods of CSI")

    def _check_driver(self, stream: Stream, frame: Open) -> None:
        proxy = stream.link.peer.name
        if frame.subject != proxy:
            raise ForeignDriver(proxy, frame.subject)

    async def _forward(self, stream: Stream, reply: Reply, account: Account) -> None:
        """Pass the answer on, message by message, at the caller's pace; its release goes back the same way."""
        try:
            while (message := await reply.receive()) is not None:
                account.response_bytes += len(message)
                if reply.exhausted:  # the ordinary case: one message, which travels on with the status
                    break
                await stream.send(message)
            assert reply.status is not None
            stream.end(reply.status, message)  # which the caller's limits may refuse
            stream.on_released = lambda delivered: reply.acknowledge(delivered=delivered)
            account.status = reply.status
        except BaseException:
            reply.cancel()
            raise

    async def _serve_report(self, stream: Stream) -> None:
        """An agent tells of its drivers, for as long as it is connected.

        One that cannot be taken may name a driver that the hub does not know there: a loss, until the same agent's next
        report, which names them all again.
        """
        node = stream.link.peer.name
        losses, lost = self._store.losses, f"a report of edge node {node} could not be taken, as the hub's log tells"
        is_mine = False
        async for message in stream:
            try:
                self.nodes.report(node, await _read_reports(message))
            except ValueError as error:
                log.warning("node %s sent an unreadable report: %s", node, error)
                is_mine = await asyncio.to_thread(losses.add, lost) or is_mine
            else:
                if is_mine:
                    await asyncio.to_thread(losses.remove, lost)
                    is_mine = False

    async def _serve_watch(self, stream: Stream) -> None:
        """A proxy driver hears of the driver's Identity and capabilities, and of each change."""
        assert stream.opened is not None
        self._check_driver(stream, stream.opened)
        driver, wanted = stream.opened.subject, stream.opened.node
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(driver, set())
        if len(watchers) >= _MOST_WATCHES:
            raise NotCarried("a watch", f"{_MOST_WATCHES} others watch driver {driver} already")
        watchers.add(changed)
        told: DriverReport | None = None
        try:
            while True:
                changed.clear()
                told = await self._tell(stream, driver, wanted, told)
                await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(driver, None)

    async def _tell(self, stream: Stream, driver: str, wanted: str, told: DriverReport | None) -> DriverReport | None:
        """Tell a proxy driver what is known of its driver, if that is another thing than was told; gives what was."""
        try:
            report = self.placement.report(driver, wanted, _mode(stream.link))
        except (NoRoute, KnowledgeLost):  # the next report or an operator may make one
            return told
        if report is None or report == told:
            return told
        try:
            await stream.send(encode_reports([report]))
        except MessageTooLarge as error:
            why = str(error)
            log.error("proxy driver %s cannot get the report of its driver on node %s: %s", driver, report.node, why)  # noqa: TRY400  # the sentence says it all
        return report

    async def _serve_status(self, stream: Stream) -> None:
        """The hub's state, or the volumes it knows of, in parts: however many there are, none outgrows a message."""
        assert stream.opened is not None
        parts = {"": self._describe, "volumes": self._describe_volumes}.get(stream.opened.subject)
        if parts is None:
            raise NotCarried(f"the question for {stream.opened.subject}", "this hub does not know what that is")
        async for part in parts():
            await stream.send(json.dumps(part).encode())
        stream.end(Status(Code.OK, origin=self.origin))

    async def _serve_forget(self, stream: Stream) -> None:
        """An operator says that a node is gone for good, or a driver of it."""
        assert stream.opened is not None
        node, driver = stream.opened.node, stream.opened.subject
        sync = self.sync if not driver else None
        left = await self.placement.knows(node, driver) or (sync is not None and sync.knows(node))
        if self.nodes.knows(node, driver) or not left:  # where it failed halfway: go on
            self.nodes.forget(node, driver)
        await self.placement.forget(node, driver)
        if not driver:
            self._calls.forget(node)
        if sync is not None and not self.nodes.knows(node):  # it may be back by now, and telling
            await self._forget_facts(sync, node)
        log.warning(
            "an operator let the hub forget %s", f"driver {driver} of node {node}" if driver else f"node {node}"
        )
        stream.end(Status(Code.OK, origin=self.origin))

    async def _forget_facts(self, sync: SyncServer, node: str) -> None:
        try:
            await sync.forget(node)
        except OSError as error:
            raise OperatorRefused(
                f"edge node {node} is forgotten, but not its facts", f"its files cannot be removed: {error}"
            ) from error

    async def _serve_trust(self, stream: Stream) -> None:
        """An operator says that the hub knows all nodes and their drivers again."""
        try:
            cleared = [
                *await asyncio.to_thread(self._store.losses.clear),
                *await self.placement.claims.trust(),
            ]
        except OSError as error:
            raise OperatorRefused(
                "csi-bridge trust has no effect", f"the decision cannot be written to the disk: {error}"
            ) from error
        for line in cleared:
            log.warning("an operator ran csi-bridge trust, and this loss no longer counts: %s", line)
        for driver in self._watchers:
            self._report_changed(driver)
        await stream.send(json.dumps({"lost": cleared}).encode())
        stream.end(Status(Code.OK, origin=self.origin))

    async def _serve_sync(self, stream: Stream) -> None:
        """An agent hears what concerns its node. Without a source it hears nothing: that is no word of an end."""
        if self.sync is None:
            await _ignore(stream)
        else:
            await self.sync.serve_sync(stream, stream.link.peer.name)

    async def _serve_facts(self, stream: Stream) -> None:
        """An agent tells what is so at its node; without a sink it keeps that."""
        if self.sync is None:
            await _ignore(stream)
        else:
            await self.sync.serve_facts(stream, stream.link.peer.name)

    async def _serve_observe(self, stream: Stream) -> None:
        """An agent says that a kubelet serves its node."""
        if self.sync is None:
            await _ignore(stream)
        else:
            await self.sync.serve_observe(stream, stream.link.peer.name)

    async def _describe(self) -> AsyncIterator[dict[str, object]]:
        for node in self.nodes.describe():
            yield {"nodes": [node | self._calls.describe(str(node["node"]))]}
        drivers = [(link, since) for link, since in self._links.items() if link.context is Role.DRIVER]
        for link, since in sorted(drivers, key=lambda driver: (driver[0].peer.name, driver[1])):
            proxy = {
                "driver": link.peer.name,
                "since": since,
                "address": link.peer_identity.address,
                "software": link.peer.software[:_SHOWN_CHARS],
                "placement": _mode(link),
            }
            yield {"drivers": [proxy]}
        for refusal in self._refusals.describe():
            yield {"refused": [refusal]}
        if self.settings:
            yield {"settings": dict(self.settings)}
        problems = list(_in_parts(self.problems()))
        for some in problems[:-1]:
            yield {"problems": some}
        yield {
            "software": SOFTWARE,
            "known": self.nodes.known,
            "connected": self.nodes.connected,
            "max_nodes": self.nodes.max_nodes,
            "lost": [*self._store.losses.standing, *self.placement.claims.lost()],
            "trouble": self._store.trouble,
            "problems": problems[-1],
        }

    async def _describe_volumes(self) -> AsyncIterator[dict[str, object]]:
        placed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for driver, thing, node in await self.placement.existing():
            if thing.kind == VOLUME:
                placed[driver, thing.id].append(node)
        yield {"has_source": self.sync is not None, "volumes": []}
        volumes = iter(self.volumes(placed))
        while some := list(islice(volumes, _PART_VOLUMES)):
            yield {"volumes": some}

    def _report_changed(self, driver: str) -> None:
        self.placement.changed(driver)
        for changed in self._watchers.get(driver, ()):
            changed.set()

    _KINDS: ClassVar[dict[tuple[Role, int], Callable[["Hub", Stream], Awaitable[None]]]] = {
        (Role.DRIVER, Kind.CALL): _serve_call,
        (Role.DRIVER, Kind.WATCH): _serve_watch,
        (Role.OPERATOR, Kind.CALL): _serve_call,
        (Role.OPERATOR, Kind.STATUS): _serve_status,
        (Role.OPERATOR, Kind.FORGET): _serve_forget,
        (Role.OPERATOR, Kind.TRUST): _serve_trust,
        (Role.EDGE, Kind.REPORT): _serve_report,
        (Role.EDGE, Kind.SYNC): _serve_sync,
        (Role.EDGE, Kind.FACTS): _serve_facts,
        (Role.EDGE, Kind.OBSERVE): _serve_observe,
    }
    """Which role may open which kind of stream."""


def _mode(link: Link) -> str:
    """How a peer's calls are placed; empty: an operator's, by hand."""
    return "" if link.context is Role.OPERATOR else link.peer.placement or Mode.AUTO


def _in_parts(texts: list[str]) -> Iterator[list[str]]:
    """Some at a time, and an empty list if there is none."""
    for start in range(0, len(texts) or 1, _PART_TEXTS):
        yield [text[:_PART_CHARS] for text in texts[start : start + _PART_TEXTS]]


async def _ignore(stream: Stream) -> None:
    """Keep a stream open, and what comes on it from piling up."""
    async for _ in stream:
        pass


async def _read_reports(message: bytes) -> list[DriverReport]:
    """An agent's message. Whoever asks for the next one afterwards keeps them in order.

    Raises:
        ValueError: it is too large, or no list of reports.
    """
    if len(message) > MAX_REPORT_BYTES:
        raise ValueError(
            f"{len(message)} bytes, and {MAX_REPORT_BYTES} is the limit; the node's earlier report stays; run fewer "
            f"drivers there"
        )
    if len(message) <= _QUICK_REPORT_BYTES:
        return decode_reports(message)
    return await asyncio.to_thread(decode_reports, message)


async def run(settings: HubSettings, stopping: asyncio.Event) -> None:
    """Run a hub until `stopping` is set, then drain it.

    Raises:
        SettingsError: a socket, a file or the state directory cannot be used.
    """
    async with contextlib.AsyncExitStack() as opened:
        await _run(settings, stopping, opened)


async def _run(settings: HubSettings, stopping: asyncio.Event, opened: contextlib.AsyncExitStack) -> None:
    metrics = Metrics()
    store = Store(settings.state_dir)
    opened.push_async_callback(store.close)
    claims = SqliteClaims(settings.state_dir)
    hub = Hub(store, claims, metrics, insecure=settings.tls_cert is None, max_nodes=settings.max_nodes)
    opened.push_async_callback(hub.placement.close)
    hub.settings = as_texts(settings)
    hello = introduce("hub", settings.name, instance="hub")
    if settings.http is not None:
        http = HttpEndpoint(settings.http, registry=metrics.registry, ready=lambda: (True, ""))
        opened.push_async_callback(asyncio.to_thread, http.close)
    listeners = []
    for listener in _listeners(settings, hub, hello):
        opened.push_async_callback(listener.close)
        listeners.append(listener)
    for loss in [*store.losses.standing, *claims.lost()]:
        log.warning("calls that name no node are refused, until csi-bridge trust: %s", loss)
    if settings.listen is None:
        log.warning("without --listen no edge agent can connect")
    async with supervised() as tasks, _synced(settings, hub, tasks):
        for listener in listeners:
            await listener.start()
            log.info("listening on %s", listener.address)
        await stopping.wait()
        log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
        for listener in listeners:
            listener.stop_accepting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_timeout_s):
                await hub.drain()


@contextlib.asynccontextmanager
async def _synced(settings: HubSettings, hub: Hub, tasks: Tasks) -> AsyncIterator[None]:
    """Let the hub tell agents what stands in the manifests or in Kubernetes, if it has either."""
    if settings.kubeconfig is not None:
        try:  # here, because the library is large, and may be missing where nobody needs it
            from cloud.kubernetes_part import following  # noqa: PLC0415
        except ModuleNotFoundError as error:
            why = f"needs the package {error.name}: install csi-bridge[cloud]"
            raise SettingsError("--kubeconfig", settings.kubeconfig, why) from error
        labels, taints = settings.node_labels.to_map(), settings.register_with_taints.to_list()
        async with following(settings.kubeconfig, settings.state_dir, labels=labels, taints=taints) as part:
            hub.sync, hub.problems, hub.volumes = part.sync, part.problems, part.volumes
            hub.placement.affinity = Affinity(part.source)
            yield
        return
    if settings.manifests is None:
        yield
        return
    async with FactTable(settings.state_dir) as table:
        _read_manifests(settings, settings.manifests, hub, table, tasks)
        yield


def _read_manifests(settings: HubSettings, directory: Path, hub: Hub, table: FactTable, tasks: Tasks) -> None:
    manifests = Manifests(
        directory,
        facts=table,
        sizes=ClaimSizes(settings.state_dir),
        kept=GoodManifests(settings.state_dir / "manifests"),
    )
    closures = Closures(manifests)
    hub.sync = sync = SyncServer(closures, FactSink(closures, table))
    hub.placement.affinity = Affinity(manifests)
    hub.problems = lambda: [*manifests.problems(), *table.problems(), *sync.problems()]
    hub.volumes = lambda placed: volume_report.report(manifests, table, placed)
    tasks.start(manifests.run(), name="manifests")


def _listeners(settings: HubSettings, hub: Hub, hello: Hello) -> Iterator[Listener]:
    limits = settings.limits()
    if settings.listen is not None:
        tls = settings.tls(server=True)
        yield Listener(
            listen_tcp(settings.listen),
            hello,
            hub,
            limits=limits,
            tls=tls.context if tls is not None else None,
            max_connections=settings.max_connections,
        )
    # Last, because it makes a file: what fails before it leaves none behind.
    sock = settings.listen_unix("uds", mode=0o600 if settings.uds_group is None else 0o660, gid=settings.uds_gid())
    allowed = frozenset(settings.uds_allow_uid) if settings.uds_group is not None else None
    yield Listener(sock, hello, hub, limits=limits, allow_uids=allowed)
