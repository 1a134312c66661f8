"""The hub's process: puts a hub together, opens its listeners, runs it, and drains it."""

import asyncio
import contextlib
import logging
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial

from cloud import first_start
from cloud.abandon.abandonment import Abandonment
from cloud.abandon.node_ends import NodeEnds
from cloud.absences import Absences
from cloud.admission import Role
from cloud.csi_proxy_driver import Serving
from cloud.driver_settings import MAX_CONNECTIONS
from cloud.edge_nodes import Nodes
from cloud.election import ElectionRules
from cloud.fences import Fences
from cloud.hub_pages import HubPages
from cloud.hub_settings import HubSettings
from cloud.join_part import JoinPart
from cloud.lapses import Lapses
from cloud.leaks.leak_audit import LeakAudit
from cloud.manifests_part import reading
from cloud.mount_guard import MountGuard
from cloud.node_calls import NodeCalls
from cloud.orders import Orders
from cloud.passage import Passages
from cloud.peer_ends import show_first_ends
from cloud.placement.affinity import Affinity
from cloud.placement.capacity import GRACE_S
from cloud.placement.claim_store import ClaimStore
from cloud.placement.decisions import MOST_OPEN
from cloud.placement.node_lists import LIST_AGE_S
from cloud.placement.offers import Offers
from cloud.placement.placement import Placement
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.proxy_rights import ProxyRights
from cloud.refusals import Refusals
from cloud.report_judge import ReportJudge
from cloud.report_streams import ReportStreams
from cloud.role_port import RolePort
from cloud.served_drivers import serving
from cloud.store import Store
from cloud.succession import Succession
from cloud.sync_part import SyncPart
from cloud.trust.audit_log import Audit, AuditLog, Event
from cloud.trust.authorities import Authorities
from cloud.trust.credentials import Credentials
from cloud.trust.denials import Denials
from cloud.trust.generations import Generations, OnCopy, drivers_of
from cloud.trust.policy_file import PolicyFile
from cloud.trust.revocations import Revocations
from cloud.trust.tokens import Tokens
from cloud.trust.trust_store import TrustStore
from cloud.uds_hub import Hub
from cloud.unique_segments import NO_KEYS, UniqueSegments
from common.certificate_ends import CertificateEnds
from common.errors import SettingsError
from common.httpd import HttpEndpoint
from common.link import LinkHandler
from common.listener import Listener, listen_tcp
from common.messages import Hello, Kind
from common.metrics import Metrics
from common.operator_orders import Abandon as AbandonOrder
from common.operator_orders import Audit as LeakOrder
from common.operator_orders import Fence, Unfence
from common.operator_orders import Replace as ReplaceOrder
from common.parsers import HostPort
from common.settings import as_texts
from common.tasks import Tasks, supervised
from common.tls import TlsIdentity
from common.version import SOFTWARE, introduce

log = logging.getLogger("csi_bridge.hub")

_OWN_DESCRIPTORS = 256
"""Databases, logs, the connections to Kubernetes, and those of the join listener and of `--http`."""

_WATCH_S = 0.5
"""A link ends within a second of its certificate. For 10,000 links, a look takes a millisecond."""


async def run(settings: HubSettings, stopping: asyncio.Event) -> None:
    """Run a hub until `stopping` is set, then drain it.

    Raises:
        SettingsError: a socket, a file or the state directory cannot be used.
    """
    async with AsyncExitStack() as opened:  # which closes all that was opened, also if the next thing cannot be
        await _run(settings, stopping, opened)


