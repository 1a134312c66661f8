"""The proxy driver: the CSI driver that stock sidecars talk to. It forwards every call, as bytes, to the hub.

Rules:

* Identity and capabilities come from the cache, within milliseconds, even without a link
  (docs/csi-contract.md#sidecars-read-capabilities-once). `Probe` reports this process only
  (docs/csi-contract.md#probe-speaks-for-the-proxy-driver-alone).
* Any method under `/csi.v1.` is forwarded, known or not. Of the Node service only NodeGetCapabilities is served
  (docs/csi-contract.md#the-resizer-asks-for-node-capabilities).
* The proxy driver acknowledges an answer when the caller's connection has taken it. Until then the agent keeps it for
  the retry.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from typing import NoReturn

from cloud.driver_settings import DriverSettings
from cloud.identity_cache import CACHED_METHODS, IdentityCache
from common.accounting import Account, Accounted
from common.backoff import Backoff
from common.certificate_ends import CertificateEnds
from common.csi.csi_pb2 import ProbeResponse
from common.csi.methods import is_controller_side
from common.errors import (
    CallError,
    CallTimeout,
    Draining,
    HubUnreachable,
    LinkLost,
    MessageTooLarge,
    NotCarried,
    TunnelClosed,
    status_of,
)
from common.httpd import HttpEndpoint
from common.link import Link, Stream
from common.messages import Kind
from common.metrics import Metrics
from common.relay.errors import PeerGone, ServerClosing
from common.relay.server import ServerCall, serve
from common.reports import PROBE, decode_reports
from common.rotation import follow
from common.standing import REOPEN, Standing
from common.status import Code, Origin, Status
from common.tasks import supervised
from common.uplink import Uplink
from common.version import introduce

log = logging.getLogger("csi_bridge.driver")

SIDECAR_MESSAGE_BYTES = 4 * 1_048_576
"""The largest answer that a stock sidecar takes: grpc-go's default, which no sidecar raises."""


class ProxyDriver:
    """Answers the sidecars' calls (`common.relay.server`), and takes the hub's reports (`common.link.LinkHandler`)."""

    origin = Origin.PROXY

    def __init__(
        self, settings: DriverSettings, cache: IdentityCache, metrics: Metrics, *, reopen: Backoff = REOPEN
    ) -> None:
        """A proxy driver without sockets: see `run`. `reopen` has the waits between two watches of the hub."""
        self._driver = settings.drivername
        self._node = settings.nodeid or ""
        self._limit = settings.max_message_bytes
        self._cache = cache
        self._metrics = metrics
        self._watch = Standing(Kind.WATCH, self._listen, subject=self._driver, node=self._node, reopen=reopen)
        self.uplink: Uplink | None = None
        self._link: Link | None = None

    # ---- the sidecars' side ------------------------------------------------------------------------------------------

    async def handle(self, call: ServerCall) -> None:
        """Answer one call of a sidecar."""
        if call.method == PROBE:
            await call.send(ProbeResponse(ready={"value": self._cache.known}).SerializeToString())
            call.finish(Status(Code.OK, origin=self.origin))
        elif call.method in CACHED_METHODS:
            await self._answer_from_cache(call)
        else:
            await self._forward_and_account(call)

    async def _answer_from_cache(self, call: ServerCall) -> None:
        answer = self._cache.answer(call.method)
        if answer.code == Code.OK:
            await call.send(answer.body)
        call.finish(Status(answer.code, answer.message))

    async def _forward_and_account(self, call: ServerCall) -> None:
        call_id = f"{random.getrandbits(64):016x}"  # a name for logs
        with Accounted(
            self._metrics,
            log,
            origin=self.origin,
            driver=self._driver,
            method=call.method,
            call_id=call_id,
            node=self._node,
            timeout_s=call.timeout_s,
        ) as account:
            account.request_bytes = len(call.request)
            await self._forward(call, account)

    async def _forward(self, call: ServerCall, account: Account) -> None:
        if not is_controller_side(call.method):
            raise NotCarried(
                call.method, "this socket serves the controller side of CSI; the Node service is at the edge node"
            )
        stream = self._open(call, account.call_id)
        try:
            while (message := await stream.receive()) is not None:
                account.response_bytes += len(message)
                _check_answer(message)
                await call.send(message)
        except TunnelClosed as error:
            if error.sent:
                raise LinkLost("the hub", error.why) from error
            raise self._unreachable() from error
        except CallTimeout as error:
            raise CallTimeout(f"driver {self._driver}") from error
        except PeerGone:
            account.status = Status(Code.CANCELLED, "the caller did not wait", self.origin)
            stream.cancel()
            raise
        except BaseException:
            stream.cancel()
            raise
        assert stream.status is not None
        account.status = stream.status
        stream.acknowledge(delivered=call.finish(stream.status))

    def _open(self, call: ServerCall, call_id: str) -> Stream:
        assert self.uplink is not None
        link = self.uplink.link
        if link is None:
            raise self._unreachable()
        if link.draining:
            raise Draining("hub")
        try:
            return link.open(
                Kind.CALL,
                call.request,
                subject=self._driver,
                method=call.method,
                node=self._node,
                call=call_id,
                timeout_s=call.timeout_s,
            )
        except TunnelClosed as error:
            raise self._unreachable() from error

    def _unreachable(self) -> HubUnreachable:
        assert self.uplink is not None
        return HubUnreachable(str(self.uplink.endpoint), self.uplink.since)

    def on_error(self, error: BaseException | None) -> Status:
        """The status for a handler that failed, and for calls that a stopping server refuses."""
        if isinstance(error, ServerClosing):
            return status_of(Draining("proxy driver"), self.origin)
        if error is not None and not isinstance(error, CallError | PeerGone):
            log.error("a call failed inside the proxy driver", exc_info=error)
        return status_of(error, self.origin)

    def on_deadline(self, _call: ServerCall) -> Status:
        """The status for a call whose time is up."""
        return status_of(CallTimeout(f"driver {self._driver}"), self.origin)

    def too_large(self, size: int) -> Status:
        """The status for a request of so many bytes."""
        return status_of(MessageTooLarge(size, self._limit, "a request"), self.origin)

    # ---- the hub's side ----------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """Watch the driver, now that the hub has accepted the link."""
        self._link = link
        self._metrics.link_ups.inc()
        self._watch.up(link)

    async def serve(self, _stream: Stream) -> NoReturn:
        """Refuse every stream: the hub opens none here."""
        raise NotCarried("a stream", "a proxy driver serves none")

    def refused(self, link: Link, reason: str, message: str) -> None:
        """Do nothing: the uplink logs the refusal and dials again."""

    def draining(self, link: Link, _message: str) -> None:
        """End the watch, which would keep the link open while one side shuts down."""
        if link is self._link:
            self._watch.down()

    def closed(self, link: Link, reason: str, _message: str) -> None:
        """End the watch: the link is gone."""
        self._metrics.link_down(reason)
        if link is self._link:
            self._watch.down()

    async def _listen(self, stream: Stream) -> None:
        """Store each report of the driver, until the hub ends the watch."""
        async for message in stream:
            try:
                reports = decode_reports(message)
            except ValueError as error:
                log.warning("the hub sent an unreadable report: %s", error)
                continue
            for report in reports:
                await asyncio.to_thread(self._cache.update, report)


