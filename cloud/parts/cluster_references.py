"""The references of a cluster: read from the API server, not from the hub's copy, which may be some seconds behind."""

from typing import Final

from cloud.claims.rules import SNAPSHOT, VOLUME
from cloud.kube.client import RESOURCES, Kube, KubeError, pages
from cloud.parts.references import (
    CONTENT,
    GROUP_CONTENT,
    PERSISTENT_VOLUME,
    References,
    of_content,
    of_group,
    of_volume,
    waiting_claims,
    waiting_snapshot,
)
from cloud.sources.source import Source

_LISTS: Final = (
    (PERSISTENT_VOLUME, of_volume, VOLUME), (CONTENT, of_content, SNAPSHOT), (GROUP_CONTENT, of_group, SNAPSHOT),
)  # fmt: skip


async def read_cluster(api: Kube, source: Source) -> References:
    found = References(waiting=await waiting_claims(source))
    if not source.is_ready:
        found.unread[VOLUME] = "the hub has not read all claims yet"
    for kind, read, things in _LISTS:
        # A list that breaks off is not read: the next audit tries again.
        try:
            async for bodies in pages(api, RESOURCES[kind]):
                for body in bodies:
                    its = [*read(body)]
                    found.add(it for it in its if kind != GROUP_CONTENT or it[0] not in found.named)
                    found.waiting |= {} if its else waiting_snapshot(body)
        except KubeError as error:
            if kind != GROUP_CONTENT or not error.is_missing:  # a cluster may have no group snapshots
                found.unread.setdefault(things, _why_unread(kind, error))
    return found


def _why_unread(kind: str, error: KubeError) -> str:
    if error.is_missing:
        return f"the cluster has no {kind}s"
    if error.is_forbidden:
        return f"the hub may not list {kind}s; run helm upgrade again"
    return f"the {kind}s cannot be read: {error}"