async def _run(settings: HubSettings, stopping: asyncio.Event, opened: AsyncExitStack) -> None:
    tls = settings.tls(server=True)  # first, because it says best what is wrong with these files
    metrics = Metrics()
    store = Store(settings.state_dir)
    opened.push_async_callback(store.close)
    audit = AuditLog(settings.state_dir, largest_bytes=settings.audit_size_bytes)
    opened.push_async_callback(asyncio.to_thread, audit.close)
    audit.add(Event.START, who=settings.name, software=SOFTWARE)
    trust = TrustStore(settings.state_dir)
    opened.push_async_callback(trust.close)
    policy = PolicyFile(settings.policy, settings.state_dir, audit=audit, joined_for=partial(drivers_of, trust))
    ends = CertificateEnds(settings.tls_cert, settings.tls_ca, metrics)
    part = await opened.enter_async_context(
        _part(settings, segments := UniqueSegments(store, settings.unique_topology))
    )
    claims = SqliteClaims(settings.state_dir)
    revocations, authorities = Revocations(settings.tls_crl, settings.tls_ca), Authorities(settings.tls_ca)
    made = assemble(
        store,
        claims,
        metrics,
        part,
        trust=trust,
        revocations=revocations,
        authorities=authorities,
        audit=audit,
        on_copy=OnCopy(settings.on_copy),
        policy=policy,
        ends=ends,
        insecure=settings.tls_cert is None,
        max_nodes=settings.max_nodes,
        max_open_creates=settings.max_open_creates,
        capacity_grace_s=settings.capacity_grace_s,
        list_age_s=settings.list_age_s,
        election_rules=settings.election_rules,
        segments=segments,
        audit_grace_s=settings.audit_grace_s,
        settings=as_texts(settings),
    )
    opened.push_async_callback(made.placement.close)  # and with it the claims
    cluster = part.source if part.release is not None else None  # no provisioner writes into a directory of manifests
    first_start.begin(store, claims, cluster, settled=made.reports.look_again)
    if settings.http is not None:
        http = HttpEndpoint(settings.http, metrics=metrics, ready=lambda: (True, ""))
        opened.push_async_callback(asyncio.to_thread, http.close)
    join = _join_part(settings, made, trust, audit) if settings.tls_cert is not None else None
    hello = introduce("hub", settings.name, instance="hub")
    listeners = []
    for listener in _listeners(settings, tls, hello, made, join):
        opened.push_async_callback(listener.close)
        listeners.append(listener)
    served = await opened.enter_async_context(serving(settings, made.hub, hello))
    for loss in [*store.losses.recorded, *claims.losses.recorded]:
        log.warning("calls that name no node are refused, until csi-bridge trust: %s", loss)
    _warn_of_few_descriptors(settings)
    if settings.listen is None:
        log.warning("without --listen no edge agent can connect")
    tasks = await opened.enter_async_context(supervised())
    tasks.start(ends.follow(), name="certificate ends")
    if settings.policy is not None:
        tasks.start(policy.follow(), name="policy")
    for listener in listeners:
        await listener.start()
        log.info("listening on %s", listener.address)
    tasks = await opened.enter_async_context(supervised())
    for each in served:
        each.start(tasks)
    _start_looks(made, settings, tasks)
    tasks.start(_watch(made, revocations, authorities, audit), name="watch of certificates and fences")
    await stopping.wait()
    log.info("stopping: calls under way have %g s to finish", settings.drain_timeout_s)
    made.placement.elections.stop()
    for listener in listeners:
        listener.stop_accepting()
    if join is not None:
        join.drain()
    await _drain(made, served, settings.drain_timeout_s)


async def _drain(made: "Assembled", served: Sequence[Serving], limit_s: float) -> None:
    """Let calls under way finish, for so long."""
    for each in served:
        each.uplink.stop_dialling()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(made.hub.drain(), *(each.drain() for each in served))


def _start_looks(made: "Assembled", settings: HubSettings, tasks: Tasks) -> None:
    """Start the tasks that look at the nodes regularly."""
    tasks.start(made.placement.elections.follow(), name="elections")
    if settings.audit_every_s:
        tasks.start(made.leaks.follow(settings.audit_every_s), name="leak audit")


def _warn_of_few_descriptors(settings: HubSettings) -> None:
    """Warn if connections can take the last descriptors, which the hub needs for its own files."""
    of_sidecars = MAX_CONNECTIONS * len(settings.serve)
    needed = settings.max_connections + settings.max_handshakes + of_sidecars + _OWN_DESCRIPTORS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and most < needed:
        log.warning(
            "the system allows %d open files (ulimit -n, LimitNOFILE), and all connections may need %d: raise it, or "
            "lower --max-connections and --max-handshakes",
            most,
            needed,
        )


