"""The release in a cluster: deletes the objects that wait for a node that never comes back.

Rules:

* One pass does all that can be done now, and says why the rest waits. The next pass begins with the objects that the
  API server has then. So it goes on after a pass that was cut off anywhere, and nothing is kept between them.
* An object is deleted by its UID first. Only then its sidecar's finalizer is removed: no controller may put a finalizer
  on an object that is being deleted, and none takes it for one in use.
* Only finalizers of the stock sidecars are removed, which wait for the node's answer. Kubernetes removes its own.
* The order lets each controller do its part. Snapshots go first, while their volumes still exist; groups before their
  members, which the snapshot-controller keeps as long as the group exists. Then Kubernetes ends
  the pods of a Node that is gone, and a claim when no pod has it. A VolumeAttachment goes when no pod of the node has
  the claim, or it would be made again. A PersistentVolume goes when its claim and its VolumeAttachments are gone: else
  the claim would be Lost, and a StatefulSet would keep it.
* A PersistentVolume, VolumeSnapshotContent or VolumeGroupSnapshotContent that its owner retains stays. Its claim or
  snapshot goes.
* Each object gets an Event before the first change.
"""

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from cloud.kinds.pods import claim_names
from cloud.kinds.rules.fields import Body as Part
from cloud.kinds.rules.fields import part
from cloud.kube.client import RESOURCES, Body, Kube, KubeError, find, may, pages, patch_found
from cloud.operators.own_storage import Handle, own_contents
from cloud.upsync.event_writer import event, reference
from cloud.upsync.ownership import is_made
from common.errors import BridgeError
from common.operator_orders import MadeAlone, NodeStorage

# How the finalizers begin that the stock sidecars remove after an answer of the driver.
_SIDECARS: Final = (
    "external-attacher/",
    "external-provisioner.volume.kubernetes.io/finalizer",
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection",
)

# The kinds that a pass deletes. Kubernetes ends pods, and the hub deletes the Node.
_DELETED: Final = frozenset({
    "PersistentVolumeClaim", "PersistentVolume", "VolumeAttachment", "VolumeSnapshot", "VolumeSnapshotContent",
    "VolumeGroupSnapshot", "VolumeGroupSnapshotContent",
})  # fmt: skip

GOES, RELEASED, KEPT, BLOCKS = "goes", "released", "stays", "blocks"  # the fates of an object (`Released.fate`)


class Released(NamedTuple):
    """An object of a node's own storage, or one that hangs on it."""

    kind: str
    name: str  # its name, after its namespace if it has one
    # `goes`: it is to go, and `why` says when; `released`: it is gone; `stays`: its owner keeps it; `blocks`: an
    # operator must act first
    fate: str
    why: str


