"""The kinds of facts: the objects that a node may tell of, and the fields that the hub keeps."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cloud.kinds.persistentvolumeclaims import CONDITION, check_status
from cloud.kinds.rules.fields import Body, FieldError, Fields, is_dns_label, is_uid
from cloud.kinds.rules.kind_rules import pick, quantities, without_empty
from common.objects import left_over, offline_policy, pod_fact, sole_use
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.parsers import is_name

# By kind. A CSINode of a hundred drivers has 20 KiB. A node may have thousands of the others, of 6 KiB at most.
MOST_FACT_BYTES: Final = {
    "CSINode": 256 * 1024,
    "Node": 256 * 1024,
    "PersistentVolumeClaim": 16 * 1024,
    "Pod": pod_fact.MOST_BYTES,
    "Event": 16 * 1024,
    sole_use.KIND: 4 * 1024,
}

NODE_KINDS: Final = ("CSINode", "Node")  # a node tells of its own ones alone
_API_VERSIONS: Final = {"CSINode": "storage.k8s.io/v1", sole_use.KIND: "csi-bridge.io/v1"}  # of all others: v1
IN_USE_PREFIX: Final = "kubernetes.io/csi/"  # begins the name of each CSI volume in `volumesInUse`

_EVENT_TEXTS: Final = (
    "reason", "message", "type", "firstTimestamp", "lastTimestamp", "eventTime", "reportingComponent",
    "reportingInstance", "action",
)  # fmt: skip
_AMOUNTS: Final = ("capacity", "allocatedResources")
# The resources that a node may tell. Nobody hands out any other resource on a node without a kubelet.
_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage", "pods")
_NODE_INFO: Final = (
    "architecture", "bootID", "kernelVersion", "kubeletVersion", "machineID", "operatingSystem", "osImage",
    "systemUUID",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """The state of one object that a node told, and the time at which the hub got it."""

    stamp: Stamp
    body: Body
    told_ns: int = field(default_factory=time.time_ns, compare=False)

    @property
    def is_part(self) -> bool:
        """Whether this is only a part of the fact, from the records (`fact_table`). Agents set versions."""
        return not self.stamp.version


def name_in_use(driver: str, volume: str) -> str:
    """The name of a volume in `volumesInUse` (kubernetes pkg/volume/util `GetUniqueVolumeName`)."""
    return f"{IN_USE_PREFIX}{driver}^{volume}"


def check_ref(node: str, ref: Ref) -> None:
    """Raise ValueError if a node may not tell of an object, or Kubernetes does not allow one of their names."""
    if not is_name(node):
        raise ValueError("Kubernetes does not allow the node's name, so none of its facts is accepted")
    if ref.kind not in _KEPT:
        raise ValueError(f"node {node} sends a kind of object that no node may send")
    if ref.kind in NODE_KINDS:
        if ref != Ref(ref.kind, "", node):
            raise ValueError(f"node {node} sends the {ref.kind} of another node")
        return
    is_namespace = not ref.namespace if ref.kind == sole_use.KIND else is_dns_label(ref.namespace)
    if not is_namespace or not is_name(ref.name):
        raise ValueError(f"node {node} sends a {ref.kind} whose name Kubernetes does not allow")


def read_fact(obj: Object) -> Body:
    """The part of a fact that the hub keeps. Raises ValueError if it is too large, or a field is wrong."""
    most_bytes = MOST_FACT_BYTES[obj.ref.kind]
    if len(obj.body) > most_bytes:
        raise ValueError(f"{obj.ref} has {len(obj.body)} bytes, and such a fact has at most {most_bytes}")
    if obj.stamp.uid and not is_uid(obj.stamp.uid):
        raise ValueError(f"{obj.ref} has a UID that is not valid")
    try:
        kept = keep(obj.read(), obj.ref)
        encode_body(kept)
    except FieldError as error:
        raise ValueError(f"{obj.ref}: {error}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{obj.ref} has a character that UTF-8 cannot encode") from None
    except RecursionError:
        raise ValueError(f"{obj.ref} is nested too deeply") from None
    return kept


def keep(body: Body, ref: Ref) -> Body:
    """The fields that the hub keeps of a fact's body; of its own result, all. Raises FieldError."""
    return _KEPT[ref.kind](Fields(body), ref)


def as_object(ref: Ref, body: Body) -> dict[str, Any]:
    named = {"name": ref.name, **({"namespace": ref.namespace} if ref.namespace else {})}
    metadata = {**named, **body.get("metadata", {})}
    return {**body, "apiVersion": _API_VERSIONS.get(ref.kind, "v1"), "kind": ref.kind, "metadata": metadata}


def _kept_csi_node(fields: Fields, _ref: Ref) -> dict[str, Any]:
    drivers = []
    for driver in fields.part("spec").parts("drivers"):
        driver.driver("name")
        driver.text("nodeID", required=True)
        driver.texts("topologyKeys")
        driver.part("allocatable").number("count")
        kept = pick(driver.body, "name", "nodeID", "topologyKeys")
        drivers.append({**kept, **without_empty({"allocatable": pick(driver.body.get("allocatable"), "count")})})
    if len({driver["name"] for driver in drivers}) < len(drivers):
        fields.part("spec").refuse("drivers", "has a driver twice")
    return {**_kept_metadata(fields), "spec": {"drivers": drivers}}


