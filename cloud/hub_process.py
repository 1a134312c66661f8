"""The hub's process: waits until the hub may lead, opens its files, runs it, and drains it."""

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from cloud.csi_proxy_driver import Serving
from cloud.hub_pages import HubPages
from cloud.hub_parts import HubParts
from cloud.hub_settings import HubSettings
from cloud.join_part import JoinPart
from cloud.leadership.incarnation import Incarnation
from cloud.leadership.leadership import Leadership
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.unique_segments import UniqueSegments
from cloud.parts.manifests_part import reading
from cloud.parts.sync_part import SyncPart
from cloud.proxy.driver_settings import MAX_CONNECTIONS
from cloud.records.directory import StateDirectory
from cloud.records.records import Records
from cloud.records.sqlite import SqliteRecords
from cloud.served_drivers import serving
from cloud.standby import Standby
from cloud.trust import audit
from cloud.trust.audit import Event
from common.errors import SettingsError
from common.observe.httpd import HttpEndpoint
from common.observe.metrics import Metrics
from common.observe.tasks import supervised
from common.observe.version import SOFTWARE
from common.store.fault_points import reach

if TYPE_CHECKING:
    from cloud.kube.client import Kube
    from cloud.leadership.hub_lease import HubLease

log = logging.getLogger("csi_bridge.hub")

_OWN_DESCRIPTORS = 256  # databases, logs, the connections to Kubernetes, those of the join listener and of `--http`
_WATCH_S = 0.5  # a link ends within a second of its certificate; for 10,000 links, a look takes a millisecond


class _Term(NamedTuple):
    """The time in which a hub leads: its records, and in a cluster its leadership, with a client for that time."""

    records: Records
    leadership: Leadership | None = None
    kube: "Kube | None" = None


async def run(settings: HubSettings, stopping: asyncio.Event) -> None:
    """Run a hub until `stopping` is set, then drain it. Raises SettingsError."""
    async with AsyncExitStack() as opened:  # which closes all that was opened, also if the next thing cannot be
        tls = settings.tls(server=True)  # first, because it says best what is wrong with these files
        lease = None
        if settings.kubeconfig is not None:
            directory = StateDirectory(settings.state_dir)
            opened.callback(directory.close)
            directory.refuse_records()
            lease = _lease(settings, directory)
        metrics = Metrics()
        standby = Standby(settings, tls, metrics, lease)
        if settings.http is not None:
            http = HttpEndpoint(settings.http, metrics=metrics, ready=standby.ready, active=standby.active)
            opened.push_async_callback(asyncio.to_thread, http.close)
        opened.push_async_callback(standby.close)
        tasks = await opened.enter_async_context(supervised())
        served = await opened.enter_async_context(serving(settings, standby, tasks))
        if lease is None:
            term = _Term(SqliteRecords(settings.state_dir))
            opened.push_async_callback(term.records.close)
        else:
            metrics.leader.read_from(lambda: lease.is_held)
            leading = await opened.enter_async_context(_leading(settings, lease, stopping, standby.listen))
            if leading is None:
                await _drain(served, settings.drain_timeout_s)
                return
            term = leading
        await _run(settings, stopping, opened, standby, served, term=term, metrics=metrics)


async def _run(
    settings: HubSettings,
    stopping: asyncio.Event,
    opened: AsyncExitStack,
    standby: Standby,
    served: Sequence[Serving],
    *,
    term: _Term,
    metrics: Metrics,
) -> None:
    leadership = term.leadership
    parts = await _open(settings, opened, term, metrics)
    join = JoinPart(settings, parts) if settings.tls_cert is not None else None
    if join is not None:
        opened.push_async_callback(join.close)
    opened.push_async_callback(parts.hub.stop_lease_check)
    # Before all that calls use. If another hub takes over, the nodes' links end after the Lease is released.
    opened.push_async_callback(standby.close if leadership is None else parts.hub.hand_over)
    _warn_of_few_descriptors(settings)
    if settings.listen is None:
        log.warning("without --listen no edge agent can connect")
    tasks = await opened.enter_async_context(supervised())
    tasks.start(standby.ends.follow(), name="certificate ends")
    tasks.start(parts.incarnation.follow(), name="epochs of the records")
    reach("lead.before-links")
    await standby.lead(parts.hub, HubPages(parts, settings, standby.ends).pages())
    reach("lead.after-links")
    if join is not None:
        await join.start()
    log.info("this hub leads, with the epoch %d", parts.incarnation.epoch)
    tasks.start(parts.placement.elections.follow(), name="elections")
    tasks.start(_watch(parts), name="watch of certificates and fences")
    await stopping.wait()
    if leadership is not None:
        log.info("stopping: calls under way end now, and their retries reach the hub that takes over")
    else:
        log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
    parts.placement.elections.stop()
    standby.stop_accepting()
    if join is not None:
        join.drain()
    drain = parts.hub.drain if leadership is None else parts.hub.hand_over
    await _drain(served, settings.drain_timeout_s, drain())


