"""The sync part of a hub with manifests: objects come from a directory of YAML, and the nodes' facts stay here."""

import logging
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cloud.mounts import Mounts
from cloud.node_rights import NodeRights
from cloud.policy_problems import PolicyProblems
from cloud.records.records import Records
from cloud.references import SourceReferences
from cloud.sole_use import SoleUse
from cloud.sources.manifests.last_good import LastGood
from cloud.sources.manifests.manifests import Manifests
from cloud.sync.closures import Closures
from cloud.sync.fact_quota import FACT_QUOTA_BYTES
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.streams import SyncServer
from cloud.sync_part import Part, SyncPart
from cloud.volume_report import report
from common.errors import SettingsError
from common.sealing import KEY_BYTES, Sealer, make_key, read_key
from common.tasks import supervised

log = logging.getLogger("csi_bridge.hub.manifests")


@asynccontextmanager
async def reading(
    directory: Path,
    state_dir: Path,
    records: Records,
    rights: NodeRights,
    *,
    seal_key: Path | None = None,
    fact_quota_bytes: int = FACT_QUOTA_BYTES,
) -> AsyncIterator[SyncPart]:
    """Read a directory of manifests, and again at each change, until the block ends.

    Args:
        directory: the manifests.
        state_dir: for the manifests' last good content, and the claims and volumes that are bound.
        records: for the facts.
        rights: what nodes may tell, and have.
        seal_key: the file with the key that seals this content; by default one in the state directory.
        fact_quota_bytes: the room of one node's facts.

    Raises:
        SettingsError: the state directory or the key cannot be used, or the records are damaged.
    """
    table = FactTable(records, rights, quota_bytes=fact_quota_bytes)
    async with supervised() as tasks:
        last_good = LastGood(state_dir / "manifests.sealed", _sealer(state_dir, seal_key))
        manifests = Manifests(directory, table, last_good, state_dir / "bindings.json")
        mounts = Mounts(manifests, earlier_use=table.earlier_use, facts=table.of)
        sole_use, closures = SoleUse(table, mounts), Closures(manifests, rights)
        sync = SyncServer(closures, FactSink(closures, table, sole_use.claim))
        parts: tuple[Part, ...] = (manifests, table, closures, sync, PolicyProblems(manifests, mounts, table.users))
        rights.changed = table.judge_again
        tasks.start(manifests.run(), name="manifests")
        yield SyncPart(
            source=manifests,
            sync=sync,
            problems=lambda: [text for part in parts for text in part.problems()],
            volumes=lambda placed: report(manifests, table, placed),
            facts=table.stored,
            mounts=mounts,
            references=SourceReferences(manifests, manifests.problems),
            node_facts=table.node_facts,
            settle_earlier=table.settle,
            sole_use=sole_use,
        )


def _sealer(state_dir: Path, seal_key: Path | None) -> Sealer:
    """The sealer of the last good manifests, with the operator's key or one in the state directory.

    The operator's key replaces the one in the state directory, which is removed.
    """
    own = state_dir / "seal.key"
    flag, path = ("--seal-key", seal_key) if seal_key is not None else ("--state-dir", own)
    how = f"it needs {KEY_BYTES} random bytes, as they are or as base64: openssl rand -base64 {KEY_BYTES}"
    try:
        if seal_key is None and not own.exists():
            return Sealer(make_key(own))
        key = read_key(path)
        if path.stat().st_mode & stat.S_IRWXO:
            log.warning("%s, with the key that seals Secrets, may be read by every user: set its mode to 0400", path)
        if seal_key is not None:
            own.unlink(missing_ok=True)
    except FileNotFoundError:
        raise SettingsError(flag, str(path), f"there is no such file; {how}") from None
    except OSError as error:
        raise SettingsError(flag, str(path), f"the key cannot be read or made: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(flag, str(path), f"{error}: openssl rand -base64 {KEY_BYTES}") from None
    return Sealer(key)
