"""Resolves one Pod object, with its claims, volumes and drivers, into the volumes that the pod wants.

Rules:

* Each volume is either resolved, or has a reason in words, which stays the same until an object changes.
* A volume that no container mounts or maps is not mounted (kubernetes pkg/volume/util, GetPodVolumeNames). Volumes that
  are not CSI volumes are not the agent's.
* The preconditions are the kubelet's (docs/csi-contract.md#checks-before-mounting). The volume task checks those that
  depend on present mounts.
* A malformed object leaves its volumes unresolved; the pod stays known.
* A pod that is being deleted is over when its status says that all containers have ended. It is also over when its
  grace period has passed since this process learned of the deletion. The deletion timestamp does not count: another
  machine wrote it, and the object may have arrived late. Before this process learned of the deletion, nothing here had
  stopped the containers.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from common.csi.volume_context import DIRECT_VOLUME
from common.objects import offline_policy
from common.objects.node_selector import selects
from common.objects.objects import Object, Ref
from edge.disk.layout import shown
from edge.volumes import (
    BoundClaim,
    DriverRules,
    Pod,
    PodVolume,
    SecretRef,
    Volume,
    VolumeKey,
    attachment_name,
    inline_handle,
)
from edge.wanted.object_fields import (
    Body,
    Unresolved,
    Use,
    bound_claim,
    containers_of,
    driver_rules,
    file_label,
    fs_type_of,
    group_id,
    mount_options_of,
    require_name,
    secret_ref,
    storage_bytes,
    texts,
    uses_of,
)
from edge.wanted.opt_in import ANNOTATION, NotDeferrable, OptIn, asked_names, is_true

# While a claim has this finalizer, its deletion waits for the pods that use it (the kubelet's populator).
_PROTECTION = "kubernetes.io/pvc-protection"

_ENDED = ("Succeeded", "Failed")

_GRACE_S = 30  # the grace period in seconds of a pod that gives none (core/v1, DefaultTerminationGracePeriodSeconds)

_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWants:
    """The volumes that one pod wants. Two equal values ask for the same mounts."""

    pod: Pod
    volumes: tuple[PodVolume, ...] = ()
    # Why other volumes are not resolved, by the volume's name in the pod. The name is empty if no volume is known.
    unresolved: Mapping[str, str] = field(default_factory=dict)
    # The names in `unresolved` that cannot be deferred to the runtime as asked (`opt_in`), and each one's volume if
    # it is known. Waiting does not help.
    refused: Mapping[str, VolumeKey | None] = field(default_factory=dict)
    # Every other object that the resolution looked for, present or not, and those that the node calls will read.
    refs: frozenset[Ref] = frozenset()
    # The versions of the objects that the node calls will read: attachments, secrets, tokens.
    stamps: tuple[tuple[Ref, str], ...] = ()
    # The monotonic time at which this process learned of the pod's deletion; None if it is not deleted.
    deleted_at: float | None = None
    ends_at: float | None = None  # the monotonic time at which the pod's grace period ends; None if it will not end
    unread: bool = False  # the pod or an object that it names could not be read from the disk, and must be read again


@dataclass(slots=True, kw_only=True)
class NodeContext:
    """The node's state that a resolution reads besides the Pod object."""

    find_object: Callable[[Ref], Object | None]  # returns the object that a Ref names
    node: str
    labels: Mapping[str, str] = field(default_factory=dict)  # the node's
    selinux: bool  # whether the node's kernel enforces labels
    opt_in: OptIn


def resolve(pod_object: Object, context: NodeContext, *, now: float, deleted_at: float | None) -> PodWants | None:
    """Return the volumes that a Pod object wants, or None if the pod is bound to another node.

    `now` and `deleted_at` are monotonic times. Pass the `deleted_at` of the pod's last resolution, or None.
    """
    try:
        body = pod_object.read()
        # The hub sends only pods that are bound to a node. So a missing nodeName does not show that the pod has left,
        # and its volumes must stay mounted.
        if str(body["spec"].get("nodeName", "")) not in {context.node, ""}:
            return None
        learned_at = now if deleted_at is None else deleted_at
        deleted_at, ends_at = _deletion(body, learned_at)
        require_name("the pod's uid", pod_object.stamp.uid)
        is_over = ends_at is not None and (ends_at <= now or _all_ended(body))
        pod = _pod(pod_object, body, is_over=is_over)
        if pod.gone:
            return PodWants(pod=pod, deleted_at=deleted_at)
        wants = _Resolver(context, pod, body).wants()
        return replace(wants, deleted_at=deleted_at, ends_at=ends_at)
    except Unresolved as reason:
        why = str(reason)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = _malformed(pod_object.ref, error)
    known = Pod(uid=pod_object.stamp.uid, namespace=pod_object.ref.namespace, name=pod_object.ref.name)
    return without_body(known, why)


