"""Resolves one Pod object, with its claims, volumes and drivers, into the volumes that the pod wants.

Rules:

* Each volume is either resolved, or has a reason in words, which stays the same until an object changes.
* A volume that no container mounts or maps is not mounted (kubernetes pkg/volume/util, GetPodVolumeNames). Volumes that
  are not CSI volumes are not the agent's.
* The preconditions are the kubelet's (docs/csi-contract.md#checks-before-mounting). The volume task checks those that
  depend on present mounts.
* A malformed object leaves its volumes unresolved; the pod stays known.
* A file system type is one word, and a mount option has no control character: drivers run `mkfs.<type>` as root, and
  some write options into files of lines.
  An SELinux label, of which a pod's user chooses a part, has a label's characters: a quote would end its mount option.
* A name that becomes a part of a path (the pod's uid, the name of a PersistentVolume or an inline volume) has the
  characters of Kubernetes' names: drivers write paths into files of lines, and some into commands of a shell.
* A pod that is being deleted is over when its status says that all containers have ended. It is also over when its
  grace period has passed since this process learned of the deletion. The deletion timestamp does not count: another
  machine wrote it, and the object may have arrived late. Until then nothing on this node had stopped the containers.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from common.objects import offline_policy
from common.objects.node_selector import selects
from common.objects.objects import Object, Ref
from common.objects.quantity import parse_bytes
from edge.disk.layout import shown
from edge.volumes import (
    BoundClaim,
    ContainerUse,
    DriverRules,
    Pod,
    PodVolume,
    SecretRef,
    Volume,
    attachment_name,
    inline_handle,
)
from edge.wanted.opt_in import ANNOTATION, ATTRIBUTE, NotDeferrable, OptIn, asked_names, is_true

Body = Mapping[str, Any]

# While a claim has this finalizer, its deletion waits for the pods that use it (the kubelet's populator).
_PROTECTION = "kubernetes.io/pvc-protection"

# An annotation of external-resizer: the other nodes that use a ReadWriteMany volume need not expand it.
_NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"

_ENDED = ("Succeeded", "Failed")

_GRACE_S = 30  # the grace period in seconds of a pod that gives none (core/v1, DefaultTerminationGracePeriodSeconds)

# Kubernetes' largest group id (IsValidGroupID of apimachinery); the kernel takes 4294967295 for "no change".
_LARGEST_GROUP = (1 << 31) - 1

# Wider than Kubernetes' names (DNS-1123, UUIDs). `edge.disk.layout` refuses those that lead elsewhere.
_NAME = re.compile(r"[A-Za-z0-9._:/~-]*")

_FS_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_SELINUX_LABEL = re.compile(r"[A-Za-z0-9._:,-]*")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWants:
    """The volumes that one pod wants. Two equal values ask for the same mounts."""

    pod: Pod
    volumes: tuple[PodVolume, ...] = ()
    # Why other volumes are not resolved, by the pod's name of the volume.
    unresolved: Mapping[str, str] = field(default_factory=dict)
    # The names in `unresolved` whose deferral was asked for and is impossible. Waiting does not help.
    refused: frozenset[str] = frozenset()
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

    look: Callable[[Ref], Object | None]  # returns the object that a Ref names
    node: str
    labels: Mapping[str, str] = field(default_factory=dict)  # the node's
    selinux: bool  # whether the node's kernel enforces labels
    opt_in: OptIn


class _Unresolved(Exception):
    """A volume cannot be resolved; `str()` is the reason."""


def resolve(found: Object, context: NodeContext, *, now: float, deleted_at: float | None) -> PodWants | None:
    """Return what a Pod object wants; None if it is another node's. `now` and `deleted_at` are monotonic times."""
    try:
        body = found.read()
        # An empty nodeName is a malformed object, not another node's pod.
        if str(body["spec"].get("nodeName", "")) not in {context.node, ""}:
            return None
        deleted_at, ends_at = _deletion(body, now if deleted_at is None else deleted_at)
        _require_name("the pod's uid", found.stamp.uid)
        pod = _pod(found, body, is_over=ends_at is not None and (ends_at <= now or _all_ended(body)))
        if pod.gone:
            return PodWants(pod=pod, deleted_at=deleted_at)
        wants = _Resolver(context, pod, body).wants()
        return replace(wants, deleted_at=deleted_at, ends_at=ends_at)
    except _Unresolved as reason:
        why = str(reason)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = _malformed(found.ref, error)
    known = Pod(uid=found.stamp.uid, namespace=found.ref.namespace, name=found.ref.name)
    return without_body(known, why)


