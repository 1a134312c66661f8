"""The sync part of a hub: the source of its objects, the sync streams, and the reports about both.

`manifests_part` makes one from a directory of YAML, `kubernetes_part` from a Kubernetes API server.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cloud import volume_report
from cloud.election import Elected
from cloud.mounts import Mounts, no_mounts
from cloud.references import References
from cloud.sole_use import SoleUse
from cloud.sources.source import Source
from cloud.sync.fact_kinds import Fact
from cloud.sync.streams import SyncServer
from common.link import Stream
from common.objects import Ref
from common.pages.hub import VolumeStatus


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


async def _nothing(_node: str) -> None:
    """A hub without facts has nothing to settle."""


@dataclass(frozen=True, slots=True)
class SyncPart:
    """The objects and facts of a hub. By default it has neither."""

    source: Source | None = None
    sync: Sync = field(default_factory=NoSync)
    parts: tuple[Part, ...] = ()
    # Every volume that the hub knows, when given those that the placement knows (`cloud.volume_report`).
    volumes: Callable[[volume_report.Placed], Iterable[VolumeStatus]] = volume_report.report_placed
    # The facts of all nodes with their Events, or of one node if it gets a name.
    facts: Callable[[str], Iterable[tuple[str, Ref, Fact]]] = lambda _node: ()
    mounts: Mounts = field(default_factory=no_mounts)
    references: Callable[[], Awaitable[References]] | None = None  # reads them all anew
    # Each node that has facts, with its fact about its Node if it has told one.
    node_facts: Callable[[], Iterable[tuple[str, Fact | None]]] = lambda: ()
    elected: Callable[[str, Elected], None] = lambda _driver, _elected: None  # tells the cluster of a driver's election
    settle_earlier: Callable[[str], Awaitable[None]] = _nothing  # what a node's earlier machines had in use; OSError
    sole_use: SoleUse | None = None

    def problems(self) -> list[str]:
        """The problems with objects and facts, a sentence each."""
        return [text for part in self.parts for text in part.problems()]

    def node_labels(self, node: str) -> Mapping[str, str] | None:
        """None without a Node; None as a whole: the hub has not read the Nodes yet."""
        if self.source is None:
            return {}
        if not self.source.is_ready:
            return None
        body = self.source.body(Ref("Node", "", node))
        return (body["metadata"].get("labels") or {}) if body is not None else {}
