"""The hub's pages: its state as people and programs see it, over HTTP on its UNIX socket."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cloud.edge_nodes import Nodes
from cloud.fences import Fences
from cloud.hub_settings import HubSettings
from cloud.incarnation import Incarnation
from cloud.mount_guard import MountGuard
from cloud.node_calls import NodeCalls
from cloud.peer_ends import ending
from cloud.placement.placement import Placement
from cloud.placement.rules import VOLUME
from cloud.records.records import Records
from cloud.refusals import Refusals
from cloud.sync.fact_kinds import as_object
from cloud.sync_part import SyncPart
from cloud.trust_part import TrustPart
from cloud.uds_hub import Hub
from common.certificate_ends import CertificateEnds
from common.pages.hub import DenialStatus, HubStatus, NodeFact, NodeStatus, VolumeStatus
from common.pages.json_form import time_of
from common.pages.server import Pages
from common.settings import INSECURE, as_texts
from common.version import SOFTWARE

_PROBLEM_CHARS = 2_000  # a sentence about a problem is cut here


class HubPages:
    """Makes the pages of one hub. They hold no secret."""

    def __init__(
        self,
        hub: Hub,
        nodes: Nodes,
        placement: Placement,
        part: SyncPart,
        trust: TrustPart,
        *,
        records: Records,
        incarnation: Incarnation,
        calls: NodeCalls,
        refusals: Refusals,
        fences: Fences,
        guard: MountGuard,
        ends: CertificateEnds,
        settings: HubSettings,
    ) -> None:
        self._hub = hub
        self._nodes = nodes
        self._placement = placement
        self._part = part
        self._trust = trust
        self._records = records
        self._incarnation = incarnation
        self._calls = calls
        self._refusals = refusals
        self._fences, self._guard = fences, guard
        self._ends = ends
        self._settings = settings
        self._since = time_of(time.time())

    def pages(self) -> Pages:
        return Pages(
            {"/status": self.status},
            {
                "/nodes": self.nodes,
                "/volumes": self.volumes,
                "/facts": self.facts,
                "/denials": self.denials,
                "/tokens": self._trust.tokens.describe,
            },
            of_one={"/facts": self.facts},
        )

    def status(self) -> HubStatus:
        return HubStatus(
            software=SOFTWARE,
            known=self._nodes.known,
            connected=self._nodes.connected,
            max_nodes=self._nodes.max_nodes,
            has_source=self._part.source is not None,
            since=self._since,
            links=self._hub.links,
            epoch=self._incarnation.epoch,
            lost=[loss] if (loss := self._incarnation.loss) else [],
            trouble=self._records.trouble,
            problems=[problem[:_PROBLEM_CHARS] for problem in self._problems()],
            drivers=list(self._hub.proxy_drivers()),
            elections=self._placement.elections.describe(),
            refused=self._refusals.all(),
            ending=[*self._ends.problems(), *ending(self._hub.peer_terms(), time.time())],
            settings=as_texts(self._settings),
        )

    def _problems(self) -> Iterator[str]:
        if self._settings.listen is not None and self._settings.tls_cert is None:
            yield INSECURE
        yield from self._fences.problems()
        yield from self._guard.problems()
        yield from self._trust.credentials.problems()
        yield from self._part.problems()

    async def denials(self) -> Iterable[DenialStatus]:
        return [
            DenialStatus(kind=it.kind, subject=it.value, at=time_of(it.at), why=it.why)
            for it in self._trust.denials.all()
        ]

    async def nodes(self) -> Iterator[NodeStatus]:
        return (
            replace(
                node,
                fenced=self._fences.is_fenced(node.node),
                lacking=self._placement.lacking(node.node, node.drivers),
                serves=self._placement.elections.served_by(node.node),
                problems=[*node.problems, *self._placement.conflicts(node.node)],
                calls=self._calls.under_way(node.node),
                oldest_call=self._calls.oldest(node.node),
                last_error=self._calls.last_error(node.node),
            )
            for node in self._nodes.describe()
        )

    async def volumes(self) -> Iterable[VolumeStatus]:
        placed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for driver, thing, node in self._placement.claims.existing():
            if thing.kind == VOLUME:
                placed[driver, thing.id].append(node)
        return self._part.volumes(placed)

    async def facts(self, node: str = "") -> Iterator[NodeFact]:
        return (
            NodeFact(node=name, told_at=time_of(fact.told_ns / 1e9), object=as_object(ref, fact.body))
            for name, ref, fact in self._part.facts(node)
        )
