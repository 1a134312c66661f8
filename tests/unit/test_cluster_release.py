"""The release of a node's own storage: the order of the steps, the finalizers, and a pass that was cut off."""

from __future__ import annotations

from typing import Any

import pytest

from cloud.abandon.cluster_release import ClusterRelease, NodeInTheWay, Released
from cloud.kube import RESOURCES, KubeError
from common.operator_orders import NodeStorage
from tests.kit.fake_api import FakeApi

_PROTECTION = "kubernetes.io/pvc-protection"
_PROVISIONER = "external-provisioner.volume.kubernetes.io/finalizer"
_ATTACHER = "external-attacher/d-example"


class BoundVolume:
    """A cluster with the volume `pv` of node n1, its claim default/data with a pod on n1, and its attachment there."""

    def __init__(self, *, policy: str = "Delete") -> None:
        self.api = FakeApi()
        spec = {
            "csi": {"driver": "d.example", "volumeHandle": "vol-1"},
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "default", "name": "data", "uid": "uid-data"},
        }
        self.put("PersistentVolume", "pv", spec=spec, status={"phase": "Bound"}, finalizers=[_PROVISIONER, _ATTACHER])
        self.put("PersistentVolumeClaim", "data", "default", spec={"volumeName": "pv"}, finalizers=[_PROTECTION])
        attached = {"nodeName": "n1", "source": {"persistentVolumeName": "pv"}}
        self.put("VolumeAttachment", "va", spec=attached, finalizers=[_ATTACHER])
        self.put("Node", "n1", annotations={"csi-bridge.io/made-by": "hub"})
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        self.put("Pod", "web", "default", spec={"nodeName": "n1", "volumes": volumes})
        self.put("Pod", "elsewhere", "default", spec={"nodeName": "n2", "volumes": volumes})
        self.api.asked.clear()

    def put(
        self, kind: str, name: str, namespace: str = "", *, spec: Any = None, status: Any = None, **meta: Any
    ) -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **meta}
        self.api.put({"kind": kind, "metadata": metadata, "spec": spec or {}, "status": status or {}})

    async def run(self) -> dict[str, str]:
        """One pass. Returns the fates by kind."""
        return {it.kind: it.fate for it in await self.whole(is_dry=False)}

    async def whole(self, *, is_dry: bool) -> list[Released]:
        known = NodeStorage(volumes=["uid-pv"], snapshots=[], groups=[], is_known=True)
        return await ClusterRelease(self.api, "n1").run(known, is_dry=is_dry)

    async def has(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        try:
            return await self.api.get(RESOURCES[kind], name, namespace)
        except KubeError:
            return None

    async def end_claim(self) -> None:
        """Kubernetes ends the pod and the claim, and the volume is Released."""
        self.api.drop("Pod", "web", "default")
        self.api.drop("PersistentVolumeClaim", "data", "default")
        body = await self.has("PersistentVolume", "pv")
        assert body is not None
        self.api.put({**body, "status": {"phase": "Released"}})

    def changes(self) -> list[str]:
        """The requests that changed something, without Events."""
        return [it for it in self.api.asked if it.split()[0] in {"delete", "patch", "create"} and "events" not in it]

    def events(self) -> int:
        return sum(it.startswith("create events") for it in self.api.asked)


async def test_a_dry_run_names_all_objects_and_changes_nothing() -> None:
    cluster = BoundVolume()
    found = await cluster.whole(is_dry=True)
    assert [(it.kind, it.name, it.fate) for it in found] == [
        ("Node", "n1", "goes"),
        ("Pod", "default/web", "goes"),
        ("PersistentVolumeClaim", "default/data", "goes"),
        ("VolumeAttachment", "va", "goes"),
        ("PersistentVolume", "pv", "goes"),
    ]
    assert cluster.changes() == []
    assert cluster.events() == 0


async def test_while_a_pod_of_the_node_is_there_only_its_claim_is_deleted() -> None:
    cluster = BoundVolume()
    fates = await cluster.run()
    assert cluster.changes() == ["delete persistentvolumeclaims data"]
    assert fates["VolumeAttachment"] == fates["PersistentVolume"] == "goes"


async def test_once_the_claim_is_gone_attachment_and_volume_follow_without_the_sidecars_finalizers() -> None:
    cluster = BoundVolume()
    await cluster.run()
    await cluster.end_claim()
    fates = await cluster.run()
    assert fates["VolumeAttachment"] == fates["PersistentVolume"] == "released"
    assert cluster.changes()[1:] == [
        "delete volumeattachments va",
        "patch volumeattachments va",
        "delete persistentvolumes pv",
        "patch persistentvolumes pv",
    ]
    assert await cluster.has("PersistentVolume", "pv") is None


async def test_each_object_gets_one_event() -> None:
    cluster = BoundVolume()
    for _ in range(3):
        await cluster.run()
    await cluster.end_claim()
    await cluster.run()
    found = {it["involvedObject"]["kind"] for it in (await cluster.api.list(RESOURCES["Event"], limit=0)).items}
    assert found == {"Pod", "PersistentVolumeClaim", "VolumeAttachment", "PersistentVolume"}


async def test_a_retained_volume_stays_and_its_claim_and_attachment_go() -> None:
    cluster = BoundVolume(policy="Retain")
    await cluster.run()
    await cluster.end_claim()
    assert await cluster.run() == {"Node": "goes", "VolumeAttachment": "released", "PersistentVolume": "stays"}
    volume = await cluster.has("PersistentVolume", "pv")
    assert volume is not None
    assert volume["metadata"]["finalizers"] == [_PROVISIONER, _ATTACHER]


async def test_a_finalizer_of_kubernetes_stays_for_kubernetes() -> None:
    cluster = BoundVolume()
    body = await cluster.has("PersistentVolume", "pv")
    assert body is not None
    metadata = {**body["metadata"], "finalizers": ["kubernetes.io/pv-protection", _PROVISIONER]}
    cluster.api.put({**body, "metadata": metadata})
    await cluster.end_claim()
    assert (await cluster.run())["PersistentVolume"] == "goes"
    left = await cluster.has("PersistentVolume", "pv")
    assert left is not None
    assert left["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    assert left["metadata"]["deletionTimestamp"]


async def test_a_claim_of_the_same_name_that_was_made_since_stays() -> None:
    cluster = BoundVolume()
    await cluster.end_claim()
    cluster.put("PersistentVolumeClaim", "data", "default", uid="uid-new", spec={"volumeName": "pv-new"})
    await cluster.run()
    assert await cluster.has("PersistentVolumeClaim", "data", "default") is not None


async def test_a_pass_that_breaks_off_at_any_request_is_continued_by_the_next_ones() -> None:
    for number in range(1, 20):
        cluster = BoundVolume()
        await cluster.run()
        await cluster.end_claim()
        left = [number]

        async def break_off(_verb: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KubeError("a request", 0, "", "the command was killed")

        cluster.api._fail = break_off  # type: ignore[method-assign]  # it dies between two requests
        try:
            await cluster.run()
        except KubeError:
            for _ in range(2):
                await cluster.run()
        assert await cluster.has("PersistentVolume", "pv") is None
        assert await cluster.has("VolumeAttachment", "va") is None


async def test_a_volume_that_the_hub_does_not_name_stays() -> None:
    cluster = BoundVolume()
    cluster.put("PersistentVolume", "other", spec={"persistentVolumeReclaimPolicy": "Delete"})
    await cluster.run()
    await cluster.end_claim()
    await cluster.run()
    assert await cluster.has("PersistentVolume", "pv") is None
    assert await cluster.has("PersistentVolume", "other") is not None


async def test_while_a_node_that_the_hub_did_not_make_is_there_nothing_changes() -> None:
    cluster = BoundVolume()
    cluster.put("Node", "n1", annotations={})
    (node,) = [it for it in await cluster.whole(is_dry=True) if it.kind == "Node"]
    assert (node.fate, node.why) == ("blocks", "the hub did not make Node n1; first run kubectl delete node n1")
    with pytest.raises(NodeInTheWay, match="is not abandoned: the hub did not make Node n1"):
        await cluster.run()
    assert cluster.changes() == []


@pytest.mark.parametrize(("policy", "fate"), [("Delete", "released"), ("Retain", "stays")])
async def test_a_snapshot_goes_and_its_content_if_it_is_not_retained(policy: str, fate: str) -> None:
    cluster = BoundVolume()
    spec = {
        "driver": "d.example",
        "deletionPolicy": policy,
        "source": {"volumeHandle": "vol-1"},
        "volumeSnapshotRef": {"namespace": "default", "name": "snap", "uid": "uid-snap"},
    }
    bound = ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]
    cluster.put("VolumeSnapshotContent", "c", spec=spec, finalizers=bound)
    cluster.put("VolumeSnapshot", "snap", "default")
    fates = await cluster.run()
    assert (fates["VolumeSnapshot"], fates["VolumeSnapshotContent"]) == ("released", fate)


async def test_a_group_goes_before_its_members() -> None:
    cluster = BoundVolume()
    for kind, name, source in (
        ("VolumeSnapshot", "member", {"volumeHandle": "vol-1"}),
        ("VolumeGroupSnapshot", "group", {"volumeHandles": ["vol-1"]}),
    ):
        ref = {"namespace": "shop", "name": name, "uid": f"uid-{name}"}
        spec = {"driver": "d.example", "deletionPolicy": "Delete", "source": source}
        group = "group" if name == "group" else ""
        bound = f"{group}snapshot.storage.kubernetes.io/volume{group}snapshotcontent-bound-protection"
        content = {**spec, f"volume{'Group' if group else ''}SnapshotRef": ref}
        cluster.put(f"{kind}Content", f"{name}-content", spec=content, finalizers=[bound])
        cluster.put(kind, name, "shop", finalizers=["the-controller's"])
    dry = await cluster.whole(is_dry=True)
    assert {it.kind for it in dry} >= {"VolumeGroupSnapshot", "VolumeGroupSnapshotContent"}
    fates = await cluster.run()
    assert cluster.changes()[:6] == [
        "delete volumegroupsnapshots group",
        "delete volumegroupsnapshotcontents group-content",
        "patch volumegroupsnapshotcontents group-content",
        "delete volumesnapshots member",
        "delete volumesnapshotcontents member-content",
        "patch volumesnapshotcontents member-content",
    ]
    assert (fates["VolumeGroupSnapshot"], fates["VolumeGroupSnapshotContent"]) == ("goes", "released")