@dataclass(frozen=True, slots=True)
class Assembled:
    """A hub without listeners, and the parts of it that others use.

    Attributes:
        hub: the handler of its links.
        nodes: the edge nodes that it knows.
        placement: chooses the node for each call.
        orders: the orders of operators.
        tokens: the invitations to join.
        generations: the certificates of nodes that have joined.
        credentials: judges the certificates of peers.
        pages: its state, for people and programs.
        leaks: compares the nodes' volumes with all that refers to them.
        reports: the drivers' reports on their way to proxy drivers.
        fences: the nodes that an operator takes for dead.
    """

    hub: Hub
    nodes: Nodes
    placement: Placement
    orders: Orders
    tokens: Tokens
    generations: Generations
    credentials: Credentials
    pages: HubPages
    leaks: LeakAudit
    reports: ReportStreams
    fences: Fences


def assemble(
    store: Store,
    claims: ClaimStore,
    metrics: Metrics,
    part: SyncPart,
    *,
    trust: TrustStore,
    revocations: Revocations | None = None,
    authorities: Authorities | None = None,
    audit: Audit,
    on_copy: OnCopy = OnCopy.LOCK,
    policy: PolicyFile,
    ends: CertificateEnds,
    insecure: bool,
    max_nodes: int,
    max_open_creates: int = MOST_OPEN,
    capacity_grace_s: float = GRACE_S,
    list_age_s: float = LIST_AGE_S,
    election_rules: Callable[[str], ElectionRules] = lambda _driver: ElectionRules(),
    segments: UniqueSegments | None = None,
    audit_grace_s: float = 600.0,
    settings: Mapping[str, list[str]],
) -> Assembled:
    """Put a hub together.

    Args:
        store: its nodes on disk.
        claims: its names and ids on disk.
        metrics: counts its links and calls.
        part: its objects and facts.
        trust: its tokens, denials and certificates of nodes, on disk.
        revocations: the certificates that their CAs have revoked; None: none.
        authorities: the CAs of `--tls-ca`; None: none.
        audit: takes its events.
        on_copy: the consequence of a copy of a node's keys.
        policy: says which nodes and proxy drivers may do what.
        ends: its own certificate and CA.
        insecure: it listens without TLS.
        max_nodes: it takes no more nodes than that.
        max_open_creates: a driver's nodes hold no more names for creates that run or are in doubt.
        capacity_grace_s: how long the last capacity of a node that is away counts.
        list_age_s: how long the last list of a node that is away counts.
        election_rules: the rules for the elections of a driver.
        segments: the topology segments that belong to one node each; None: those of the store, without further keys.
        audit_grace_s: what may be younger is no leak.
        settings: its flags, for operators.
    """
    denials = Denials(trust, audit=audit)
    generations = Generations(trust, on_copy=on_copy, audit=audit)
    credentials = Credentials(
        denials, revocations or Revocations(None, None), generations, authorities or Authorities(None)
    )
    judge = ReportJudge(segments or UniqueSegments(store, NO_KEYS), policy, audit=audit, metrics=metrics)
    nodes = Nodes(store, judge, max_nodes=max_nodes, follows=credentials.follows)
    affinity = Affinity(part.source) if part.source is not None else None
    placement = Placement(
        nodes,
        claims,
        offers=Offers(store, metrics),
        metrics=metrics,
        losses=lambda: store.losses.standing,
        owners=judge.segments.owners,
        value_of=judge.segments.value_of,
        affinity=affinity,
        most_open=max_open_creates,
        capacity_grace_s=capacity_grace_s,
        list_age_s=list_age_s,
        rules=election_rules,
        labels=part.node_labels,
    )
    nodes.subscribe(placement.changed)
    counts, refusals = NodeCalls(knows=nodes.knows), Refusals()
    rights = ProxyRights(policy, metrics, audit)
    reports = ReportStreams(nodes, placement, rights, metrics)
    placement.elections.subscribe(reports.changed)
    placement.elections.announce(part.elected)
    policy.subscribe(nodes.judge_again)
    policy.subscribe(reports.look_again)
    orders = Orders(
        nodes,
        placement,
        reports,
        part.sync,
        calls=counts,
        losses=store.losses,
        denials=denials,
        generations=generations,
        audit=audit,
    )
    ends_of_nodes = NodeEnds(
        nodes=nodes,
        placement=placement,
        denials=denials,
        segments=judge.segments,
        forget=orders.forget_known,
        audit=audit,
    )
    orders.add(AbandonOrder, Abandonment(ends_of_nodes, part.release, part.sync.forget).order)
    orders.add(ReplaceOrder, Succession(ends_of_nodes, part).order)
    leaks = LeakAudit(nodes, placement, part, metrics, grace_s=audit_grace_s)
    orders.add(LeakOrder, leaks.order)
    absences = Absences(nodes, part.mounts)
    fences = Fences(store.state_dir, absences, part.mounts, audit=audit)
    orders.add(Fence, fences.fence)
    orders.add(Unfence, fences.unfence)
    lapses = Lapses(nodes, part.mounts, audit=audit)
    guard = MountGuard(nodes, part.mounts, absences, fences, lapses)
    tokens = Tokens(trust)
    generations.on_drivers = policy.judge_again
    hub = Hub(
        nodes,
        Passages(placement, counts, metrics, rights, guard),
        reports,
        orders,
        part.sync,
        credentials=credentials,
        refusals=refusals,
        audit=audit,
        metrics=metrics,
        insecure=insecure,
    )
    denials.on_change = hub.end_unfit
    generations.on_locked = hub.end_node
    pages = HubPages(
        hub,
        nodes,
        placement,
        part,
        store,
        calls=counts,
        refusals=refusals,
        denials=denials,
        fences=fences,
        credentials=credentials,
        rights=rights,
        policy=policy,
        audit=audit,
        ends=ends,
        trust=trust,
        tokens=tokens,
        generations=generations,
        settings=settings,
    )
    show_first_ends(metrics, hub.peer_terms)
    return Assembled(hub, nodes, placement, orders, tokens, generations, credentials, pages, leaks, reports, fences)