async def _open(settings: HubSettings, opened: AsyncExitStack, term: _Term, metrics: Metrics) -> HubParts:
    records, leadership, kube = term
    incarnation = Incarnation(records)
    await incarnation.count(is_one_of_several=leadership is not None)
    reach("lead.after-epoch")
    audit.add(Event.START, who=settings.name, software=SOFTWARE)
    segments = UniqueSegments(records, settings.unique_topology)
    nodes = Nodes(records, segments, metrics, max_nodes=settings.max_nodes)
    if leadership is not None and kube is not None:
        nodes.leads = leadership.holds
        from cloud.parts.kubernetes_part import following  # noqa: PLC0415  # as in `_lease`

        sync = await opened.enter_async_context(following(settings, kube, records, nodes))
    elif settings.manifests is not None:
        sync = await opened.enter_async_context(reading(settings, records, nodes))
    else:
        sync = SyncPart()
    parts = HubParts(settings, records, incarnation, nodes, sync, metrics=metrics)
    opened.push_async_callback(parts.placement.close)
    # No provisioner writes into a directory of manifests.
    cluster = sync.source if leadership is not None else None
    incarnation.look(cluster, parts.placement.claims)
    return parts


async def _drain(served: Sequence[Serving], limit_s: float, *others: Coroutine[object, object, None]) -> None:
    for each in served:
        each.uplink.stop_dialling()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*others, *(each.drain() for each in served))


def _warn_of_few_descriptors(settings: HubSettings) -> None:
    # Connections could take the last descriptors, which the hub needs for its own files.
    of_sidecars = MAX_CONNECTIONS * len(settings.serve)
    needed = settings.max_connections + settings.max_handshakes + of_sidecars + _OWN_DESCRIPTORS
    # The soft limit, which `cli.process` has raised to the hard one.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and most < needed:
        log.warning(
            "the system allows %d open files (ulimit -Hn, LimitNOFILE), and all connections may need %d: raise it, or "
            "lower --max-connections and --max-handshakes",
            most,
            needed,
        )


async def _watch(parts: HubParts) -> None:
    while True:
        await asyncio.sleep(_WATCH_S)
        await parts.fences.look()
        if await parts.trust.authorities.read_again():
            parts.hub.end_unfit()
        parts.hub.end_expired()


def _lease(settings: HubSettings, directory: StateDirectory) -> "HubLease":
    assert settings.kubeconfig is not None
    try:  # here, because the library is large, and may be missing where nobody needs it
        import cloud.parts.kubernetes_part  # noqa: F401, PLC0415  # now, because a takeover has no time for it
        from cloud.leadership.hub_lease import HubLease  # noqa: PLC0415
    except ModuleNotFoundError as error:
        why = f"needs the package {error.name}: install csi-bridge[cloud]"
        raise SettingsError("--kubeconfig", settings.kubeconfig, why) from error
    return HubLease(settings, directory.place)


@asynccontextmanager
async def _leading(
    settings: HubSettings, lease: "HubLease", stopping: asyncio.Event, on_wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[_Term | None]:
    # The block gets None if `stopping` is set before this hub leads.
    from cloud.kube.client import connect  # noqa: PLC0415  # as in `_lease`
    from cloud.records.kubernetes import KubernetesRecords  # noqa: PLC0415

    assert settings.kubeconfig is not None
    async with connect(settings.kubeconfig) as reader:
        records = KubernetesRecords(reader, lease.namespace)
        records.open()
        try:
            async with lease.held(reader, stopping, on_wait=on_wait) as leadership:
                if leadership is None:
                    yield None
                    return
                async with connect(settings.kubeconfig, may_ask=leadership.holds) as kube:
                    try:
                        await records.lead(kube, lambda: lease.check(kube))
                        reach("lead.after-records")
                        yield _Term(records, leadership, kube)
                    finally:
                        await records.close()  # the last writes, before the Lease is released
        finally:
            await records.close()
