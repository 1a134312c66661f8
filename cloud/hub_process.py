"""The hub's process: puts a hub together, opens its listeners, runs it, and drains it."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from cloud.call_streams import CallStreams
from cloud.edge_nodes import Nodes
from cloud.hub_pages import HubPages
from cloud.hub_settings import HubSettings
from cloud.manifests_part import reading
from cloud.node_calls import NodeCalls
from cloud.orders import Orders
from cloud.placement.affinity import Affinity
from cloud.placement.claim_store import ClaimStore
from cloud.placement.placement import Placement
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.proxy_rights import ProxyRights
from cloud.refusals import Refusals
from cloud.report_streams import ReportStreams
from cloud.store import Store
from cloud.sync_part import SyncPart
from cloud.trust.audit_log import Audit, AuditLog, Event
from cloud.trust.policy_file import PolicyFile
from cloud.uds_hub import Hub
from common.errors import SettingsError
from common.httpd import HttpEndpoint
from common.listener import Listener, listen_tcp
from common.metrics import Metrics
from common.settings import as_texts
from common.tasks import supervised
from common.version import SOFTWARE, introduce

log = logging.getLogger("csi_bridge.hub")


async def run(settings: HubSettings, stopping: asyncio.Event) -> None:
    """Run a hub until `stopping` is set, then drain it.

    Raises:
        SettingsError: a socket, a file or the state directory cannot be used.
    """
    async with AsyncExitStack() as opened:  # which closes all that was opened, also if the next thing cannot be
        await _run(settings, stopping, opened)


async def _run(settings: HubSettings, stopping: asyncio.Event, opened: AsyncExitStack) -> None:
    metrics = Metrics()
    store = Store(settings.state_dir)
    opened.push_async_callback(store.close)
    audit = AuditLog(settings.state_dir, largest_bytes=settings.audit_size_bytes)
    opened.push_async_callback(asyncio.to_thread, audit.close)
    audit.add(Event.START, who=settings.name, software=SOFTWARE)
    policy = PolicyFile(settings.policy, settings.state_dir, audit=audit)
    part = await opened.enter_async_context(_part(settings))
    claims = SqliteClaims(settings.state_dir)
    made = assemble(
        store,
        claims,
        metrics,
        part,
        audit=audit,
        policy=policy,
        insecure=settings.tls_cert is None,
        max_nodes=settings.max_nodes,
        settings=as_texts(settings),
    )
    opened.push_async_callback(made.placement.close)  # and with it the claims
    if settings.http is not None:
        http = HttpEndpoint(settings.http, registry=metrics.registry, ready=lambda: (True, ""))
        opened.push_async_callback(asyncio.to_thread, http.close)
    listeners = []
    for listener in _listeners(settings, made):
        opened.push_async_callback(listener.close)
        listeners.append(listener)
    for loss in [*store.losses.standing, *claims.lost()]:
        log.warning("calls that name no node are refused, until csi-bridge trust: %s", loss)
    if settings.listen is None:
        log.warning("without --listen no edge agent can connect")
    if settings.policy is not None:
        tasks = await opened.enter_async_context(supervised())
        tasks.start(policy.follow(), name="policy")
    for listener in listeners:
        await listener.start()
        log.info("listening on %s", listener.address)
    await stopping.wait()
    log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
    for listener in listeners:
        listener.stop_accepting()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_timeout_s):
            await made.hub.drain()


@dataclass(frozen=True, slots=True)
class Assembled:
    """A hub without listeners, and the parts of it that others use.

    Attributes:
        hub: the handler of its links.
        nodes: the edge nodes that it knows.
        placement: chooses the node for each call.
        orders: the orders of operators.
        pages: its state, for people and programs.
    """

    hub: Hub
    nodes: Nodes
    placement: Placement
    orders: Orders
    pages: HubPages


def assemble(
    store: Store,
    claims: ClaimStore,
    metrics: Metrics,
    part: SyncPart,
    *,
    audit: Audit,
    policy: PolicyFile,
    insecure: bool,
    max_nodes: int,
    settings: Mapping[str, list[str]],
) -> Assembled:
    """Put a hub together.

    Args:
        store: its nodes on disk.
        claims: its names and ids on disk.
        metrics: counts its links and calls.
        part: its objects and facts.
        audit: takes its events.
        policy: says which nodes and proxy drivers may do what.
        insecure: it listens without TLS.
        max_nodes: it takes no more nodes than that.
        settings: its flags, for operators.
    """
    nodes = Nodes(store, max_nodes=max_nodes)
    affinity = Affinity(part.source) if part.source is not None else None
    placement = Placement(nodes, claims, losses=lambda: store.losses.standing, affinity=affinity)
    nodes.subscribe(placement.changed)
    counts, refusals = NodeCalls(knows=nodes.knows), Refusals()
    rights = ProxyRights(policy, metrics, audit)
    reports = ReportStreams(nodes, placement, store.losses, rights)
    policy.subscribe(reports.look_again)
    orders = Orders(nodes, placement, reports, part.sync, calls=counts, losses=store.losses)
    hub = Hub(
        nodes,
        CallStreams(placement, counts, metrics, rights),
        reports,
        orders,
        part.sync,
        refusals=refusals,
        audit=audit,
        metrics=metrics,
        insecure=insecure,
    )
    pages = HubPages(
        hub,
        nodes,
        placement,
        part,
        store,
        calls=counts,
        refusals=refusals,
        rights=rights,
        policy=policy,
        settings=settings,
    )
    return Assembled(hub, nodes, placement, orders, pages)


def _part(settings: HubSettings) -> AbstractAsyncContextManager[SyncPart]:
    """Follow the source of objects that the settings name."""
    if settings.manifests is not None:
        return reading(settings.manifests, settings.state_dir, fact_quota_bytes=settings.fact_quota_bytes)
    if settings.kubeconfig is None:
        return contextlib.nullcontext(SyncPart())
    try:  # here, because the library is large, and may be missing where nobody needs it
        from cloud.kubernetes_part import following  # noqa: PLC0415
    except ModuleNotFoundError as error:
        why = f"needs the package {error.name}: install csi-bridge[cloud]"
        raise SettingsError("--kubeconfig", settings.kubeconfig, why) from error
    labels, taints = settings.node_labels.to_map(), settings.register_with_taints.to_list()
    return following(
        settings.kubeconfig,
        settings.state_dir,
        labels=labels,
        taints=taints,
        fact_quota_bytes=settings.fact_quota_bytes,
    )


def _listeners(settings: HubSettings, made: Assembled) -> Iterator[Listener]:
    limits, hello = settings.limits(), introduce("hub", settings.name, instance="hub")
    if settings.listen is not None:
        tls = settings.tls(server=True)
        yield Listener(
            listen_tcp(settings.listen),
            hello,
            made.hub,
            limits=limits,
            tls=tls.context if tls is not None else None,
            max_connections=settings.max_connections,
            max_handshakes=settings.max_handshakes,
            on_failed=made.hub.failed,
        )
    # Last, because it makes a file, and an earlier failure must leave none.
    sock = settings.listen_unix("uds", mode=0o600 if settings.uds_group is None else 0o660, gid=settings.uds_gid())
    allowed = frozenset(settings.uds_allow_uid) if settings.uds_group is not None else None
    yield Listener(
        sock,
        hello,
        made.hub,
        limits=limits,
        allow_uids=allowed,
        max_handshakes=settings.max_handshakes,
        pages=made.pages.pages(),
        on_failed=made.hub.failed,
    )