def _kept_node(fields: Fields, _ref: Ref) -> dict[str, Any]:
    status = fields.part("status")
    in_use = status.texts("volumesInUse")
    capacity = status.part("capacity")
    for name in _RESOURCES:
        capacity.quantity(name)
    info = pick(status.text_map("nodeInfo"), *_NODE_INFO)
    kept: dict[str, Any] = {"volumesInUse": in_use, "capacity": pick(capacity.body, *_RESOURCES), "nodeInfo": info}
    if status.has("leftOver"):
        kept["leftOver"] = _kept_left_over(status.part("leftOver"))
    if status.has("fence"):
        kept["fence"] = _kept_fence(status.part("fence"))
    return {**_kept_metadata(fields), **without_empty({"status": without_empty(quantities(kept, "capacity"))})}


def _kept_fence(told: Fields) -> dict[str, Any]:
    lease_s = told.number("leaseSeconds") or 0
    watchdog_s = told.number("watchdogSeconds") or 0
    return offline_policy.write(lease_s, watchdog_s, told.texts("staged"), told.texts("staging"))


def _kept_left_over(told: Fields) -> dict[str, Any]:
    volumes = told.parts("volumes")
    for volume in volumes:
        for name in left_over.TEXTS:
            volume.text(name)
    return {"more": told.number("more") or 0, "volumes": [pick(it.body, *left_over.TEXTS) for it in volumes]}


def _kept_metadata(fields: Fields) -> dict[str, Any]:
    metadata = fields.part("metadata")
    annotations = metadata.text_map("annotations")
    return without_empty(
        {"metadata": without_empty({"labels": metadata.text_map("labels"), "annotations": annotations})}
    )


def _kept_claim(fields: Fields, _ref: Ref) -> dict[str, Any]:
    uid = fields.part("metadata").uid("uid")
    volume = fields.part("spec").name("volumeName")
    status = fields.part("status", required=True)
    check_status(status)
    kept = quantities({name: pick(status.body[name], "storage") for name in _AMOUNTS if status.has(name)}, *_AMOUNTS)
    if status.has("allocatedResourceStatuses"):
        kept["allocatedResourceStatuses"] = pick(status.body["allocatedResourceStatuses"], "storage")
    if status.has("conditions"):
        kept["conditions"] = [pick(condition, *CONDITION) for condition in status.body["conditions"]]
    named = {"metadata": without_empty({"uid": uid or {}}), "spec": without_empty({"volumeName": volume or {}})}
    return {**without_empty(named), "status": kept}


def _kept_pod(fields: Fields, _ref: Ref) -> dict[str, Any]:
    metadata = fields.part("metadata", required=True)
    metadata.text("uid", required=True)
    uid = metadata.uid("uid")
    status = fields.part("status", required=True)
    conditions = status.parts("conditions", required=True)
    for condition in conditions:
        condition.text("type", required=True, allowed=(pod_fact.MOUNTED, pod_fact.RELEASED))
        condition.text("status", required=True, allowed=("True", "False"))
        for name in ("reason", "message"):
            condition.text(name)
    if len({condition.body["type"] for condition in conditions}) < len(conditions):
        status.refuse("conditions", "has a condition twice")
    kept = {"conditions": [pick(condition.body, "type", "status", "reason", "message") for condition in conditions]}
    if status.has("volumes"):
        kept["volumes"] = [_kept_volume(volume) for volume in status.parts("volumes")]
        if len({volume["name"] for volume in kept["volumes"]}) < len(kept["volumes"]):
            status.refuse("volumes", "has a volume twice")
    return {"metadata": {"uid": uid}, "status": kept}


def _kept_volume(volume: Fields) -> dict[str, Any]:
    volume.text("name")
    volume.text("state", required=True)
    volume.text("reason")
    return {"name": "", **pick(volume.body, "name", "state", "reason")}


def _kept_sole_use(fields: Fields, _ref: Ref) -> dict[str, Any]:
    volume = fields.part("spec", required=True)
    volume.driver("driver")
    volume.text("volumeHandle", required=True)
    return {"spec": pick(volume.body, "driver", "volumeHandle")}


def _kept_event(fields: Fields, ref: Ref) -> dict[str, Any]:
    involved = fields.part("involvedObject", required=True)
    for name in ("kind", "name"):
        involved.text(name, required=True)
    if involved.text("namespace") not in ("", ref.namespace):
        involved.refuse("namespace", "is not that of the event")
    for name in ("involvedObject", "source"):
        fields.text_map(name)
    for name in _EVENT_TEXTS:
        fields.text(name)
    fields.number("count")
    return pick(fields.body, "involvedObject", *_EVENT_TEXTS, "count", "source")


_KEPT: Final[Mapping[str, Callable[[Fields, Ref], dict[str, Any]]]] = {
    "CSINode": _kept_csi_node,
    "Node": _kept_node,
    "PersistentVolumeClaim": _kept_claim,
    "Pod": _kept_pod,
    "Event": _kept_event,
    sole_use.KIND: _kept_sole_use,
}
