"""Reads the fields of Kubernetes' objects that a pod's volumes depend on.

Rules:

* A malformed field is an error. One that a driver could misunderstand is `Unresolved`, with a reason in words.
* A file system type is one word, and a mount option has no control character: drivers run `mkfs.<type>` as root, and
  some write options into files of lines.
* An SELinux label has only a label's characters. The pod's user chooses a part of it, and a quote would end the mount
  option.
* A name that becomes a part of a path (the pod's uid, the name of a PersistentVolume or an inline volume) has the
  characters of Kubernetes' names: drivers write paths into files of lines, and some into commands of a shell.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.objects.objects import Object
from common.objects.quantity import parse_bytes
from edge.disk.layout import shown
from edge.volumes import BoundClaim, ContainerUse, DriverRules, SecretRef

Body = Mapping[str, Any]

# An annotation of external-resizer: the other nodes that use a ReadWriteMany volume need not expand it.
_NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"

# Kubernetes' largest group id (IsValidGroupID of apimachinery); the kernel takes 4294967295 for "no change".
_LARGEST_GROUP = (1 << 31) - 1

# Wider than Kubernetes' names (DNS-1123, UUIDs). `edge.disk.layout` refuses those that lead elsewhere.
_NAME = re.compile(r"[A-Za-z0-9._:/~-]*")

_FS_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_SELINUX_LABEL = re.compile(r"[A-Za-z0-9._:,-]*")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


class Unresolved(Exception):
    """A volume cannot be resolved; `str()` is the reason."""


@dataclass(slots=True)
class Use:
    """How a pod's containers use one volume."""

    mounted: bool = False
    mapped: bool = False
    sub_path: bool = False
    selinux: list[Body] = field(default_factory=list)
    places: list[ContainerUse] = field(default_factory=list)


def driver_rules(driver_object: Object | None) -> DriverRules:
    if driver_object is None:
        return DriverRules()
    spec = driver_object.read().get("spec") or {}
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
            (str(request.get("audience", "")), int(request.get("expirationSeconds") or 0)) for request in requests
        ),
        tokens_in_secrets=spec.get("serviceAccountTokenInSecrets") is True,
    )


def labels_of(node_object: Object | None) -> dict[str, str]:
    """Return the labels of an object; none if it is missing or not readable."""
    try:
        labels = node_object.read()["metadata"].get("labels") if node_object is not None else None
        return {str(key): str(value) for key, value in (labels or {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def uses_of(spec: Body) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    of_pod = (spec.get("securityContext") or {}).get("seLinuxOptions")
    for container in containers_of(spec):
        own = (container.get("securityContext") or {}).get("seLinuxOptions") or of_pod
        for mount in container.get("volumeMounts") or ():
            use = uses.setdefault(str(mount["name"]), Use())
            use.mounted = True
            use.sub_path |= bool(mount.get("subPath") or mount.get("subPathExpr"))
            use.places += _places(container, mount.get("mountPath"), read_only=mount.get("readOnly") is True)
            if own:
                use.selinux.append(own)
        for device in container.get("volumeDevices") or ():
            use = uses.setdefault(str(device["name"]), Use())
            use.mapped = True
            use.places += _places(container, device.get("devicePath"))
    return uses


def _places(container: Body, path: Any, *, read_only: bool = False) -> list[ContainerUse]:
    return [ContainerUse(str(container["name"]), str(path), read_only)] if path else []


def containers_of(spec: Body) -> Iterator[Body]:
    for kind in _CONTAINERS:
        yield from spec.get(kind) or ()


def file_label(options: Body) -> str:
    # As libselinux builds it. A pod chooses only the user and the level.
    level = options.get("level")
    label = f"{options.get('user') or 'system_u'}:object_r:container_file_t:{level}" if level else ""
    if not _SELINUX_LABEL.fullmatch(label):
        raise Unresolved(f"{shown(label)}, of the pod's seLinuxOptions, is no SELinux label")
    return label


def bound_claim(claim_object: Object, body: Body, volume: str) -> BoundClaim:
    spec = body["spec"]
    status = body["status"]
    allocated = (status.get("allocatedResources") or {}).get("storage")
    annotations = body["metadata"].get("annotations") or {}
    return BoundClaim(
        namespace=claim_object.ref.namespace,
        name=claim_object.ref.name,
        uid=claim_object.stamp.uid,
        volume=volume,
        status_bytes=storage_bytes(status.get("capacity")),
        requested_bytes=storage_bytes((spec.get("resources") or {}).get("requests")),
        allocated_bytes=None if allocated is None else parse_bytes(allocated),
        resize_status=str((status.get("allocatedResourceStatuses") or {}).get("storage") or ""),
        shared="ReadWriteMany" in (spec.get("accessModes") or ()) and _NOT_REQUIRED not in annotations,
    )


def require_name(title: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Unresolved(f"{title} is {shown(name)}, which has characters that no name in Kubernetes has")


def fs_type_of(title: str, csi: Body) -> str:
    fs_type = str(csi.get("fsType") or "")
    if fs_type and not _FS_TYPE.fullmatch(fs_type):
        raise Unresolved(f"{title} has the fsType {shown(fs_type)}, which is not the name of a file system")
    return fs_type


def mount_options_of(title: str, spec: Body) -> tuple[str, ...]:
    options = tuple(str(option) for option in spec.get("mountOptions") or ())
    for option in options:
        if _CONTROL.search(option):
            raise Unresolved(f"{title} has the mount option {shown(option)}, which has a control character")
    return options


def group_id(value: Any) -> int:
    group = int(value)
    if not 0 <= group <= _LARGEST_GROUP:
        raise ValueError(f"the fsGroup {group} is not a group id")
    return group


def storage_bytes(resources: Body | None) -> int:
    return parse_bytes((resources or {}).get("storage", 0))


def texts(fields: Body | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in (fields or {}).items()}


def secret_ref(reference: Body | None) -> SecretRef | None:
    return SecretRef(str(reference.get("namespace") or ""), str(reference["name"])) if reference else None
