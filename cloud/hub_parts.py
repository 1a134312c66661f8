"""The parts of a hub, put together: all of it but its listeners and its files (`hub_process`)."""

from functools import partial

from cloud.calls.call import Calls
from cloud.calls.node_calls import NodeCalls
from cloud.calls.report_streams import ReportStreams
from cloud.calls.stream_turns import in_turns
from cloud.claims.claims import Claims
from cloud.detach.absences import Absences
from cloud.detach.fences import Fences
from cloud.detach.mount_guard import MountGuard
from cloud.hub_settings import HubSettings
from cloud.leadership.incarnation import Incarnation
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.fleet import Fleets
from cloud.nodes.offers import Offers
from cloud.operators.abandonment import Abandonment
from cloud.operators.leak_audit import LeakAudit
from cloud.operators.orders import Orders
from cloud.parts.sync_part import SyncPart
from cloud.peer_ends import show_first_ends
from cloud.placement.placement import Placement
from cloud.records.records import Records
from cloud.trust.admission import Role
from cloud.trust.credentials import Credentials
from cloud.uds_hub import Hub
from common.messages import Kind
from common.observe.metrics import Metrics
from common.operator_orders import Abandon, Audit, Fence, OwnStorage, Unfence


class HubParts:
    """The parts of one hub."""

    def __init__(
        self,
        settings: HubSettings,
        records: Records,
        incarnation: Incarnation,
        nodes: Nodes,
        sync: SyncPart,
        *,
        metrics: Metrics,
    ) -> None:
        """Read the records. Raises SettingsError, also if a file of the settings cannot be used."""
        self.records = records
        self.incarnation = incarnation
        self.nodes = nodes
        self.sync = sync
        self.trust = trust = Credentials(
            records, metrics, tls_ca=settings.tls_ca, require_rights=settings.require_rights
        )
        self.placement = Placement(
            Fleets(nodes, Offers(records, metrics)),
            Claims(records),
            sync.source,
            settings,
            metrics,
            loss=partial(getattr, incarnation, "loss"),
        )
        reports = ReportStreams(nodes, self.placement, metrics)
        nodes.subscribe(lambda driver, _node: self.placement.changed(driver))
        self.placement.elections.changed = reports.changed
        self.placement.elections.announce = sync.elected
        incarnation.settled = reports.look_again

        absences = Absences(nodes, sync.mounts)
        self.fences = Fences(
            records,
            absences,
            sync.mounts,
            joined=lambda node: trust.generations.joined(node) or nodes.of(node).connected_from,
        )
        if sync.sole_use is not None:
            sync.sole_use.begin(absences.of, self.fences.is_given_up)
        self.guard = MountGuard(nodes, sync.mounts, absences, self.fences)
        self.calls = NodeCalls(nodes)
        metrics.oldest_calls = self.calls.slow
        self.orders = Orders(nodes, self.placement, sync.sync, trust, calls=self.calls, incarnation=incarnation)
        leaks = LeakAudit(nodes, self.placement, sync, grace_s=settings.audit_grace_s)
        abandonment = Abandonment(nodes, self.placement, trust.denials, sync)
        self.orders.add(OwnStorage, abandonment.own_storage)
        self.orders.add(Abandon, abandonment.abandon)
        self.orders.add(Audit, leaks.order)
        self.orders.add(Fence, self.fences.fence)
        self.orders.add(Unfence, self.fences.unfence)

        calls = Calls(nodes, self.placement, self.calls, metrics, self.guard)
        self.hub = hub = Hub(calls, records, incarnation, trust, metrics, insecure=settings.tls_cert is None)
        streams = sync.sync
        hub.add(Role.DRIVER, Kind.WATCH, reports.serve_watch)
        hub.add(Role.OPERATOR, Kind.ORDER, self.orders.serve_order)
        hub.add(Role.EDGE, Kind.REPORT, in_turns(reports.serve_report))
        hub.add(Role.EDGE, Kind.SYNC, lambda stream: streams.serve_sync(stream, stream.link.peer.name))
        hub.add(Role.EDGE, Kind.FACTS, in_turns(lambda stream: streams.serve_facts(stream, stream.link.peer.name)))
        hub.add(Role.EDGE, Kind.OBSERVE, lambda stream: streams.serve_observe(stream, stream.link.peer.name))
        trust.denials.on_change = hub.end_unfit
        show_first_ends(metrics, hub.peer_terms)