class ClusterRelease:
    """Releases a node's own storage in a cluster, one pass at a time."""

    def __init__(self, api: Kube, node: str) -> None:
        self._api = api
        self._node = node

    async def run(self, known: NodeStorage, *, is_dry: bool) -> list[Released]:
        """Make one pass, which is dry or changes something. Returns the objects in the order of their release.

        Raises BridgeError, before any change, unless it is dry: the hub did not make the node's Node. KubeError.
        """
        node = await find(self._api, RESOURCES["Node"], self._node)
        if not is_dry and node is not None and not is_made(node):
            raise BridgeError(f"edge node {self._node} is not abandoned: {_foreign(self._node)}")
        volumes = await self._all("PersistentVolume")
        own_uids = frozenset(known.volumes)
        own = [it for it in volumes if it["metadata"]["uid"] in own_uids]
        others = [it for it in volumes if it["metadata"]["uid"] not in own_uids]
        groups = own_contents(await self._any("VolumeGroupSnapshotContent"), own, others, _handles(known.groups))
        contents = own_contents(await self._any("VolumeSnapshotContent"), own, others, _handles(known.snapshots))
        attachments = await self._all("VolumeAttachment")
        steps = _Steps(self._api, self._node, is_dry=is_dry)
        for content in groups:
            await steps.release_snapshot("VolumeGroupSnapshot", content)
        for content in contents:
            await steps.release_snapshot("VolumeSnapshot", content)
        if node is not None:
            fate = (GOES, "the hub made it, and deletes it") if is_made(node) else (BLOCKS, _foreign(self._node))
            steps.note("Node", node, *fate)
        pods = await self._pods()
        for volume in own:
            await steps.release_volume(volume, pods, attachments)
        return steps.found

    async def check(self, found: Iterable[Released]) -> None:
        """Raise BridgeError, with all missing permissions, if the account may not make a whole pass. KubeError."""
        where = {(it.kind, it.name.rpartition("/")[0]) for it in found if it.fate == GOES and it.kind in _DELETED}
        asked = [(verb, kind, namespace) for kind, namespace in sorted(where) for verb in ("delete", "patch")]
        allowed = await asyncio.gather(*(may(self._api, verb, _plural(kind), there) for verb, kind, there in asked))
        if lacks := [one for one, is_allowed in zip(asked, allowed, strict=True) if not is_allowed]:
            texts = (f"{verb} {_plural(kind)}{there and f' in namespace {there}'}" for verb, kind, there in lacks)
            raise BridgeError(f"the user of --kubeconfig may not {', '.join(texts)}; nothing is changed")

    async def _any(self, kind: str) -> list[Body]:
        try:
            return await self._all(kind)
        except KubeError as error:
            if not error.is_missing:
                raise
            return []

    async def _all(self, kind: str, selector: str = "") -> list[Body]:
        resource = replace(RESOURCES[kind], selector=selector)
        return [it async for page in pages(self._api, resource) for it in page]

    async def _pods(self) -> dict[tuple[str, str], list[Body]]:
        found: dict[tuple[str, str], list[Body]] = {}
        for pod in await self._all("Pod", selector=f"spec.nodeName={self._node}"):
            for claim in claim_names(pod):
                found.setdefault((pod["metadata"]["namespace"], claim), []).append(pod)
        return found


def _plural(kind: str) -> str:
    resource = RESOURCES[kind]
    group = resource.group.split("/")[1:-1]
    return ".".join([resource.plural, *group])


def _foreign(node: str) -> str:
    return f"the hub did not make Node {node}; first run kubectl delete node {node}"


def _handles(made: Iterable[MadeAlone]) -> set[Handle]:
    return {(it.driver, it.id) for it in made}


