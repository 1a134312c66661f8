"""The sync part of a hub with manifests: objects come from a directory of YAML, and the nodes' facts stay on disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cloud.sources.manifests.claim_sizes import ClaimSizes
from cloud.sources.manifests.good_manifests import GoodManifests
from cloud.sources.manifests.manifests import Manifests
from cloud.sync.closures import Closures
from cloud.sync.fact_quota import FACT_QUOTA_BYTES
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.streams import SyncServer
from cloud.sync_part import SyncPart
from cloud.volume_report import report
from common.tasks import supervised


@asynccontextmanager
async def reading(
    directory: Path, state_dir: Path, *, fact_quota_bytes: int = FACT_QUOTA_BYTES
) -> AsyncIterator[SyncPart]:
    """Read a directory of manifests, and again at each change, until the block ends.

    Args:
        directory: the manifests.
        state_dir: for the facts, and for the manifests' last good content.
        fact_quota_bytes: the room of one node's facts.

    Raises:
        SettingsError: the state directory cannot be used.
    """
    async with FactTable(state_dir, quota_bytes=fact_quota_bytes) as table, supervised() as tasks:
        kept = GoodManifests(state_dir / "manifests")
        manifests = Manifests(directory, facts=table, sizes=ClaimSizes(state_dir), kept=kept)
        closures = Closures(manifests)
        sync = SyncServer(closures, FactSink(closures, table))
        tasks.start(manifests.run(), name="manifests")
        yield SyncPart(
            source=manifests,
            sync=sync,
            problems=lambda: [*manifests.problems(), *table.problems(), *sync.problems()],
            volumes=lambda placed: report(manifests, table, placed),
            facts=table.stored,
        )