def without_body(pod: Pod, why: str, *, unread: bool = False) -> PodWants:
    """Return the entry of a pod whose body cannot be used: it exists, and none of its volumes is resolved."""
    return PodWants(pod=pod, unresolved={"": why}, unread=unread)


def _deletion(body: Body, learned_at: float) -> tuple[float | None, float | None]:
    metadata = body["metadata"]
    if not metadata.get("deletionTimestamp"):
        return None, None
    grace_s = metadata.get("deletionGracePeriodSeconds")
    if grace_s is None:
        grace_s = _GRACE_S
    return learned_at, learned_at + int(grace_s)


def _all_ended(body: Body) -> bool:
    status = body.get("status") or {}
    ended = {
        container["name"]
        for kind in _STATUSES
        for container in status.get(kind) or ()
        if (container.get("state") or {}).get("terminated") is not None
    }
    return all(container["name"] in ended for container in containers_of(body["spec"]))


def _pod(pod_object: Object, body: Body, *, is_over: bool) -> Pod:
    spec = body["spec"]
    ended = (body.get("status") or {}).get("phase") in _ENDED
    context = spec.get("securityContext") or {}
    group = context.get("fsGroup")
    return Pod(
        uid=pod_object.stamp.uid,
        namespace=pod_object.ref.namespace,
        name=pod_object.ref.name,
        service_account=sys.intern(str(spec.get("serviceAccountName") or "default")),
        fs_group=None if group is None else group_id(group),
        fs_group_on_root_mismatch=context.get("fsGroupChangePolicy") == "OnRootMismatch",
        runtime_class=str(spec.get("runtimeClassName") or ""),
        gone=ended or is_over,
    )


