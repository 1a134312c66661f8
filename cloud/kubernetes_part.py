"""The Kubernetes part of the hub: what its nodes are told comes from an API server, and what they tell goes there."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from cloud.kube import Body, connect
from cloud.sources.cluster.cluster import Cluster
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.streams import SyncServer
from cloud.upsync import farewell, handover
from cloud.upsync.claim_writer import ClaimWriter
from cloud.upsync.csinode_writer import CSINodeWriter
from cloud.upsync.event_writer import EventWriter
from cloud.upsync.heartbeats import Heartbeats
from cloud.upsync.in_use import InUse
from cloud.upsync.node_writer import NodeWriter
from cloud.upsync.pod_writer import PodWriter
from cloud.upsync.written_facts import Writer, WrittenFacts
from cloud.volume_report import Entry, Placed, report
from common.objects import Ref
from common.tasks import supervised


class Part(Protocol):
    """What may have problems."""

    def problems(self) -> list[str]:
        """In sentences."""


class KubernetesPart:
    """Runs beside the hub. Made by `following`.

    Attributes:
        source: the cluster's objects.
        sync: what agents are told and tell.
        volumes: gives every volume that is known of (`cloud.volume_report`).
    """

    def __init__(
        self, source: Source, sync: SyncServer, parts: Iterable[Part], volumes: Callable[[Placed], Iterable[Entry]]
    ) -> None:
        self.source = source
        self.sync = sync
        self.volumes = volumes
        self._parts = tuple(parts)

    def problems(self) -> list[str]:
        """What is wrong, in sentences."""
        return [text for part in self._parts for text in part.problems()]


@asynccontextmanager
async def following(
    kubeconfig: str, state_dir: Path, *, labels: Mapping[str, str] | None = None, taints: Sequence[Body] = ()
) -> AsyncIterator[KubernetesPart]:
    """Follow an API server, and write to it, until the block ends. The Nodes that it makes get `labels` and `taints`.

    Raises:
        SettingsError: the kubeconfig or the state directory cannot be used.
    """
    async with (
        FactTable(state_dir) as table,
        connect(kubeconfig) as kube,
        supervised() as tasks,  # stopped first: they ask the others
    ):
        hearts, in_use = Heartbeats(kube), InUse()
        cluster = Cluster(kube, unready=hearts.doubt)
        closures = Closures(cluster)
        writers: dict[str, Writer] = {
            "Node": NodeWriter(kube, in_use, labels=labels, taints=taints),
            "CSINode": CSINodeWriter(kube),
            "PersistentVolumeClaim": ClaimWriter(kube, closures),
            "Pod": PodWriter(kube),
            "Event": EventWriter(kube),
            handover.KIND: handover.HandOver(kube),
            farewell.KIND: farewell.Farewell(kube),
        }
        facts = WrittenFacts(FactSink(closures, table), table, writers, hearts, in_use)

        def changed(refs: frozenset[Ref]) -> None:
            for ref in refs:
                facts.changed(ref, cluster.body(ref))

        cluster.subscribe(changed)
        tasks.start(cluster.run(), name="cluster")
        facts.begin()
        sync = SyncServer(closures, facts)
        parts: tuple[Part, ...] = (cluster, table, facts, hearts, sync)
        try:
            yield KubernetesPart(cluster, sync, parts, lambda placed: report(cluster, table, placed))
        finally:
            await hearts.close()
            await facts.close()
