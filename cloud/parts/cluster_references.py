"""The references of a cluster: read from the API server, not from the hub's copy, which may be some seconds behind."""

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


async def read_cluster(api: Kube, source: Source) -> References:
    found = References(waiting=await waiting_claims(source))
    if not source.is_ready:
        found.unread[VOLUME] = "the hub has not read all claims yet"
    # A list that breaks off is not read: the next audit tries again.
    try:
        async for bodies in pages(api, RESOURCES[PERSISTENT_VOLUME]):
            for body in bodies:
                found.add(of_volume(body))
    except KubeError as error:
        found.unread[VOLUME] = f"the PersistentVolumes cannot be read: {error}"
    kind = CONTENT
    try:
        async for bodies in pages(api, RESOURCES[CONTENT]):
            for body in bodies:
                found.add(its := [*of_content(body)])
                found.waiting |= {} if its else waiting_snapshot(body)
        kind = GROUP_CONTENT
        async for bodies in pages(api, RESOURCES[GROUP_CONTENT]):
            for body in bodies:
                its = [*of_group(body)]
                found.add(it for it in its if it[0] not in found.named)
                found.waiting |= {} if its else waiting_snapshot(body)
    except KubeError as error:
        if kind == CONTENT or not error.is_missing:  # a cluster may have no group snapshots
            found.unread[SNAPSHOT] = _why_unread(kind, error)
    return found


def _why_unread(kind: str, error: KubeError) -> str:
    if error.is_missing:
        return f"the cluster has no {kind}s"
    if error.is_forbidden:
        return f"the hub may not list {kind}s; apply deploy/cloud/base/hub-rbac.yaml again"
    return f"the {kind}s cannot be read: {error}"
