"""The sync part of a hub with Kubernetes: objects come from an API server, and the nodes' facts are written to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from cloud.detach.mounts import Mounts
from cloud.detach.policy_problems import PolicyProblems
from cloud.detach.sole_use import SoleUse
from cloud.hub_settings import HubSettings
from cloud.kube.client import Kube
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.node_rights import NodeRights
from cloud.parts.cluster_references import read_cluster
from cloud.parts.sync_part import SyncPart
from cloud.records.records import Records
from cloud.sources.cluster.cluster import Cluster
from cloud.sync.closures import Closures
from cloud.sync.fact_table import FactTable
from cloud.sync.in_use import InUse
from cloud.sync.streams import SyncServer
from cloud.upsync.claim_writer import ClaimWriter
from cloud.upsync.csinode_writer import CSINodeWriter
from cloud.upsync.election_events import ElectionEvents
from cloud.upsync.event_writer import EventWriter
from cloud.upsync.handover import GONE, KUBELET, EdgeCores, HandOver, Removal
from cloud.upsync.heartbeats import Heartbeats
from cloud.upsync.node_problems import NodeProblems
from cloud.upsync.node_writer import NodeWriter
from cloud.upsync.pod_writer import PodWriter
from cloud.upsync.written_facts import WrittenFacts
from common.objects.objects import Ref
from common.observe.tasks import supervised

if TYPE_CHECKING:
    from cloud.upsync.writer import FactWriter


@asynccontextmanager
async def following(settings: HubSettings, kube: Kube, records: Records, nodes: Nodes) -> AsyncIterator[SyncPart]:
    """Follow an API server, and write to it, until the block ends. Raises SettingsError: the records are damaged."""
    async with supervised() as tasks:
        rights = NodeRights(nodes)
        table = FactTable(records, rights, guarded_only=True, quota_bytes=settings.fact_quota_bytes)
        hearts = Heartbeats(kube)
        in_use = InUse()
        cluster = Cluster(kube, unready=hearts.doubt)
        mounts = Mounts(cluster, table)
        events = ElectionEvents(kube, cluster)
        sole_use = SoleUse(table, mounts)
        closures = Closures(cluster, rights)
        csi_nodes = CSINodeWriter(kube)
        writers: dict[str, FactWriter] = {
            "Node": NodeWriter(kube, in_use, labels=settings.node_labels, taints=settings.register_with_taints),
            "CSINode": csi_nodes,
            "PersistentVolumeClaim": ClaimWriter(kube, closures),
            "Pod": PodWriter(kube),
            "Event": EventWriter(kube),
            KUBELET: EdgeCores(kube, nodes, csi_nodes) if settings.edgecore_nodes else HandOver(kube),
            GONE: Removal(kube),
        }
        problems = NodeProblems(kube, cluster, nodes, closures)
        facts = WrittenFacts(closures, table, sole_use.claim, writers, hearts=hearts, in_use=in_use)

        def changed(refs: frozenset[Ref]) -> None:
            for ref in refs:
                facts.changed(ref, cluster.body(ref))

        cluster.subscribe(changed)
        rights.changed = facts.judge_again
        tasks.start(cluster.run(), name="cluster")
        sync = SyncServer(closures, facts)
        policies = PolicyProblems(cluster, mounts, table)
        try:
            yield SyncPart(
                source=cluster,
                sync=sync,
                parts=(cluster, table, facts, hearts, closures, sync, policies, events, problems),
                facts=table,
                mounts=mounts,
                references=partial(read_cluster, kube, cluster),
                elected=events.add,
                sole_use=sole_use,
            )
        finally:
            await problems.close()
            await events.close()
            await hearts.close()
            await facts.close()
