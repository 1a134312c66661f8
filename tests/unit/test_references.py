"""The objects that name volumes and snapshots, from manifests and from a cluster."""

import asyncio
from typing import Any

import pytest

from cloud.claims.rules import SNAPSHOT, VOLUME, Thing
from cloud.kube.client import KubeError
from cloud.parts.cluster_references import read_cluster
from cloud.parts.references import Reference, read_manifests
from cloud.sources.source import Item, Source
from common.objects.objects import Ref, Stamp
from tests.kit.fake_api import FakeApi

D = "d.csi"


def pv(name: str, handle: str, **more: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-21T09:12:03Z",
        **more.pop("metadata", {}),
    }
    spec = {"capacity": {"storage": "1Gi"}, "csi": {"driver": D, "volumeHandle": handle}, **more.pop("spec", {})}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec, **more}


def content(name: str, *, handle: str = "", source: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"driver": D, "volumeSnapshotRef": {"namespace": "a", "name": "s", "uid": f"uid-of-{name}"}}
    spec["source"] = {"snapshotHandle": source} if source else {"volumeHandle": "v"}
    body: dict[str, Any] = {"kind": "VolumeSnapshotContent", "metadata": {"name": name}, "spec": spec}
    return {**body, "status": {"snapshotHandle": handle, "restoreSize": 5}} if handle else body


def source(*bodies: dict[str, Any], ready: bool = True) -> Source:
    objects = Source()
    refs = {
        Ref(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]): Item(Stamp("u", "1"), body)
        for body in bodies
    }
    objects.update(dict(refs), ready=ready)
    return objects


CLAIM = {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "a", "name": "waits", "uid": "c1"}, "spec": {}}
BOUND = {
    "kind": "PersistentVolumeClaim",
    "metadata": {"namespace": "a", "name": "bound", "uid": "c2"},
    "spec": {"volumeName": "pv-1"},
}


async def test_a_cluster_is_read_anew_with_claims_and_snapshots() -> None:
    api = FakeApi()
    for number in range(600):
        api.put(pv(f"pv-{number}", f"vol-{number}"))
    api.put({"kind": "PersistentVolume", "metadata": {"name": "nfs"}, "spec": {"nfs": {}}})
    for each in (content("made", handle="snap-1"), content("static", source="snap-2"), content("waits")):
        api.put(each)
    found = await read_cluster(api, source(CLAIM, BOUND))
    assert found.unread == {}
    assert len(found.named) == 602
    assert found.named[D, Thing(VOLUME, "vol-7")] == [
        Reference("PersistentVolume", "pv-7", "uid-pv-7", since=1795252323.0, size_bytes=1 << 30)
    ]
    assert {str(thing) for _, thing in found.named if thing.kind == SNAPSHOT} == {"snapshot snap-1", "snapshot snap-2"}
    assert found.waiting == {"c1": "claim a/waits", "uid-of-waits": "snapshot a/s"}


@pytest.mark.parametrize(
    ("metadata", "spec", "phase", "is_leaving"),
    [
        ({}, {"persistentVolumeReclaimPolicy": "Delete"}, "Bound", False),
        ({}, {"persistentVolumeReclaimPolicy": "Delete"}, "Released", True),
        ({}, {"persistentVolumeReclaimPolicy": "Retain"}, "Released", False),
        ({"deletionTimestamp": "2026-11-21T09:12:03Z"}, {}, "Bound", True),
    ],
)
async def test_a_persistent_volume_that_is_being_reclaimed_is_leaving(
    metadata: dict[str, Any], spec: dict[str, Any], phase: str, is_leaving: bool
) -> None:
    body = pv(
        "pv",
        "v",
        metadata=metadata,
        spec={**spec, "claimRef": {"namespace": "a", "name": "c"}},
        status={"phase": phase},
    )
    found = await read_manifests(source(body), list)
    ((reference,),) = found.named.values()
    assert (reference.is_leaving, reference.owner) == (is_leaving, "claim a/c")