def _check_answer(message: bytes) -> None:
    if len(message) > SIDECAR_MESSAGE_BYTES:
        raise MessageTooLarge(len(message), SIDECAR_MESSAGE_BYTES, "an answer", "no stock sidecar takes a larger one")


async def run(settings: DriverSettings, stopping: asyncio.Event) -> None:
    """Run a proxy driver until `stopping` is set, then drain it.

    Raises:
        SettingsError: a socket, a file or the state directory cannot be used.
    """
    async with contextlib.AsyncExitStack() as opened:
        await _run(settings, stopping, opened)


async def _run(settings: DriverSettings, stopping: asyncio.Event, opened: contextlib.AsyncExitStack) -> None:
    metrics = Metrics()
    cache = IdentityCache(settings.state_dir, settings.drivername)
    proxy = ProxyDriver(settings, cache, metrics)
    hello = introduce("driver", settings.drivername, instance=secrets.token_hex(8), placement=settings.placement)
    uplink = Uplink(
        settings.hub_endpoint,
        lambda: hello,
        proxy,
        limits=settings.limits(),
        tls=settings.tls(server=False),
        on_redial=metrics.redials.inc,
        leave=lambda former: former.drain("the proxy driver has a newer link"),
    )
    proxy.uplink = uplink
    if settings.http is not None:
        http = HttpEndpoint(
            settings.http, registry=metrics.registry, ready=lambda: (cache.known, "the driver is not known yet")
        )
        opened.push_async_callback(asyncio.to_thread, http.close)
    # Last, because it makes a file, and an earlier failure must leave none.
    sock = settings.listen_unix("endpoint", mode=settings.endpoint_mode)
    server = await serve(
        sock,
        proxy.handle,
        max_message_bytes=settings.max_message_bytes,
        on_error=proxy.on_error,
        too_large=proxy.too_large,
        on_deadline=proxy.on_deadline,
        max_connections=settings.max_connections,
    )
    opened.push_async_callback(server.close)
    log.info("serving %s on %s", settings.drivername, settings.endpoint)
    ends = CertificateEnds(settings.tls_cert, settings.tls_ca, metrics)
    async with supervised() as tasks:
        tasks.start(ends.follow(), name="certificate ends")
        tasks.start(uplink.run(), name="uplink")
        if (files := settings.tls_files()) is not None:
            tasks.start(follow(uplink, files), name="rotation of the certificate")
        await stopping.wait()
        log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_timeout_s):
                await server.drain()
                await uplink.drain("the proxy driver is shutting down")
