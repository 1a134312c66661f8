"""The sync part of a hub: the source of its objects, the sync streams, and the reports about both.

`manifests_part` makes one from a directory of YAML, `kubernetes_part` from a Kubernetes API server.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cloud.claims.election import Elected
from cloud.detach.mounts import Mounts, no_mounts
from cloud.detach.sole_use import SoleUse
from cloud.parts.references import References
from cloud.parts.volume_report import Placed, report, report_placed
from cloud.sources.source import Source
from cloud.sync.fact_table import FactTable
from cloud.sync.streams import SyncServer
from common.pages.hub import VolumeStatus
from common.session.link import Stream


class Part(Protocol):
    """A part of a sync part that may have problems."""

    def problems(self) -> Iterable[str]:
        """Problems, a sentence each."""


class NoSync:
    """Stands in for a `SyncServer` in a hub without a source: it sends nothing, and agents keep their facts."""

    async def serve_sync(self, stream: Stream, _node: str) -> None:
        async for _ in stream:  # read and dropped, so that they do not pile up
            pass

    serve_facts = serve_observe = serve_sync

    def knows(self, _node: str) -> bool:
        return False

    async def forget(self, _node: str) -> None:
        """Do nothing."""


Sync = SyncServer | NoSync  # the hub's ends of the sync streams


@dataclass(frozen=True, slots=True)
class SyncPart:
    """The objects and facts of a hub. By default it has neither."""

    source: Source | None = None
    sync: Sync = field(default_factory=NoSync)
    parts: tuple[Part, ...] = ()
    facts: FactTable | None = None
    mounts: Mounts = field(default_factory=no_mounts)
    references: Callable[[], Awaitable[References]] | None = None  # reads them all anew
    elected: Callable[[str, Elected], None] = lambda _driver, _elected: None  # tells the cluster of a driver's election
    sole_use: SoleUse | None = None

    def volumes(self, placed: Placed) -> Iterable[VolumeStatus]:
        """All volumes that the hub knows; `placed` are those that the placement knows."""
        if self.source is None or self.facts is None:
            return report_placed(placed)
        return report(self.source, self.facts, placed)

    def problems(self) -> list[str]:
        return [text for part in self.parts for text in part.problems()]
