"""The references: the PersistentVolumes, VolumeSnapshotContents and VolumeGroupSnapshotContents, with the ids in them.

The leak audit (`cloud.operators`) reads them before it asks the nodes for their lists, and again afterwards.

Rules:

* A reading is whole or it fails: an object that a whole one lacks does not exist.
* Only the few fields that the audit needs are kept: a site may have 100,000 of them.
* A claim that has no volume yet is a reference, too: the provisioner repeats its CreateVolume, and gets the volume that
  an earlier one has made. So is a VolumeSnapshot or VolumeGroupSnapshot for the snapshotter.
* A VolumeGroupSnapshotContent refers to the snapshots of its group that have no VolumeSnapshotContent yet.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cloud.claims.rules import SNAPSHOT, VOLUME, Thing
from cloud.kinds.rules.fields import Body, part
from cloud.sources.source import Source
from common.errors import seconds_of
from common.objects.objects import Ref
from common.objects.quantity import bytes_of

PERSISTENT_VOLUME: Final = "PersistentVolume"
CONTENT: Final = "VolumeSnapshotContent"
GROUP_CONTENT: Final = "VolumeGroupSnapshotContent"
_GROUP_REF: Final = "volumeGroupSnapshotRef"
_SLICE: Final = 250  # objects that are read before the loop gets a turn: two milliseconds
UID_CHARS: Final = 36  # the stock sidecars name what they make `<prefix>-<UID>`


class Reference(NamedTuple):
    """An object that names a volume or a snapshot."""

    kind: str  # `PERSISTENT_VOLUME`, `CONTENT` or `GROUP_CONTENT`
    name: str
    uid: str
    owner: str = ""  # namespace and name of the claim or snapshot that it is for; empty: none
    since: float = 0.0  # when it was made, in seconds since the epoch; 0: not known
    size_bytes: int = 0  # 0: not known
    is_leaving: bool = False  # it is being removed, and its volume with it or before it

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" of {self.owner}" if self.owner else "")


Key = tuple[str, Thing]  # a driver, and a volume or snapshot of it


@dataclass(slots=True)
class References:
    """One reading."""

    named: dict[Key, list[Reference]] = field(default_factory=dict)  # the objects that name a thing
    # claims and snapshots without a thing yet: namespace and name, by UID
    waiting: dict[str, str] = field(default_factory=dict)
    # why the objects for a kind of things could not be read, by this kind
    unread: dict[str, str] = field(default_factory=dict)
    is_in_files: bool = False  # the objects come from a directory of manifests

    def add(self, found: Iterable[tuple[Key, Reference]]) -> None:
        for key, reference in found:
            self.named.setdefault(key, []).append(reference)


async def read_manifests(source: Source, problems: Callable[[], list[str]]) -> References:
    """The references of a directory of manifests, with its present problems in sentences."""
    found = References(unread={SNAPSHOT: "manifests have no VolumeSnapshotContents"}, is_in_files=True)
    if (flaws := problems()) or not source.is_ready:  # a file that cannot be read may hold a PersistentVolume
        found.unread[VOLUME] = f"not all manifests are read: {next(iter(flaws), 'there was none yet')}"
        return found
    async for _, body in _bodies(source, PERSISTENT_VOLUME):
        found.add(of_volume(body))
    found.waiting = await waiting_claims(source)
    return found


async def waiting_claims(source: Source) -> dict[str, str]:
    """The claims that no PersistentVolume is bound to: namespace and name, by UID."""
    return {
        str(body["metadata"].get("uid", "")): f"claim {ref.namespace}/{ref.name}"
        async for ref, body in _bodies(source, "PersistentVolumeClaim")
        if not (body.get("spec") or {}).get("volumeName")
    }


async def _bodies(source: Source, kind: str) -> AsyncIterator[tuple[Ref, Body]]:
    for number, ref in enumerate(list(source.refs(kind)), 1):
        if (body := source.body(ref)) is not None:
            yield ref, body
        if number % _SLICE == 0:
            await asyncio.sleep(0)


def of_volume(body: Body) -> Iterator[tuple[Key, Reference]]:
    """The volume of a PersistentVolume; none if it is not of a CSI driver."""
    spec = part(body, "spec")
    status = part(body, "status")
    csi = part(spec, "csi")
    claim = part(spec, "claimRef")
    if not (csi.get("driver") and csi.get("volumeHandle")):
        return
    is_over = status.get("phase") in {"Released", "Failed"}
    reference = _reference(
        PERSISTENT_VOLUME,
        body,
        owner=_named("claim", claim),
        size_bytes=bytes_of(part(spec, "capacity").get("storage")),
        is_reclaimed=is_over and spec.get("persistentVolumeReclaimPolicy") == "Delete",
    )
    yield (str(csi["driver"]), Thing(VOLUME, str(csi["volumeHandle"]))), reference


def of_content(body: Body) -> Iterator[tuple[Key, Reference]]:
    """The snapshot of a VolumeSnapshotContent; none if it has none yet."""
    spec = part(body, "spec")
    status = part(body, "status")
    handle = status.get("snapshotHandle") or part(spec, "source").get("snapshotHandle")
    if spec.get("driver") and handle:
        owner = _named("snapshot", part(spec, "volumeSnapshotRef"))
        size_bytes = int(status.get("restoreSize") or 0)
        reference = _reference(CONTENT, body, owner=owner, size_bytes=size_bytes)
        yield (str(spec["driver"]), Thing(SNAPSHOT, str(handle))), reference


def of_group(body: Body) -> Iterator[tuple[Key, Reference]]:
    """The snapshots of a VolumeGroupSnapshotContent; none if it has none yet."""
    spec = part(body, "spec")
    status = part(body, "status")
    reference = _reference(GROUP_CONTENT, body, owner=_named("group snapshot", part(spec, _GROUP_REF)))
    handles = [it.get("snapshotHandle") for it in status.get("volumeSnapshotInfoList") or ()]
    handles += part(spec, "source", "groupSnapshotHandles").get("volumeSnapshotHandles") or ()
    for handle in dict.fromkeys(filter(None, handles)):
        yield (str(spec.get("driver", "")), Thing(SNAPSHOT, str(handle))), reference


def waiting_snapshot(body: Body) -> dict[str, str]:
    """The snapshot or group snapshot of a content that has nothing yet: its name, by its UID."""
    refs = {"snapshot": part(body, "spec", "volumeSnapshotRef"), "group snapshot": part(body, "spec", _GROUP_REF)}
    return {str(ref["uid"]): _named(word, ref) for word, ref in refs.items() if ref.get("uid")}


def _reference(kind: str, body: Body, *, owner: str, size_bytes: int = 0, is_reclaimed: bool = False) -> Reference:
    metadata = part(body, "metadata")
    return Reference(
        kind,
        str(metadata.get("name", "")),
        str(metadata.get("uid", "")),
        owner=owner,
        since=seconds_of(metadata.get("creationTimestamp")),
        size_bytes=size_bytes,
        is_leaving=bool(metadata.get("deletionTimestamp")) or is_reclaimed,
    )


def _named(word: str, ref: Mapping[str, Any]) -> str:
    return f"{word} {ref.get('namespace')}/{ref.get('name')}" if ref else ""
