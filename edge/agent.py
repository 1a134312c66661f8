"""The edge agent: a link to the hub that leads, the vendors' drivers of this node, and its pods' volumes.

Rules:

* The agent dials the hub; nothing dials the agent.
* The hub may call every service of CSI except Node: a call of Node names paths, and the driver mounts there as root.
  Volumes are mounted only for the pods of the node's own objects (`edge.kubelet_part`).
* A call with one answer needs no task (`edge.hub_call`). One that changes something is an operation
  (`edge.operations`): it goes on when its caller leaves. Any other call is passed through, and so is its cancellation.
* The agent makes no call of an older election than it has seen of the driver (`Open.epoch`). It remembers the epochs in
  memory only: an agent that has restarted gets calls only on links that it has made since, from the hub that elects.
* The agent reports its drivers' answers to the hub on each connection and after each change.
* Mounting pods' volumes is in `edge.kubelet_part`, and goes on without the link.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from common.csi.methods import METHODS, is_controller_side
from common.csi.reports import MAX_DRIVER_BYTES, DriverReport, encode_problems, encode_reports
from common.errors import CallError, not_carried
from common.links.dial import dial
from common.links.rotation import follow
from common.links.standing import Standing
from common.links.uplink import Dialling, HubAddress, Uplink
from common.messages import Kind, Open
from common.net.certificate_ends import CertificateEnds
from common.net.settings import as_texts
from common.observe.accounting import Account, Accounts
from common.observe.metrics import Metrics
from common.observe.tasks import supervised
from common.observe.version import SOFTWARE, introduce
from common.pages.agent import AgentStatus, DriverSocket, HubLink, NodeVolumes
from common.pages.json_form import time_of
from common.pages.server import Pages
from common.session.link import Link, LinkHandler, Stream
from common.session.receiver import Receiver
from common.status import Code, Origin, Status
from edge.calls.controller_lease import ControllerLease
from edge.calls.driver_call import over_limit
from edge.calls.drivers import Driver
from edge.hub_call import HubCall
from edge.identity.hub_mark import HubMark
from edge.identity.identity import Identity
from edge.identity.instance import next_boot
from edge.identity.keys import KeyProcess
from edge.identity.renewal import Renewal
from edge.kubelet_part import KubeletPart
from edge.operations import Operations
from edge.registry.driver_services import find_driver, services
from edge.registry.registration import csi_node_drivers
from edge.reports.problems import Problems
from edge.settings import AgentFlags, AgentSettings, complete

log = logging.getLogger("csi_bridge.edge")


class Agent(LinkHandler):
    """Serves the streams that the hub opens. Standing streams follow the link."""

    def __init__(
        self,
        part: KubeletPart,
        operations: Operations,
        lease: ControllerLease,
        metrics: Metrics,
        *,
        problems: Problems,
        mark: HubMark,
    ) -> None:
        super().__init__(Origin.EDGE)
        self.node = part.node
        self.operations = operations  # runs the calls that change something at a vendor
        self.lease = lease
        self.metrics = metrics
        self.accounts = Accounts(metrics, log, origin=self.origin)
        self._registry = part.registry
        self._problems = problems
        self._mark = mark
        # The driver that serves a method of csi.proto, by its name and the method, as far as a call has asked since the
        # last change.
        self._serving: dict[tuple[str, str], Driver] = {}
        self._epochs: dict[str, int] = {}
        self._news = asyncio.Event()
        self._link: Link | None = None
        self._standing = (Standing(Kind.REPORT, self._send_reports), *part.streams)
        part.registry.subscribe(self.changed)

    # ---- links -------------------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        self._mark.take(link.peer.mark, link.peer.epoch)
        # A standby that begins to lead says hello again.
        if link is self._link:
            return
        # Calls of a former link go on there.
        self._link = link
        self.metrics.link_ups.inc()
        self.lease.up(link)
        for stream in self._standing:
            stream.up(link)

    def draining(self, link: Link, _message: str) -> None:
        self._end_standing(link)  # they would keep a draining link open

    def closed(self, link: Link, reason: str, _message: str) -> None:
        self.metrics.link_down(reason)
        self.lease.down(link)
        self._end_standing(link)

    def _end_standing(self, link: Link) -> None:
        if link is self._link:  # those of a former link have ended
            for stream in self._standing:
                stream.down()

    def changed(self) -> None:
        self._serving.clear()
        self._news.set()

    async def _send_reports(self, stream: Stream) -> None:
        async with supervised() as tasks:
            tasks.start(self._send_news(stream), name="report")
            async for _ in stream:
                pass  # a newer hub may send messages

    async def _send_news(self, stream: Stream) -> None:
        told: list[bytes] = []
        while True:
            self._news.clear()
            reports = encode_reports(_fitting(report) for report in self._registry.told_reports())
            news = [encode_problems(self._problems.standing), reports]  # an older hub reads the last alone
            if news != told:
                for message in news:
                    await stream.send(message)
            told = news
            await self._news.wait()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def called(self, link: Link, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        # A task serves streams, and methods that csi.proto lacks
        method = METHODS.get(frame.method)
        if method is None or method.streaming:
            return link.served(frame, deadline, self._serve_call, request)
        timeout_s = None if deadline is None else deadline - link.loop.time()
        call = HubCall(self, link, frame, timeout_s, request)
        call.go_on()
        return call

    async def serve(self, stream: Stream) -> None:
        assert stream.opened is not None
        raise not_carried(f"stream kind {stream.opened.kind}", "an edge agent serves only calls")

    async def _serve_call(self, stream: Stream) -> None:
        frame = stream.opened
        assert frame is not None
        timeout_s = stream.remaining_s()
        account = Account(self.accounts, frame.subject, frame.method, frame.call, self.node, timeout_s=timeout_s)
        try:
            request = await stream.receive() or b""
            account.request_bytes = len(request)
            if frame.epoch:
                if frame.method not in METHODS:  # it may change something, as far as is known
                    await self.lease.wait_held()
                self.heed(frame)
            account.end(await self._pass_through(stream, self.driver_for(frame), frame, request, account))
        except BaseException as error:
            account.fail(error)
            raise

    def driver_for(self, frame: Open) -> Driver:
        name, method = asked = frame.subject, frame.method
        found = self._serving.get(asked)
        if found is not None:
            return found
        if not is_controller_side(method):
            why = "an edge agent calls only methods of CSI for a hub, and of the Node service only NodeGetCapabilities"
            raise not_carried(method, why)
        found = find_driver(self._registry.drivers, name, self.node, method)
        if method in METHODS:
            self._serving[asked] = found
        return found

    def heed(self, frame: Open) -> None:
        """Note the epoch of a call that has one. Another node may have served the driver since an earlier epoch."""
        seen = self._epochs.get(frame.subject, 0)
        if frame.epoch < seen:
            # Not UNAVAILABLE, which tells the hub that no operation of the call's key runs here.
            raise CallError(
                f"the call is of epoch {frame.epoch} of driver {frame.subject}, and edge node {self.node} has seen "
                f"epoch {seen}; a retry goes to the node that serves the driver now",
                code=Code.ABORTED,
                is_unsent=True,
            )
        if frame.epoch > seen and any(driver.name == frame.subject for driver in self._registry.drivers):
            self._epochs[frame.subject] = frame.epoch
            self.operations.forget_results(frame.subject)

    async def _pass_through(
        self, stream: Stream, driver: Driver, frame: Open, request: bytes, account: Account
    ) -> Status:
        limit_s = self.operations.limit_s
        timeout_s = min(stream.remaining_s() or limit_s, limit_s)
        try:
            async with (
                asyncio.timeout(limit_s),
                contextlib.aclosing(
                    driver.stream(frame.method, request, timeout_s=timeout_s, to=frame.subject)
                ) as answer,
            ):
                async for item in answer:
                    if isinstance(item, Status):
                        stream.end(item)
                        return item
                    account.response_bytes += len(item)
                    await stream.send(item)
        except TimeoutError:
            raise over_limit(frame.subject, self.node, limit_s) from None
        raise AssertionError("a driver's answer ends with a status")


def _fitting(report: DriverReport) -> DriverReport:
    # Of a driver with very long answers, only its name fits into a message.
    size = len(encode_reports([report]))
    if size <= MAX_DRIVER_BYTES:
        return report
    log.error(
        "driver %s describes itself in %d bytes, of which %d can be reported: the hub gets only its name",
        report.driver,
        size,
        MAX_DRIVER_BYTES,
    )
    return replace(report, answers={})


def _pages(
    agent: Agent, uplink: Uplink, part: KubeletPart, settings: AgentSettings, problems: Callable[[], list[str]]
) -> Pages:
    def status() -> AgentStatus:
        return AgentStatus(
            software=SOFTWARE,
            node=agent.node,
            connected=uplink.link is not None,
            since=time_of(uplink.since),
            hubs=[_hub(address) for address in uplink.addresses],
            drivers=[_driver(driver, part) for driver in part.registry.drivers],
            problems=problems(),
            operations=agent.operations.under_way,
            registered=csi_node_drivers(part.registry.registrations),
            settings=as_texts(settings),
        )

    def volumes() -> NodeVolumes:
        return part.describe(connected=uplink.link is not None, since=time_of(uplink.since))

    return Pages({"/status": status, "/volumes": volumes})


def _hub(address: HubAddress) -> HubLink:
    hello = address.link.peer if address.link is not None else None
    return HubLink(
        address=str(address.endpoint),
        why=address.why,
        epoch=hello.epoch if hello is not None else 0,
        software=hello.software if hello is not None else "",
    )


def _driver(driver: Driver, part: KubeletPart) -> DriverSocket:
    return DriverSocket(
        name=driver.name,
        socket=str(driver.socket),
        services=services(driver),
        relay=part.relay_of(driver.name),
        trouble=driver.trouble,
    )


def _renewal(settings: AgentSettings, opened: contextlib.AsyncExitStack) -> Renewal:
    hubs = ", ".join(map(str, settings.hub))
    log.info("node %s has joined the hub at %s; its certificate is %s", settings.node, hubs, settings.tls_cert)
    keys = KeyProcess()
    opened.callback(keys.stop)
    identity = Identity(settings.state_dir, keys.answer)
    return Renewal(identity, settings.node, limits=settings.limits(), proxy=settings.proxy)


async def _drain(agent: Agent, uplink: Uplink) -> None:
    await uplink.drain("the edge agent is shutting down")
    await agent.operations.drain()


async def run(flags: AgentFlags, stopping: asyncio.Event) -> None:
    """Run an agent until `stopping` is set, then drain it."""
    async with contextlib.AsyncExitStack() as opened:
        await _run(complete(flags), stopping, opened)


async def _run(settings: AgentSettings, stopping: asyncio.Event, opened: contextlib.AsyncExitStack) -> None:
    instance = next_boot(settings.state_dir)
    mark = HubMark(settings.state_dir, [str(hub) for hub in settings.hub])
    metrics = Metrics()
    problems = Problems()
    part = KubeletPart(settings, metrics)
    opened.push_async_callback(part.close)
    lease = ControllerLease(part.volumes.fencing.lease_s if part.volumes is not None else settings.controller_lease_s)
    agent = Agent(
        part,
        Operations(
            settings.operation_limit_s,
            settings.node,
            most=settings.max_operations,
            drivers=lambda: len(part.registry.names),
        ),
        lease,
        metrics,
        problems=problems,
        mark=mark,
    )
    hello = replace(
        introduce("edge", settings.node, instance=instance.id, boot=instance.boot),
        controller_lease_s=math.ceil(lease.length_s),
    )
    renewal = _renewal(settings, opened) if settings.is_joined else None
    uplink = Uplink(
        settings.hub,
        agent,
        Dialling(
            hello=lambda: replace(hello, mark=mark.text),
            limits=settings.limits(),
            tls=settings.tls(server=False),
            dial=partial(dial, proxy=settings.proxy),
            before=renewal.before_dial if renewal is not None else None,
            on_failed=metrics.redials.inc,
        ),
        epoch=mark.epoch,
    )
    ends = CertificateEnds(settings.tls_cert, settings.tls_ca, metrics, renews=settings.is_joined)

    def find_problems() -> list[str]:
        renewing = renewal.problems() if renewal is not None else []
        return [*part.problems, *lease.problems(), *renewing, *uplink.problems()]

    async def look_for_problems() -> list[str]:
        await part.look()
        return find_problems()

    if settings.http is not None:
        from common.observe.httpd import HttpEndpoint  # noqa: PLC0415  # it and its libraries take 3 MB, which few nodes need

        http = HttpEndpoint(settings.http, metrics=metrics, ready=lambda: (True, ""))
        opened.push_async_callback(asyncio.to_thread, http.close)
    sock = None
    if settings.status is not None:  # last, because it makes a file, and an earlier failure must leave none
        sock = settings.listen_unix("status", mode=0o600, make_directory=True)
        opened.callback(sock.close)
    async with supervised() as tasks:
        await part.start(tasks, lease)
        if sock is not None:  # now that the mounts are known: before, the answer would be that no volume is missing
            pages = _pages(agent, uplink, part, settings, lambda: [*find_problems(), *ends.problems()])
            opened.callback((await pages.listen(sock)).close)
        tasks.start(problems.run(look_for_problems, changed=agent.changed), name="problems")
        tasks.start(uplink.run(), name="uplink")
        tasks.start(mark.write_changes(), name="mark and epoch of the hub")
        tasks.start(ends.follow(), name="certificate ends")
        if renewal is not None:
            tasks.start(renewal.run(uplink), name="renewal of the certificate")
        elif (files := settings.tls_files()) is not None:
            tasks.start(follow(uplink, files), name="rotation of the certificate")
        await stopping.wait()
        log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_timeout_s):
                await asyncio.gather(_drain(agent, uplink), part.drain(settings.drain_timeout_s))
