"""The hub's pages: its state as people and programs see it, over HTTP on its UNIX socket."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cloud.claims.rules import VOLUME
from cloud.hub_parts import HubParts
from cloud.hub_settings import HubSettings
from cloud.peer_ends import ending
from cloud.sync.fact_kinds import as_object
from common.net.certificate_ends import CertificateEnds
from common.net.settings import INSECURE, as_texts
from common.observe.version import SOFTWARE
from common.pages.hub import DenialStatus, HubStatus, NodeFact, NodeStatus, VolumeStatus
from common.pages.json_form import time_of
from common.pages.server import Pages

_PROBLEM_CHARS = 2_000  # a sentence about a problem is cut here


class HubPages:
    """Makes the pages of one hub. They hold no secret."""

    def __init__(self, parts: HubParts, settings: HubSettings, ends: CertificateEnds) -> None:
        self._parts = parts
        self._settings = settings
        self._ends = ends
        self._since = time_of(time.time())

    def pages(self) -> Pages:
        return Pages(
            {"/status": self.status},
            {
                "/nodes": self.nodes,
                "/volumes": self.volumes,
                "/facts": self.facts,
                "/denials": self.denials,
                "/tokens": self._parts.trust.tokens.describe,
            },
            of_one={"/facts": self.facts},
        )

    def status(self) -> HubStatus:
        return HubStatus(
            software=SOFTWARE,
            known=self._parts.nodes.known_count,
            connected=len(self._parts.nodes.connected),
            max_nodes=self._parts.nodes.max_nodes,
            has_source=self._parts.sync.source is not None,
            since=self._since,
            links=self._parts.hub.link_count,
            epoch=self._parts.incarnation.epoch,
            lost=[loss] if (loss := self._parts.incarnation.loss) else [],
            trouble=self._parts.records.trouble,
            problems=[problem[:_PROBLEM_CHARS] for problem in self._problems()],
            drivers=list(self._parts.hub.proxy_drivers()),
            elections=self._parts.placement.elections.describe(),
            refused=self._parts.hub.refusals.all(),
            ending=[*self._ends.problems(), *ending(self._parts.hub.peer_terms(), time.time())],
            settings=as_texts(self._settings),
        )

    def _problems(self) -> Iterator[str]:
        if self._settings.listen is not None and self._settings.tls_cert is None:
            yield INSECURE
        yield from self._parts.fences.problems()
        yield from self._parts.guard.problems()
        yield from self._parts.trust.generations.problems()
        yield from self._parts.sync.problems()

    async def denials(self) -> Iterable[DenialStatus]:
        return [
            DenialStatus(kind=it.kind, subject=it.value, at=time_of(it.at), why=it.why)
            for it in self._parts.trust.denials.all()
        ]

    async def nodes(self) -> Iterator[NodeStatus]:
        return (
            replace(
                node,
                fenced=self._parts.fences.is_fenced(node.node),
                lacking=self._parts.placement.lacking(node.node, node.drivers),
                serves=self._parts.placement.elections.served_by(node.node),
                problems=[*node.problems, *self._parts.placement.conflicts(node.node)],
                calls=self._parts.calls.under_way(node.node),
                oldest_call=self._parts.calls.oldest(node.node),
                last_error=self._parts.calls.last_error(node.node),
            )
            for node in self._parts.nodes.describe()
        )

    async def volumes(self) -> Iterable[VolumeStatus]:
        placed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for driver, thing, node in self._parts.placement.claims.existing():
            if thing.kind == VOLUME:
                placed[driver, thing.id].append(node)
        return self._parts.sync.volumes(placed)

    async def facts(self, node: str = "") -> Iterator[NodeFact]:
        facts = self._parts.sync.facts
        return (
            NodeFact(node=name, told_at=time_of(fact.told_ns / 1e9), object=as_object(ref, fact.body))
            for name, ref, fact in (facts.stored(node) if facts is not None else ())
        )
