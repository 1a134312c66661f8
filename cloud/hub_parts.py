"""The parts of a hub, put together: all of it but its listeners and its files (`hub_process`)."""

from functools import partial

from cloud.abandon.abandonment import Abandonment
from cloud.absences import Absences
from cloud.call import Calls
from cloud.edge_nodes import Nodes
from cloud.fences import Fences
from cloud.hub_settings import HubSettings
from cloud.incarnation import Incarnation
from cloud.leaks.leak_audit import LeakAudit
from cloud.mount_guard import MountGuard
from cloud.node_calls import NodeCalls
from cloud.orders import Orders
from cloud.peer_ends import show_first_ends
from cloud.placement.affinity import Affinity
from cloud.placement.claims import Claims
from cloud.placement.offers import Offers
from cloud.placement.placement import Placement
from cloud.records.records import Records
from cloud.report_streams import ReportStreams
from cloud.sync_part import SyncPart
from cloud.trust.credentials import Credentials
from cloud.uds_hub import Hub
from common.metrics import Metrics
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
        self.records, self.incarnation, self.nodes, self.sync = records, incarnation, nodes, sync
        self.trust = trust = Credentials(
            records, metrics, tls_ca=settings.tls_ca, require_rights=settings.require_rights
        )
        self.placement = Placement(
            nodes,
            Claims(records),
            offers=Offers(records, metrics),
            metrics=metrics,
            loss=partial(getattr, incarnation, "loss"),
            affinity=Affinity(sync.source) if sync.source is not None else None,
            most_open=settings.max_open_creates,
            rules=settings.election_rules,
            labels=sync.node_labels,
        )
        self.reports = ReportStreams(nodes, self.placement, metrics)
        nodes.subscribe(lambda driver, _node: self.placement.changed(driver))
        self.placement.elections.changed = self.reports.changed
        self.placement.elections.announce = sync.elected

        absences = Absences(nodes, sync.mounts)
        self.fences = Fences(
            records,
            absences,
            sync.mounts,
            joined=lambda node: trust.generations.joined(node) or nodes.connected_from(node),
        )
        if sync.sole_use is not None:
            sync.sole_use.begin(absences.of, self.fences.is_given_up)
        self.guard = MountGuard(nodes, sync.mounts, absences, self.fences)
        self.calls = NodeCalls(knows=nodes.knows)
        metrics.oldest_calls = self.calls.slow
        self.orders = Orders(
            nodes, self.placement, self.reports, sync.sync, trust, calls=self.calls, incarnation=incarnation
        )
        leaks = LeakAudit(nodes, self.placement, sync, grace_s=settings.audit_grace_s)
        abandonment = Abandonment(nodes, self.placement, trust.denials, sync)
        self.orders.add(OwnStorage, abandonment.own_storage)
        self.orders.add(Abandon, abandonment.abandon)
        self.orders.add(Audit, leaks.order)
        self.orders.add(Fence, self.fences.fence)
        self.orders.add(Unfence, self.fences.unfence)

        self.hub = Hub(
            nodes,
            Calls(nodes, self.placement, self.calls, metrics, self.guard.check),
            self.reports,
            self.orders,
            sync.sync,
            still_leads=records.still_leads,
            incarnation=incarnation,
            credentials=trust,
            metrics=metrics,
            insecure=settings.tls_cert is None,
        )
        trust.denials.on_change = self.hub.end_unfit
        show_first_ends(metrics, self.hub.peer_terms)