def without_body(pod: Pod, why: str, *, unread: bool = False) -> PodWants:
    """Return the entry of a pod whose body cannot be used: it exists, and none of its volumes is resolved."""
    return PodWants(pod=pod, unresolved={"": why}, unread=unread)


def driver_rules(found: Object | None) -> DriverRules:
    if found is None:
        return DriverRules()
    spec = found.read().get("spec") or {}
    modes = spec.get("volumeLifecycleModes") or ["Persistent"]
    requests = spec.get("tokenRequests") or []
    return DriverRules(
        attach_required=spec.get("attachRequired") is not False,
        pod_info=spec.get("podInfoOnMount") is True,
        persistent="Persistent" in modes,
        ephemeral="Ephemeral" in modes,
        fs_group_policy=str(spec.get("fsGroupPolicy") or "ReadWriteOnceWithFSType"),
        selinux_mount=spec.get("seLinuxMount") is True,
        requires_republish=spec.get("requiresRepublish") is True,
        token_audiences=tuple(
            (str(one.get("audience", "")), int(one.get("expirationSeconds") or 0)) for one in requests
        ),
        tokens_in_secrets=spec.get("serviceAccountTokenInSecrets") is True,
    )


def labels_of(found: Object | None) -> dict[str, str]:
    """Return the labels of an object; none if it is missing or not readable."""
    try:
        labels = found.read()["metadata"].get("labels") if found is not None else None
        return {str(key): str(value) for key, value in (labels or {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _deletion(body: Body, known_at: float) -> tuple[float | None, float | None]:
    metadata = body["metadata"]
    if not metadata.get("deletionTimestamp"):
        return None, None
    grace_s = metadata.get("deletionGracePeriodSeconds")
    return known_at, known_at + (_GRACE_S if grace_s is None else int(grace_s))


def _all_ended(body: Body) -> bool:
    status = body.get("status") or {}
    ended = {
        one["name"]
        for kind in _STATUSES
        for one in status.get(kind) or ()
        if (one.get("state") or {}).get("terminated") is not None
    }
    return all(container["name"] in ended for container in _containers(body["spec"]))


def _pod(found: Object, body: Body, *, is_over: bool) -> Pod:
    spec = body["spec"]
    ended = (body.get("status") or {}).get("phase") in _ENDED
    context = spec.get("securityContext") or {}
    group = context.get("fsGroup")
    return Pod(
        uid=found.stamp.uid,
        namespace=found.ref.namespace,
        name=found.ref.name,
        service_account=sys.intern(str(spec.get("serviceAccountName") or "default")),
        fs_group=None if group is None else _group(group),
        fs_group_on_root_mismatch=context.get("fsGroupChangePolicy") == "OnRootMismatch",
        runtime_class=str(spec.get("runtimeClassName") or ""),
        gone=ended or is_over,
    )


@dataclass(slots=True)
class _Use:
    mounted: bool = False
    mapped: bool = False
    sub_path: bool = False
    selinux: list[Body] = field(default_factory=list)
    places: list[ContainerUse] = field(default_factory=list)


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
        refused: set[str] = set()
        uses = _uses(self._body["spec"])
        for given in self._body["spec"].get("volumes") or ():
            name = str(given["name"])
            if name not in uses:
                continue
            try:
                one = self._volume(given, name, uses[name])
            except _Unresolved as reason:
                unresolved[name] = str(reason)
            except NotDeferrable as reason:
                unresolved[name] = f"volume {name} cannot be deferred to the runtime: {reason}"
                refused.add(name)
            except OSError as error:  # the object cannot be read from the disk
                unresolved[name], self._unread = str(error), True
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                unresolved[name] = _malformed(None, error)
            else:
                if one is not None:
                    volumes.append(one)
        for name in self._asked - {one.volume_name for one in volumes} - unresolved.keys():
            unresolved[name] = f"the pod asks to defer {shown(name)}, and mounts no CSI volume of that name"
            refused.add(name)
        return PodWants(
            pod=self._pod,
            volumes=tuple(volumes),
            unresolved=unresolved,
            refused=frozenset(refused),
            refs=frozenset(self._refs),
            stamps=tuple(sorted(self._stamps.items())),
            unread=self._unread,
        )

    def _volume(self, given: Body, name: str, use: _Use) -> PodVolume | None:
        if given.get("persistentVolumeClaim"):
            source = given["persistentVolumeClaim"]
            return self._claimed(name, str(source["claimName"]), use, read_only=source.get("readOnly") is True)
        if given.get("ephemeral"):
            return self._claimed(name, f"{self._pod.name}-{name}", use, read_only=False, owned=True)
        if given.get("csi"):
            return self._inline(name, given["csi"])
        return None

    # ---- volumes of claims -------------------------------------------------------------------------------------------

    def _claimed(self, name: str, claim: str, use: _Use, *, read_only: bool, owned: bool = False) -> PodVolume:
        ref = Ref("PersistentVolumeClaim", self._pod.namespace, claim)
        found = self._require(ref)
        body = found.read()
        title = f"PVC {ref.namespace}/{ref.name}"
        if owned and not _is_owned(body, self._pod.uid):
            raise _Unresolved(
                f"{title} was not created for pod {self._pod.namespace}/{self._pod.name}: it is not the owner"
            )
        metadata = body["metadata"]
        if metadata.get("deletionTimestamp") and _PROTECTION not in (metadata.get("finalizers") or ()):
            raise _Unresolved(f"{title} is being deleted")
        status = body.get("status") or {}
        if status.get("phase") != "Bound":
            raise _Unresolved(f"{title} is not bound")
        bound = str(body["spec"].get("volumeName") or "")
        if not bound:
            raise _Unresolved(f"{title} is bound, but does not name its PV")
        volume = self._persistent(bound, _claim(found, body, bound))
        if use.mounted and volume.block:
            raise _Unresolved(f"volume {name} has volumeMode Block, but is listed in volumeMounts")
        if use.mapped and not volume.block:
            raise _Unresolved(f"volume {name} has volumeMode Filesystem, but is listed in volumeDevices")
        context = self._selinux_context(volume, use)
        want = PodVolume(pod=self._pod, volume=volume, volume_name=name, read_only=read_only, selinux_context=context)
        want = self._deferred(want, use)
        return replace(want, uses=tuple(use.places)) if want.volume.block else want

    def _persistent(self, name: str, claim: BoundClaim) -> Volume:
        _require_name("the PV's name", name)
        ref = Ref("PersistentVolume", "", name)
        body = self._require(ref).read()
        spec = body["spec"]
        owner = spec.get("claimRef")
        if not owner:
            raise _Unresolved(f"PV {name} is not bound to PVC {claim.namespace}/{claim.name} yet: it has no claimRef")
        if owner.get("uid") != claim.uid:
            raise _Unresolved(
                f"PV {name} belongs to another PVC: its claimRef has the uid {owner.get('uid')}, and "
                f"PVC {claim.namespace}/{claim.name} has {claim.uid}"
            )
        csi = spec.get("csi")
        if not csi:
            raise _Unresolved(f"PV {name} is not a CSI volume, and the agent mounts no others")
        required, node = (spec.get("nodeAffinity") or {}).get("required"), self._context.node
        if required is not None and not selects(required.get("nodeSelectorTerms") or [], self._context.labels, node):
            raise _Unresolved(f"PV {name} is not for this node: its nodeAffinity does not match the labels of {node}")
        annotations, parameters = body["metadata"].get("annotations"), self._class_parameters(spec)
        rules = self._rules(str(csi["driver"]))
        if not rules.persistent:
            raise _Unresolved(f"the CSIDriver object of {csi['driver']} does not allow the volume mode Persistent")
        modes = tuple(str(mode) for mode in spec.get("accessModes") or ())
        volume = Volume(
            driver=str(csi["driver"]),
            handle=str(csi["volumeHandle"]),
            name=name,
            block=spec.get("volumeMode") == "Block",
            fs_type=_fs_type(f"PV {name}", csi),
            access_modes=modes or ("ReadWriteOnce",),
            mount_options=_mount_options(f"PV {name}", spec),
            attributes=_strings(csi.get("volumeAttributes")),
            stage_secret=_secret(csi.get("nodeStageSecretRef")),
            publish_secret=_secret(csi.get("nodePublishSecretRef")),
            expand_secret=_secret(csi.get("nodeExpandSecretRef")),
            size_bytes=_storage(spec.get("capacity")),
            claim=claim,
            fence=offline_policy.is_fence(annotations, parameters),
            offline_flaw=offline_policy.flaw(annotations, parameters),
            rules=rules,
        )
        if rules.attach_required:
            self._stamp(Ref("VolumeAttachment", "", attachment_name(volume.driver, volume.handle, self._context.node)))
        self._stamp_calls(volume)
        return volume

    # ---- inline volumes ----------------------------------------------------------------------------------------------

    def _inline(self, name: str, csi: Body) -> PodVolume:
        _require_name("the volume's name", name)
        driver = str(csi["driver"])
        ref = Ref("CSIDriver", "", driver)
        rules = self._rules(driver)
        if not rules.ephemeral:
            why = "does not list the volume mode Ephemeral" if self._context.look(ref) else "is missing"
            raise _Unresolved(f"volume {name} is an inline volume of driver {driver}, whose CSIDriver object {why}")
        secret = csi.get("nodePublishSecretRef")
        volume = Volume(
            driver=driver,
            handle=inline_handle(self._pod.uid, name),
            name=name,
            ephemeral=True,
            fs_type=_fs_type(f"volume {name}", csi),
            attributes=_strings(csi.get("volumeAttributes")),
            publish_secret=SecretRef(self._pod.namespace, str(secret["name"])) if secret else None,
            rules=rules,
        )
        self._stamp_calls(volume)
        want = PodVolume(pod=self._pod, volume=volume, volume_name=name, read_only=csi.get("readOnly") is True)
        return self._deferred(want, _Use(mounted=True))

    # ---- deferral ----------------------------------------------------------------------------------------------------

    def _deferred(self, want: PodVolume, use: _Use) -> PodVolume:
        if want.volume_name not in self._asked and not is_true(want.volume.attributes.get(ATTRIBUTE)):
            return want
        found = self._context.look(Ref("CSIDriver", "", want.volume.driver))
        annotations = (found.read()["metadata"].get("annotations") if found is not None else None) or {}
        allowed = is_true(annotations.get(ANNOTATION))
        return self._context.opt_in.decide(want, allowed=allowed, sub_path=use.sub_path)

    # ---- objects -----------------------------------------------------------------------------------------------------

    def _look_up(self, ref: Ref) -> Object | None:
        self._refs.add(ref)
        return self._context.look(ref)

    def _require(self, ref: Ref) -> Object:
        found = self._look_up(ref)
        if found is None:
            kind = "PVC" if ref.kind == "PersistentVolumeClaim" else "PV"
            where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
            raise _Unresolved(f"{kind} {where} is not known to this node")
        return found

    def _rules(self, driver: str) -> DriverRules:
        return driver_rules(self._look_up(Ref("CSIDriver", "", driver)))

    def _class_parameters(self, spec: Body) -> Body:
        # The hub sends only some of a StorageClass's parameters.
        name = spec.get("storageClassName")
        if not name:
            return {}
        found = self._look_up(Ref("StorageClass", "", str(name)))
        return (found.read().get("parameters") or {}) if found is not None else {}

    def _stamp(self, ref: Ref) -> None:
        found = self._look_up(ref)
        self._stamps[ref] = f"{found.stamp.uid} {found.stamp.version}" if found is not None else ""

    def _stamp_calls(self, volume: Volume) -> None:
        for secret in (volume.stage_secret, volume.publish_secret, volume.expand_secret):
            if secret is not None:
                self._stamp(Ref("Secret", secret.namespace, secret.name))
        if volume.rules.token_audiences:
            self._stamp(Ref("ServiceAccountToken", self._pod.namespace, self._pod.uid))

    # ---- SELinux -----------------------------------------------------------------------------------------------------

    def _selinux_context(self, volume: Volume, use: _Use) -> str:
        # The label for the mount option of KEP-1710, as far as Kubernetes 1.36 enables it: for volumes with
        # ReadWriteOncePod as their only access mode. A pod with seLinuxChangePolicy Recursive wants no such option: its
        # runtime changes the label of each file instead. As for the kubelet, several labels in one pod are an error all
        # the same (pkg/volume/util/selinux.go, GetMountSELinuxLabel).
        if not (self._context.selinux and volume.rules.selinux_mount and volume.access_modes == ("ReadWriteOncePod",)):
            return ""
        labels = {_file_label(options) for options in use.selinux}
        if wrong := [label for label in labels if not _SELINUX_LABEL.fullmatch(label)]:
            raise _Unresolved(f"{shown(wrong[0])}, of the pod's seLinuxOptions, is no SELinux label")
        if len(labels) > 1:
            raise _Unresolved(f"PV {volume.name} is used with several SELinux labels in one pod")
        security = self._body["spec"].get("securityContext") or {}
        return labels.pop() if labels and security.get("seLinuxChangePolicy") != "Recursive" else ""


def _uses(spec: Body) -> dict[str, _Use]:
    uses: dict[str, _Use] = {}
    of_pod = (spec.get("securityContext") or {}).get("seLinuxOptions")
    for container in _containers(spec):
        own = (container.get("securityContext") or {}).get("seLinuxOptions") or of_pod
        for mount in container.get("volumeMounts") or ():
            use = uses.setdefault(str(mount["name"]), _Use())
            use.mounted = True
            use.sub_path |= bool(mount.get("subPath") or mount.get("subPathExpr"))
            use.places += _places(container, mount.get("mountPath"), read_only=mount.get("readOnly") is True)
            if own:
                use.selinux.append(own)
        for device in container.get("volumeDevices") or ():
            use = uses.setdefault(str(device["name"]), _Use())
            use.mapped = True
            use.places += _places(container, device.get("devicePath"))
    return uses


def _places(container: Body, path: Any, *, read_only: bool = False) -> list[ContainerUse]:
    return [ContainerUse(str(container["name"]), str(path), read_only)] if path else []


def _containers(spec: Body) -> Iterator[Body]:
    for kind in _CONTAINERS:
        yield from spec.get(kind) or ()


def _file_label(options: Body) -> str:
    # As libselinux builds it. A pod chooses only the user and the level.
    level = options.get("level")
    return f"{options.get('user') or 'system_u'}:object_r:container_file_t:{level}" if level else ""


def _claim(found: Object, body: Body, volume: str) -> BoundClaim:
    spec, status = body["spec"], body["status"]
    allocated = (status.get("allocatedResources") or {}).get("storage")
    annotations = body["metadata"].get("annotations") or {}
    return BoundClaim(
        namespace=found.ref.namespace,
        name=found.ref.name,
        uid=found.stamp.uid,
        volume=volume,
        status_bytes=_storage(status.get("capacity")),
        requested_bytes=_storage((spec.get("resources") or {}).get("requests")),
        allocated_bytes=None if allocated is None else parse_bytes(allocated),
        resize_status=str((status.get("allocatedResourceStatuses") or {}).get("storage") or ""),
        shared="ReadWriteMany" in (spec.get("accessModes") or ()) and _NOT_REQUIRED not in annotations,
    )


def _require_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise _Unresolved(f"{what} is {shown(name)}, which has characters that no name in Kubernetes has")


def _fs_type(what: str, csi: Body) -> str:
    found = str(csi.get("fsType") or "")
    if found and not _FS_TYPE.fullmatch(found):
        raise _Unresolved(f"{what} has the fsType {shown(found)}, which is not the name of a file system")
    return found


def _mount_options(what: str, spec: Body) -> tuple[str, ...]:
    found = tuple(str(option) for option in spec.get("mountOptions") or ())
    for option in found:
        if _CONTROL.search(option):
            raise _Unresolved(f"{what} has the mount option {shown(option)}, which has a control character")
    return found


def _group(given: Any) -> int:
    group = int(given)
    if not 0 <= group <= _LARGEST_GROUP:
        raise ValueError(f"the fsGroup {group} is not a group id")
    return group


def _is_owned(body: Body, uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") is True for owner in owners)


def _storage(resources: Body | None) -> int:
    return parse_bytes((resources or {}).get("storage", 0))


def _strings(given: Body | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in (given or {}).items()}


def _secret(given: Body | None) -> SecretRef | None:
    return SecretRef(str(given.get("namespace") or ""), str(given["name"])) if given else None


def _malformed(ref: Ref | None, error: Exception) -> str:
    what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return f"{ref or 'an object that it needs'} is malformed ({what})"
