"""The proxy driver: the CSI driver that stock sidecars talk to. It forwards every call, as bytes, to the hub.

Rules:

* Identity and capabilities come from the cache, within milliseconds, even without a link
  (docs/csi-contract.md#sidecars-read-capabilities-once). `Probe` reports this process only
  (docs/csi-contract.md#probe-speaks-for-the-proxy-driver-alone).
* Any method under `/csi.v1.` is forwarded, known or not. Of the Node service only NodeGetCapabilities is served
  (docs/csi-contract.md#the-resizer-asks-for-node-capabilities).
* The proxy driver acknowledges an answer when the caller's connection has taken it. Until then the agent keeps it for
  the retry.
* It makes the sidecars' socket again if somebody deletes the file. Otherwise sidecars that start could not connect,
  and only a restart would help, which ends all connections.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from cloud.proxy.driver_settings import DriverSettings
from cloud.proxy.forwarded_call import ForwardedCall, no_hub
from cloud.proxy.identity_cache import CACHED_METHODS, IdentityCache
from common.csi.csi_pb2 import ProbeResponse
from common.csi.methods import is_controller_side
from common.csi.reports import PROBE, decode_reports
from common.errors import CallError, CallTimeout, not_carried, shutting_down, status_of
from common.links.backoff import Backoff
from common.links.dial import dial as dial_hub
from common.links.rotation import follow
from common.links.standing import REOPEN, Standing
from common.links.uplink import Dial, Dialling, Uplink
from common.messages import Kind
from common.net.certificate_ends import CertificateEnds
from common.net.sockets import UnixListener, listen_unix
from common.observe.accounting import Accounts
from common.observe.httpd import HttpEndpoint
from common.observe.metrics import Metrics
from common.observe.tasks import Tasks, supervised
from common.observe.version import introduce
from common.relay.errors import PeerGone
from common.relay.server import CancelReason, Server, ServerCall, ServerSettings
from common.session.link import Link, LinkHandler, Stream
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.driver")

# How often it looks for the socket's file. A sidecar that starts dials every second (csi-lib-utils), and goes on.
_LOOK_S = 2.0


class CsiProxyDriver(LinkHandler):
    """Answers the sidecars' calls (`common.relay.server`), and takes the hub's reports."""

    origin = Origin.PROXY

    def __init__(
        self, settings: DriverSettings, cache: IdentityCache, metrics: Metrics, *, reopen: Backoff = REOPEN
    ) -> None:
        self._driver = settings.drivername
        self._node = settings.nodeid or ""
        self._cache = cache
        self._metrics = metrics
        self._accounts = Accounts(metrics, log, origin=self.origin)
        self._watch = Standing(Kind.WATCH, self._listen, subject=self._driver, node=self._node, reopen=reopen)
        self.uplink: Uplink | None = None
        self._link: Link | None = None

    # ---- the sidecars' side ------------------------------------------------------------------------------------------

    def handle(self, call: ServerCall) -> ForwardedCall | None:
        if call.method in CACHED_METHODS:
            answer = self._cache.answer(call.method)
            call.answer(Status(answer.code, answer.message), None if answer.code else answer.body)
            return None
        if call.method == PROBE:
            probed = ProbeResponse(ready={"value": self._cache.known})
            call.answer(Status(Code.OK, origin=self.origin), probed.SerializeToString())
            return None
        call_id = f"{random.getrandbits(64):016x}"  # a name for logs
        forwarded = ForwardedCall(
            self._accounts, self._driver, call.method, call_id, self._node, timeout_s=call.timeout_s
        )
        forwarded.request_bytes = len(call.request)
        try:
            forwarded.send(self._link_for(call.method), call)
        except BaseException as error:
            forwarded.fail(error)
            raise
        return forwarded

    def _link_for(self, method: str) -> Link:
        if not is_controller_side(method):
            why = "this socket serves the controller side of CSI; the Node service is at the edge node"
            raise not_carried(method, why)
        assert self.uplink is not None
        link = self.uplink.link
        if link is None:
            raise no_hub(self.uplink.why, self.uplink.since)
        if link.draining:
            raise shutting_down("hub")
        return link

    def on_error(self, error: BaseException | CancelReason | None) -> Status:
        """The status for a call that failed here, or that the server cut or refused."""
        if isinstance(error, CancelReason):
            is_closing = error is CancelReason.CLOSING
            return status_of(
                shutting_down("proxy driver") if is_closing else CallTimeout(f"driver {self._driver}"), self.origin
            )
        if error is not None and not isinstance(error, CallError | PeerGone):
            log.error("a call failed inside the proxy driver", exc_info=error)
        return status_of(error, self.origin)

    # ---- the hub's side ----------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        if link is self._link:  # it says its next epoch
            return
        self._link = link
        self._metrics.link_ups.inc()
        self._watch.up(link)

    def draining(self, link: Link, _message: str) -> None:
        # The watch would keep the link open while one side shuts down.
        if link is self._link:
            self._watch.down()

    def closed(self, link: Link, reason: str, _message: str) -> None:
        self._metrics.link_down(reason)
        if link is self._link:
            self._watch.down()

    async def _listen(self, stream: Stream) -> None:
        async for message in stream:
            try:
                reports = decode_reports(message)
            except ValueError as error:
                log.warning("the hub sent an unreadable report: %s", error)
                continue
            for report in reports:
                await asyncio.to_thread(self._cache.update, report)


async def run(settings: DriverSettings, stopping: asyncio.Event) -> None:
    """Run a proxy driver until `stopping` is set, then drain it. Raises SettingsError."""
    async with contextlib.AsyncExitStack() as opened:
        metrics = Metrics()
        cache = IdentityCache(settings.state_dir, settings.drivername)
        if settings.http is not None:
            http = HttpEndpoint(
                settings.http, metrics=metrics, ready=lambda: (cache.known, "the driver is not known yet")
            )
            opened.push_async_callback(asyncio.to_thread, http.close)
        # Last, because it makes a file, and an earlier failure must leave none.
        serving = await opened.enter_async_context(serve_sidecars(settings, cache, metrics))
        ends = CertificateEnds(settings.tls_cert, settings.tls_ca, metrics)
        tasks = await opened.enter_async_context(supervised())
        tasks.start(ends.follow(), name="certificate ends")
        serving.start(tasks)
        await stopping.wait()
        log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_timeout_s):
                await serving.drain()


class Serving(NamedTuple):
    """A proxy driver with its two ends, and its first socket."""

    uplink: Uplink
    server: Server
    settings: DriverSettings
    sock: UnixListener

    def start(self, tasks: Tasks) -> None:
        driver = self.settings.drivername
        tasks.start(self.uplink.run(), name=f"uplink of {driver}")
        tasks.start(self._keep_socket(), name=f"socket of {driver}")
        if (files := self.settings.tls_files()) is not None:
            tasks.start(follow(self.uplink, files), name="rotation of the certificate")

    async def _keep_socket(self) -> None:
        sock = self.sock
        path = self.settings.endpoint
        told = ""
        while not self.server.draining:
            if not sock.has_file:
                try:
                    sock = listen_unix(path, mode=self.settings.endpoint_mode, lock_wait_s=0)
                except OSError as error:
                    if str(error) != told:
                        told = str(error)
                        log.error("the socket %s is gone, and cannot be made again: %s", path, told)  # noqa: TRY400  # the sentence says it all
                else:
                    await self.server.listen(sock)
                    log.warning("the socket %s was gone, and is there again", path)
            await asyncio.sleep(_LOOK_S)

    async def drain(self) -> None:
        await self.server.drain()
        await self.uplink.drain("the proxy driver is shutting down")


@contextlib.asynccontextmanager
async def serve_sidecars(
    settings: DriverSettings, cache: IdentityCache, metrics: Metrics, *, dial: Dial | None = None
) -> AsyncIterator[Serving]:
    """Serve a driver's socket inside this block. `dial` makes its link to the hub. Raises SettingsError."""
    proxy = CsiProxyDriver(settings, cache, metrics)
    hello = introduce("driver", settings.drivername, instance=secrets.token_hex(8), placement=settings.placement)
    uplink = proxy.uplink = Uplink(
        settings.hub_endpoint,
        proxy,
        Dialling(
            hello=lambda: hello,
            limits=settings.limits(),
            tls=settings.tls(server=False),
            dial=dial or partial(dial_hub, proxy=settings.proxy),
            on_failed=metrics.redials.inc,
        ),
        leave=lambda former: former.drain("the proxy driver has a newer link"),
    )
    sock = settings.listen_unix("endpoint", mode=settings.endpoint_mode)
    server = Server(
        proxy.handle, ServerSettings(settings.max_message_bytes, proxy.on_error, settings.max_connections, proxy.origin)
    )
    await server.listen(sock)
    log.info("serving %s on %s", settings.drivername, settings.endpoint)
    try:
        yield Serving(uplink, server, settings, sock)
    finally:
        await server.close()