async def _watch(made: Assembled, revocations: Revocations, authorities: Authorities, audit: Audit) -> None:
    """End the links of certificates that do not count any more, and notice fenced nodes that are back, until cancelled.

    A certificate may end, be revoked, or lose its CA.
    """
    hub = made.hub
    while True:
        await asyncio.sleep(_WATCH_S)
        await made.fences.look()
        if revocations.has_changed():
            more = await asyncio.to_thread(revocations.reload)
            if more is not None:
                audit.add(Event.CERTIFICATES, who="hub", read="the revocation list", newly_revoked=more)
                hub.end_unfit()
        if authorities.has_changed() and (gone := await asyncio.to_thread(authorities.reload)):
            audit.add(Event.CERTIFICATES, who="hub", read="--tls-ca", taken_out=gone)
            hub.end_unfit()
        hub.end_expired()


def _join_part(settings: HubSettings, made: Assembled, trust: TrustStore, audit: Audit) -> JoinPart:
    """Let nodes join and renew."""
    knows = made.nodes.knows
    join = JoinPart(
        settings, trust, made.tokens, made.generations, audit=audit, denied=made.credentials.denied, knows=knows
    )
    join.add_orders(made.orders)
    made.hub.add(Role.EDGE, Kind.RENEW, join.enrolment.serve_on_link)
    return join


def _part(settings: HubSettings, segments: UniqueSegments) -> AbstractAsyncContextManager[SyncPart]:
    """Follow the source of objects that the settings name."""
    if settings.manifests is not None:
        return reading(
            settings.manifests,
            settings.state_dir,
            seal_key=settings.seal_key,
            fact_quota_bytes=settings.fact_quota_bytes,
        )
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
        value_of=segments.value_of,
    )


def _listeners(
    settings: HubSettings, tls: TlsIdentity | None, hello: Hello, made: Assembled, join: JoinPart | None
) -> Iterator[Listener]:
    limits = settings.limits()
    for flag, address, handler in _ports(settings, made.hub):
        yield Listener(
            listen_tcp(address, flag=flag),
            hello,
            handler,
            limits=limits,
            tls=tls.context if tls is not None else None,
            max_connections=settings.max_connections,
            max_handshakes=settings.max_handshakes,
            on_failed=made.hub.failed,
        )
    if join is not None and (listener := join.listener()) is not None:
        yield listener
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


def _ports(settings: HubSettings, hub: Hub) -> Iterator[tuple[str, HostPort, LinkHandler]]:
    """Yield the flag and the address of each port for peers from the network, and the handler of its links."""
    if settings.listen is not None:
        yield "--listen", settings.listen, hub if settings.driver_listen is None else RolePort(hub, Role.EDGE)
    if settings.driver_listen is not None:
        yield "--driver-listen", settings.driver_listen, RolePort(hub, Role.DRIVER)