def group_content(name: str, *made: str, given: tuple[str, ...] = ()) -> dict[str, Any]:
    """A VolumeGroupSnapshotContent, with the snapshots that the driver has made, or that a person gives."""
    source = (
        {"groupSnapshotHandles": {"volumeSnapshotHandles": list(given)}} if given else {"volumeHandles": ["v", "w"]}
    )
    group = {"namespace": "a", "name": name, "uid": f"uid-of-{name}"}
    body: dict[str, Any] = {"kind": "VolumeGroupSnapshotContent", "metadata": {"name": name}}
    body["spec"] = {"driver": D, "source": source, "volumeGroupSnapshotRef": group}
    told = [{"volumeHandle": f"of-{handle}", "snapshotHandle": handle} for handle in made]
    return {**body, "status": {"volumeGroupSnapshotHandle": "g", "volumeSnapshotInfoList": told}} if made else body


async def test_a_group_refers_to_its_snapshots_until_their_contents_do_and_waits_before() -> None:
    api = FakeApi()
    for each in (group_content("waits"), group_content("made", "s-1", "s-2"), group_content("static", given=("s-3",))):
        api.put(each)
    api.put(content("s-1", handle="s-1"))
    found = await read_cluster(api, source())
    assert found.unread == {}
    assert found.waiting == {"uid-of-waits": "group snapshot a/waits"}
    assert {thing.id: str(*references) for (_, thing), references in found.named.items()} == {
        "s-1": "VolumeSnapshotContent s-1 of snapshot a/s",
        "s-2": "VolumeGroupSnapshotContent made of group snapshot a/made",
        "s-3": "VolumeGroupSnapshotContent static of group snapshot a/static",
    }


GROUPS, CONTENTS = "VolumeGroupSnapshotContent", "VolumeSnapshotContent"
MAY_NOT = "the hub may not list {}s; run helm upgrade again"


@pytest.mark.parametrize(
    ("kind", "code", "unread"),
    [
        (GROUPS, 404, {}),
        (GROUPS, 403, {SNAPSHOT: MAY_NOT.format(GROUPS)}),
        (CONTENTS, 404, {SNAPSHOT: "the cluster has no VolumeSnapshotContents"}),
        (CONTENTS, 403, {SNAPSHOT: MAY_NOT.format(CONTENTS)}),
        (CONTENTS, 500, {SNAPSHOT: "the VolumeSnapshotContents cannot be read: Kubernetes: list: broken"}),
    ],
)
async def test_a_cluster_whose_snapshots_cannot_be_read_says_why_unless_it_has_no_groups(
    kind: str, code: int, unread: dict[str, str]
) -> None:
    class Api(FakeApi):
        async def list(self, resource: Any, *, limit: int, more: str = "") -> Any:
            if resource.kind == kind:
                raise KubeError("list", code, "", "broken")
            return await super().list(resource, limit=limit, more=more)

    api = Api()
    api.put(pv("pv", "v"))
    found = await read_cluster(api, source())
    assert (found.unread, len(found.named)) == (unread, 1)


async def test_a_cluster_whose_persistent_volumes_cannot_be_read_says_why() -> None:
    api = FakeApi()
    api.failures["list"] = [KubeError("list persistentvolumes", 0, "", "no answer")]
    found = await read_cluster(api, source())
    assert found.unread == {
        VOLUME: "the PersistentVolumes cannot be read: Kubernetes: list persistentvolumes: no answer"
    }


async def test_a_cluster_whose_claims_are_not_read_yet_counts_as_not_read() -> None:
    found = await read_cluster(FakeApi(), source(ready=False))
    assert VOLUME in found.unread


async def test_ten_thousand_manifests_leave_the_loop_its_turns() -> None:
    objects = source(*(pv(f"pv-{number}", f"vol-{number}") for number in range(10_000)))
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(ticking())
    assert len((await read_manifests(objects, list)).named) == 10_000
    ticker.cancel()
    assert turns >= 40


@pytest.mark.parametrize(("ready", "problems"), [(False, []), (True, ["web.yaml:3: no colon"])])
async def test_manifests_that_are_not_all_good_count_as_not_read(ready: bool, problems: list[str]) -> None:
    found = await read_manifests(source(pv("pv", "v"), ready=ready), lambda: problems)
    assert found.unread[VOLUME].startswith("not all manifests are read")
    assert found.named == {}
