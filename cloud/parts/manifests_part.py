"""The sync part of a hub with manifests: objects come from a directory of YAML, and the nodes' facts stay here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from cloud.detach.mounts import Mounts
from cloud.detach.policy_problems import PolicyProblems
from cloud.detach.sole_use import SoleUse
from cloud.hub_settings import HubSettings
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.node_rights import NodeRights
from cloud.parts.references import read_manifests
from cloud.parts.sync_part import SyncPart
from cloud.records.records import Records
from cloud.sources.manifests.manifests import Manifests
from cloud.sync.closures import Closures
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.streams import SyncServer
from common.observe.tasks import supervised


@asynccontextmanager
async def reading(settings: HubSettings, records: Records, nodes: Nodes) -> AsyncIterator[SyncPart]:
    """Read a directory of manifests, and again at each change, until the block ends. Raises SettingsError."""
    assert settings.manifests is not None
    rights = NodeRights(nodes)
    table = FactTable(records, rights, quota_bytes=settings.fact_quota_bytes)
    async with supervised() as tasks:
        manifests = Manifests(settings.manifests, table.node_reports, settings.state_dir / "bindings.json")
        table.subscribe(manifests.wake)
        mounts = Mounts(manifests, table)
        sole_use = SoleUse(table, mounts)
        closures = Closures(manifests, rights)
        sync = SyncServer(closures, FactSink(closures, table, sole_use.claim))
        rights.changed = table.judge_again
        tasks.start(manifests.run(), name="manifests")
        yield SyncPart(
            source=manifests,
            sync=sync,
            parts=(manifests, table, closures, sync, PolicyProblems(manifests, mounts, table)),
            facts=table,
            mounts=mounts,
            references=partial(read_manifests, manifests, manifests.problems),
            sole_use=sole_use,
        )
