"""The match of a claim and a volume, by the rules of Kubernetes' PersistentVolume controller.

Rules (component-helpers, storage/volume/pv_helpers.go; pkg/controller/volume/persistentvolume/pv_controller.go):

* Volume modes and VolumeAttributesClasses are equal; the volume has all access modes of the claim and at least the size
  that the claim requests; nobody deletes the volume.
* The StorageClasses are equal. A class that is missing is the empty one: there is no default class. A volume that names
  the claim may have any class.
* A claim that names no volume also has a selector, which must select the volume's labels. Of all such volumes it gets
  one with as few access modes as possible, of these the smallest, of these the first by name.
"""

from typing import Final

from cloud.kinds.rules.fields import Body
from common.objects.node_selector import holds
from common.objects.quantity import parse_bytes

# The annotation that named the class before Kubernetes 1.6. It still counts, and first.
_CLASS_BEFORE: Final = "volume.beta.kubernetes.io/storage-class"


def class_of(body: Body) -> str:
    annotations = body["metadata"].get("annotations", {})
    return str(annotations.get(_CLASS_BEFORE, body["spec"].get("storageClassName") or ""))


def mismatch(claim: Body, volume: Body, *, any_class: bool = False) -> str:
    """Why a claim cannot be bound to a volume, as the rest of a sentence; empty if it can."""
    wanted = claim["spec"]
    given = volume["spec"]
    if volume["metadata"].get("deletionTimestamp"):
        return "the volume is being deleted"
    if parse_bytes(given["capacity"]["storage"]) < parse_bytes(requested(claim) or 0):
        return "spec.capacity of the volume is less than the claim requests"
    if not any_class and class_of(volume) != class_of(claim):
        return "spec.storageClassName differs"
    for name, default in (("volumeMode", "Filesystem"), ("volumeAttributesClassName", "")):
        if (wanted.get(name) or default) != (given.get(name) or default):
            return f"spec.{name} differs"
    if not set(wanted.get("accessModes", ())) <= set(given["accessModes"]):
        return "spec.accessModes of the volume lacks one of the claim's"
    return ""


def is_selected(claim: Body, volume: Body) -> bool:
    selector = claim["spec"].get("selector") or {}
    labels = volume["metadata"].get("labels", {})
    equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(holds(it, labels.get(it["key"])) for it in selector.get("matchExpressions") or ())


def rank(volume: Body) -> tuple[int, int, str]:
    """The order of the volumes that match a claim: the first one is the best."""
    spec = volume["spec"]
    name = volume["metadata"]["name"]
    return len(set(spec["accessModes"])), parse_bytes(spec["capacity"]["storage"]), name


def requested(claim: Body) -> str:
    storage = ((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage")
    return "" if storage is None else str(storage)
