"""A claim, some volumes, and the one of them that Kubernetes binds the claim to."""

from dataclasses import dataclass, field
from typing import Any

from tests.kit.cluster_objects import claim as claim_of
from tests.kit.cluster_objects import volume as volume_of

_BEFORE = "volume.beta.kubernetes.io/storage-class"


@dataclass(frozen=True)
class Case:
    """`volumes` are the specs of `a`, `b` …, with their `labels` and `annotations`; `has` names one, or none."""

    why: str
    has: str
    claim: dict[str, Any] = field(default_factory=dict)
    volumes: tuple[dict[str, Any], ...] = ({},)

    def __str__(self) -> str:
        return self.why

    def objects(self, *, prefix: str = "", namespace: str = "default") -> list[Any]:
        """The volumes, and the claim `data` at last. `prefix` begins the names of the volumes."""
        made = [_volume(f"{prefix}{name}", dict(it), namespace) for name, it in zip("abcd", self.volumes, strict=False)]
        given = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "", **self.claim}
        annotations = given.pop("annotations", {})
        if "volumeName" in given:
            given["volumeName"] = f"{prefix}{given['volumeName']}"
        data = claim_of("data", namespace=namespace)
        data["metadata"]["annotations"] = annotations
        data["spec"] |= {name: value for name, value in given.items() if value is not None}
        return [*made, data]


def _volume(name: str, given: dict[str, Any], namespace: str) -> Any:
    metadata = {part: given.pop(part) for part in ("labels", "annotations") if part in given}
    if "claimRef" in given:
        ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace}
        given["claimRef"] = {**ref, **given["claimRef"]}
    made = volume_of(name, **given)
    made["metadata"] |= metadata
    return made


def _labelled(expression: dict[str, Any], has: str) -> Case:
    why = f"{expression['operator']} selects {has}"
    volumes = ({"labels": {"tier": "gold"}}, {"labels": {"tier": "tin"}, "size": "2Gi"}, {"size": "3Gi"})
    return Case(why, has, {"selector": {"matchExpressions": [{"key": "tier", **expression}]}}, volumes)


_DATA, _RWX = {"name": "data"}, ["ReadWriteOnce", "ReadWriteMany"]
_GOLD = {"selector": {"matchLabels": {"tier": "gold"}}}

CASES = (
    Case("a free volume that matches", "a"),
    Case("the smallest volume", "b", {}, ({"size": "3Gi"}, {"size": "2Gi"}, {"size": "4Gi"})),
    Case("no volume that is smaller than the request", "", {}, ({"size": "1023Mi"},)),
    Case("the volume with the fewest modes, not the smallest one", "b", {}, ({"accessModes": _RWX}, {"size": "2Gi"})),
    Case("a volume with more modes", "a", {}, ({"accessModes": _RWX},)),
    Case("no volume without one of the modes", "", {"accessModes": ["ReadWriteMany"]}),
    Case("the volume of the class", "b", {"storageClassName": "k"}, ({}, {"storageClassName": "k"})),
    Case("no volume of another class", "", {"storageClassName": "k"}, ({"storageClassName": "l"},)),
    Case("no volume of a class if it wants none", "", {}, ({"storageClassName": "k"},)),
    Case("a volume without a class if it names none", "a", {"storageClassName": None}),
    Case("no volume with a class if it names none", "", {"storageClassName": None}, ({"storageClassName": "k"},)),
    Case("the class of the older annotation", "a", {"storageClassName": "k"}, ({"annotations": {_BEFORE: "k"}},)),
    Case("a block volume", "b", {"volumeMode": "Block"}, ({}, {"volumeMode": "Block"})),
    Case("no block volume as a file system", "", {}, ({"volumeMode": "Block"},)),
    Case("the volume with its attributes class", "b", {"volumeAttributesClassName": "v"}, (
        {}, {"volumeAttributesClassName": "v"},
    )),
    Case("no volume with an attributes class if it wants none", "", {}, ({"volumeAttributesClassName": "v"},)),
    Case("the volume with the label", "b", _GOLD, ({}, {"size": "2Gi", "labels": {"tier": "gold", "x": "y"}})),
    Case("no volume with another label", "", _GOLD, ({"labels": {"tier": "tin"}},)),
    Case("any volume for an empty selector", "a", {"selector": {}}),
    _labelled({"operator": "In", "values": ["lead", "tin"]}, "b"),
    _labelled({"operator": "NotIn", "values": ["gold", "tin"]}, "c"),
    _labelled({"operator": "Exists"}, "a"),
    _labelled({"operator": "DoesNotExist"}, "c"),
    Case("the named volume, whatever its labels", "b", {"volumeName": "b", **_GOLD}, ({}, {"size": "9Gi"})),
    Case("no other than the named volume", "", {"volumeName": "b"}, ({"size": "2Gi"},)),
    Case("no named volume that is too small", "", {"volumeName": "a"}, ({"size": "1Mi"},)),
    Case("no named volume of another class", "", {"volumeName": "a"}, ({"storageClassName": "k"},)),
    Case("no named volume of another mode", "", {"volumeName": "a"}, ({"volumeMode": "Block"},)),
    Case("the volume that names it, whatever its class", "b", _GOLD, (
        {}, {"storageClassName": "k", "claimRef": _DATA},
    )),
    Case("no volume that names it and is too small", "", {}, ({"size": "1Mi", "claimRef": _DATA},)),
    Case("a volume that it names and that names it, whatever else", "a", {"volumeName": "a", "volumeMode": "Block"}, (
        {"size": "1Mi", "storageClassName": "k", "claimRef": _DATA},
    )),
    Case("no volume that names another claim", "", {}, ({"claimRef": {"name": "other"}},)),
    Case("no volume that names an earlier claim of its name", "", {}, ({"claimRef": {**_DATA, "uid": "earlier"}},)),
)  # fmt: skip