class _Steps:
    def __init__(self, api: Kube, node: str, *, is_dry: bool) -> None:
        self._api = api
        self._node = node
        self._is_dry = is_dry
        self._noted: set[str] = set()
        self.found: list[Released] = []

    def note(self, kind: str, body: Part, fate: str, why: str) -> None:
        if (uid := body["metadata"]["uid"]) not in self._noted:
            self._noted.add(uid)
            self.found.append(Released(kind, _name(body), fate, why))

    async def release_snapshot(self, kind: str, content: Part) -> None:
        ref = part(content, "spec", f"{kind[0].lower()}{kind[1:]}Ref")
        snapshot = await self._bound(kind, ref)
        if snapshot is not None:
            await self._delete_and_note(kind, snapshot, "its snapshot-controller ends it")
        if part(content, "spec").get("deletionPolicy") != "Delete":
            self.note(f"{kind}Content", content, KEPT, "its deletionPolicy is Retain")
        else:
            await self._delete_and_note(f"{kind}Content", content)

    async def release_volume(
        self, volume: Part, pods: dict[tuple[str, str], list[Body]], attachments: Iterable[Part]
    ) -> None:
        ref = part(volume, "spec", "claimRef")
        name = volume["metadata"]["name"]
        claim = await self._bound("PersistentVolumeClaim", ref)
        if claim is not None and part(claim, "spec").get("volumeName") != name:
            claim = None
        users = pods.get((ref.get("namespace", ""), ref.get("name", "")), []) if claim is not None else []
        for pod in users:
            await self._announce("Pod", pod)
            self.note("Pod", pod, GOES, "Kubernetes ends it about a minute after the Node is gone")
        if claim is not None:
            await self._delete_and_note("PersistentVolumeClaim", claim, "Kubernetes ends it when no pod has it")
        left = [it for it in attachments if part(it, "spec", "source").get("persistentVolumeName") == name]
        for attachment in list(left):
            if users or part(attachment, "spec").get("nodeName") != self._node:
                self.note("VolumeAttachment", attachment, GOES, "a pod has the volume")
                continue
            if await self._delete_and_note("VolumeAttachment", attachment):
                left.remove(attachment)
        if part(volume, "spec").get("persistentVolumeReclaimPolicy") != "Delete":
            if claim is not None:
                await self._announce("PersistentVolume", volume)
            self.note("PersistentVolume", volume, KEPT, "its reclaim policy is Retain")
        elif claim is not None or left or part(volume, "status").get("phase") == "Bound":
            self.note("PersistentVolume", volume, GOES, "it goes after its claim and its attachments")
        else:
            await self._delete_and_note("PersistentVolume", volume, "Kubernetes ends it")

    async def _bound(self, kind: str, ref: Part) -> Part | None:
        if not (ref.get("name") and ref.get("uid")):
            return None
        found = await find(self._api, RESOURCES[kind], str(ref["name"]), str(ref.get("namespace", "")))
        return found if found is not None and found["metadata"]["uid"] == ref["uid"] else None

    async def _delete_and_note(self, kind: str, body: Part, waits_for: str = "") -> bool:
        is_gone = await self._delete(kind, body)
        others = [it for it in body["metadata"].get("finalizers") or () if not it.startswith(_SIDECARS)]
        text = "; ".join(filter(None, (waits_for, (others and f"finalizers {', '.join(others)}") or "")))
        self.note(kind, body, RELEASED if is_gone else GOES, "" if is_gone else text)
        return is_gone

    async def _delete(self, kind: str, body: Part) -> bool:
        if self._is_dry:
            return False
        resource = RESOURCES[kind]
        where = (body["metadata"]["name"], body["metadata"].get("namespace", ""))
        await self._announce(kind, body)
        if not body["metadata"].get("deletionTimestamp"):
            await _passed(self._api.delete(resource, *where, uid=body["metadata"]["uid"]))
            if not body["metadata"].get("finalizers"):
                return True
        found = await find(self._api, resource, *where)
        if found is None or found["metadata"]["uid"] != body["metadata"]["uid"]:
            return True
        before = found["metadata"].get("finalizers") or []
        rest = [it for it in before if not it.startswith(_SIDECARS)]
        if rest == before or not found["metadata"].get("deletionTimestamp"):
            return False
        change: Body = {"metadata": {"finalizers": rest or None}}
        return await _passed(patch_found(self._api, resource, found, change)) and not rest

    async def _announce(self, kind: str, body: Part) -> None:
        # An object whose namespace ends can get none.
        if self._is_dry or (body["metadata"].get("deletionTimestamp") and kind != "Pod"):
            return
        made = event(
            reference(kind, body),
            "csi-bridge-abandoned",
            cause=(self._node,),
            reason="NodeAbandoned",
            text=f"edge node {self._node} is gone for good: an operator releases the storage that only it had",
            at=time.time(),
            kind="Warning",
        )
        made["source"] = {"component": "csi-bridge"}
        writing = self._api.create(RESOURCES["Event"], made, made["metadata"]["namespace"])
        await _passed(writing, unless={403, 404, 409})  # it is there, or its namespace ends


async def _passed(request: Awaitable[object], *, unless: Collection[int] = (404, 409)) -> bool:
    # After these codes the object is gone or has changed, and the next pass sees it.
    try:
        await request
    except KubeError as error:
        if error.code not in unless:
            raise
        return False
    return True


def _name(body: Part) -> str:
    metadata = body["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])