@dataclass(slots=True)
class _Resolver:
    _context: NodeContext
    _pod: Pod
    _body: Body
    _refs: set[Ref] = field(default_factory=set)
    _stamps: dict[Ref, str] = field(default_factory=dict)
    _asked: frozenset[str] = frozenset()
    _unread: bool = False

    def wants(self) -> PodWants:
        self._asked = asked_names(self._body["metadata"].get("annotations"))
        volumes: list[PodVolume] = []
        unresolved: dict[str, str] = {}
        refused: dict[str, VolumeKey | None] = {}
        uses = uses_of(self._body["spec"])
        for entry in self._body["spec"].get("volumes") or ():
            name = str(entry["name"])
            if name not in uses:
                continue
            try:
                volume = self._volume(entry, name, uses[name])
            except Unresolved as reason:
                unresolved[name] = str(reason)
            except NotDeferrable as reason:
                unresolved[name] = f"volume {name} cannot be deferred to the runtime: {reason}"
                refused[name] = reason.key
            except OSError as error:  # the object cannot be read from the disk
                unresolved[name] = str(error)
                self._unread = True
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                unresolved[name] = _malformed(None, error)
            else:
                if volume is not None:
                    volumes.append(volume)
        for name in self._asked - {volume.volume_name for volume in volumes} - unresolved.keys():
            unresolved[name] = f"the pod asks to defer {shown(name)}, and mounts no CSI volume of that name"
            refused[name] = None
        return PodWants(
            pod=self._pod,
            volumes=tuple(volumes),
            unresolved=unresolved,
            refused=refused,
            refs=frozenset(self._refs),
            stamps=tuple(sorted(self._stamps.items())),
            unread=self._unread,
        )

    def _volume(self, entry: Body, name: str, use: Use) -> PodVolume | None:
        if entry.get("persistentVolumeClaim"):
            source = entry["persistentVolumeClaim"]
            return self._claimed(name, str(source["claimName"]), use, read_only=source.get("readOnly") is True)
        if entry.get("ephemeral"):
            return self._claimed(name, f"{self._pod.name}-{name}", use, read_only=False, owned=True)
        if entry.get("csi"):
            return self._inline(name, entry["csi"])
        return None

    # ---- volumes of claims -------------------------------------------------------------------------------------------

    def _claimed(self, name: str, claim: str, use: Use, *, read_only: bool, owned: bool = False) -> PodVolume:
        ref = Ref("PersistentVolumeClaim", self._pod.namespace, claim)
        claim_object = self._require(ref)
        body = claim_object.read()
        title = f"PVC {ref.namespace}/{ref.name}"
        if owned and not _is_owned(body, self._pod.uid):
            raise Unresolved(
                f"{title} was not created for pod {self._pod.namespace}/{self._pod.name}: it is not the owner"
            )
        metadata = body["metadata"]
        if metadata.get("deletionTimestamp") and _PROTECTION not in (metadata.get("finalizers") or ()):
            raise Unresolved(f"{title} is being deleted")
        status = body.get("status") or {}
        if status.get("phase") != "Bound":
            raise Unresolved(f"{title} is not bound")
        pv_name = str(body["spec"].get("volumeName") or "")
        if not pv_name:
            raise Unresolved(f"{title} is bound, but does not name its PV")
        volume = self._persistent(pv_name, bound_claim(claim_object, body, pv_name))
        if use.mounted and volume.block:
            raise Unresolved(f"volume {name} has volumeMode Block, but is listed in volumeMounts")
        if use.mapped and not volume.block:
            raise Unresolved(f"volume {name} has volumeMode Filesystem, but is listed in volumeDevices")
        context = self._selinux_context(volume, use)
        want = PodVolume(pod=self._pod, volume=volume, volume_name=name, read_only=read_only, selinux_context=context)
        want = self._deferred(want, use)
        # Each container gets a block volume as a device, at a place of its own (`edge.disk.cdi`).
        return replace(want, uses=tuple(use.places)) if want.volume.block else want

    def _persistent(self, name: str, claim: BoundClaim) -> Volume:
        require_name("the PV's name", name)
        body = self._require(Ref("PersistentVolume", "", name)).read()
        spec = body["spec"]
        _check_owner(name, spec, claim)
        if not spec.get("csi"):
            raise Unresolved(f"PV {name} is not a CSI volume, and the agent mounts no others")
        self._check_affinity(name, spec)
        volume = self._volume_of(name, body, claim)
        if volume.rules.attach_required:
            self._stamp(Ref("VolumeAttachment", "", attachment_name(volume.driver, volume.handle, self._context.node)))
        self._stamp_objects_of_calls(volume)
        return volume

    def _check_affinity(self, name: str, spec: Body) -> None:
        required = (spec.get("nodeAffinity") or {}).get("required")
        node = self._context.node
        if required is not None and not selects(required.get("nodeSelectorTerms") or [], self._context.labels, node):
            raise Unresolved(f"PV {name} is not for this node: its nodeAffinity does not match the labels of {node}")

    def _volume_of(self, name: str, body: Body, claim: BoundClaim) -> Volume:
        spec = body["spec"]
        csi = spec["csi"]
        annotations = body["metadata"].get("annotations")
        parameters = self._class_parameters(spec)
        rules = self._rules(str(csi["driver"]))
        if not rules.persistent:
            raise Unresolved(f"the CSIDriver object of {csi['driver']} does not allow the volume mode Persistent")
        modes = tuple(str(mode) for mode in spec.get("accessModes") or ())
        return Volume(
            driver=str(csi["driver"]),
            handle=str(csi["volumeHandle"]),
            name=name,
            block=spec.get("volumeMode") == "Block",
            fs_type=fs_type_of(f"PV {name}", csi),
            access_modes=modes or ("ReadWriteOnce",),
            mount_options=mount_options_of(f"PV {name}", spec),
            attributes=texts(csi.get("volumeAttributes")),
            stage_secret=secret_ref(csi.get("nodeStageSecretRef")),
            publish_secret=secret_ref(csi.get("nodePublishSecretRef")),
            expand_secret=secret_ref(csi.get("nodeExpandSecretRef")),
            size_bytes=storage_bytes(spec.get("capacity")),
            claim=claim,
            fence=offline_policy.is_fence(annotations, parameters),
            offline_flaw=offline_policy.flaw(annotations, parameters),
            rules=rules,
        )

    # ---- inline volumes ----------------------------------------------------------------------------------------------

    def _inline(self, name: str, csi: Body) -> PodVolume:
        require_name("the volume's name", name)
        driver = str(csi["driver"])
        ref = Ref("CSIDriver", "", driver)
        rules = self._rules(driver)
        if not rules.ephemeral:
            why = "does not list the volume mode Ephemeral" if self._context.find_object(ref) else "is missing"
            raise Unresolved(f"volume {name} is an inline volume of driver {driver}, whose CSIDriver object {why}")
        secret = csi.get("nodePublishSecretRef")
        volume = Volume(
            driver=driver,
            handle=inline_handle(self._pod.uid, name),
            name=name,
            ephemeral=True,
            fs_type=fs_type_of(f"volume {name}", csi),
            attributes=texts(csi.get("volumeAttributes")),
            publish_secret=SecretRef(self._pod.namespace, str(secret["name"])) if secret else None,
            rules=rules,
        )
        self._stamp_objects_of_calls(volume)
        want = PodVolume(pod=self._pod, volume=volume, volume_name=name, read_only=csi.get("readOnly") is True)
        return self._deferred(want, Use(mounted=True))

    # ---- deferral ----------------------------------------------------------------------------------------------------

    def _deferred(self, want: PodVolume, use: Use) -> PodVolume:
        if want.volume_name not in self._asked and not is_true(want.volume.attributes.get(DIRECT_VOLUME)):
            return want
        driver = self._context.find_object(Ref("CSIDriver", "", want.volume.driver))
        annotations = driver.read()["metadata"].get("annotations") if driver is not None else None
        allowed = is_true((annotations or {}).get(ANNOTATION))
        try:
            return self._context.opt_in.decide(want, allowed=allowed, sub_path=use.sub_path)
        except NotDeferrable as reason:
            raise NotDeferrable(str(reason), want.volume.key) from None

    # ---- objects -----------------------------------------------------------------------------------------------------

    def _look_up(self, ref: Ref) -> Object | None:
        self._refs.add(ref)
        return self._context.find_object(ref)

    def _require(self, ref: Ref) -> Object:
        target = self._look_up(ref)
        if target is None:
            kind = "PVC" if ref.kind == "PersistentVolumeClaim" else "PV"
            where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
            raise Unresolved(f"{kind} {where} is not known to this node")
        return target

    def _rules(self, driver: str) -> DriverRules:
        return driver_rules(self._look_up(Ref("CSIDriver", "", driver)))

    def _class_parameters(self, spec: Body) -> Body:
        # Only the offline policy reads them, so the hub sends no others. A missing class asks for nothing.
        name = spec.get("storageClassName")
        if not name:
            return {}
        storage_class = self._look_up(Ref("StorageClass", "", str(name)))
        if storage_class is None:
            return {}
        return storage_class.read().get("parameters") or {}

    def _stamp(self, ref: Ref) -> None:
        target = self._look_up(ref)
        self._stamps[ref] = f"{target.stamp.uid} {target.stamp.version}" if target is not None else ""

    def _stamp_objects_of_calls(self, volume: Volume) -> None:
        for secret in (volume.stage_secret, volume.publish_secret, volume.expand_secret):
            if secret is not None:
                self._stamp(Ref("Secret", secret.namespace, secret.name))
        if volume.rules.token_audiences:
            self._stamp(Ref("ServiceAccountToken", self._pod.namespace, self._pod.uid))

    # ---- SELinux -----------------------------------------------------------------------------------------------------

    def _selinux_context(self, volume: Volume, use: Use) -> str:
        # The label for the mount option of KEP-1710, as far as Kubernetes 1.36 enables it: for volumes with
        # ReadWriteOncePod as their only access mode. A pod with seLinuxChangePolicy Recursive wants no such option: its
        # runtime changes the label of each file instead. Even then several labels in one pod are an error, as in the
        # kubelet (pkg/volume/util/selinux.go, GetMountSELinuxLabel).
        if not (self._context.selinux and volume.rules.selinux_mount and volume.access_modes == ("ReadWriteOncePod",)):
            return ""
        labels = {file_label(options) for options in use.selinux}
        if len(labels) > 1:
            raise Unresolved(f"PV {volume.name} is used with several SELinux labels in one pod")
        security = self._body["spec"].get("securityContext") or {}
        if not labels or security.get("seLinuxChangePolicy") == "Recursive":
            return ""
        return labels.pop()


def _check_owner(name: str, spec: Body, claim: BoundClaim) -> None:
    owner = spec.get("claimRef")
    if not owner:
        raise Unresolved(f"PV {name} is not bound to PVC {claim.namespace}/{claim.name} yet: it has no claimRef")
    if owner.get("uid") != claim.uid:
        raise Unresolved(
            f"PV {name} belongs to another PVC: its claimRef has the uid {owner.get('uid')}, and "
            f"PVC {claim.namespace}/{claim.name} has {claim.uid}"
        )


def _is_owned(body: Body, uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") is True for owner in owners)


def _malformed(ref: Ref | None, error: Exception) -> str:
    reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return f"{ref or 'an object that it needs'} is malformed ({reason})"
