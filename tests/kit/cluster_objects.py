"""The objects of a small cluster as users write them: the required fields, and those that a test adds."""

import json
from typing import Any

import yaml

from cloud.sources.manifests.manifest_objects import Entry, read_objects
from common.objects.objects import Ref
from common.objects.offline_policy import PARAMETER

DRIVER = "d.example"


def pod(name: str, *, node: str = "n1", namespace: str = "default", claims: tuple[str, ...] = (), **spec: Any) -> Any:
    """Return a pod that mounts these claims; each volume is named after its claim."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    mounts = [{"name": claim, "mountPath": f"/{claim}"} for claim in claims]
    given = {"nodeName": node, "containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**given, **spec},
    }


def claim(name: str, *, namespace: str = "default", volume: str | None = None, **more: Any) -> Any:
    spec = {"accessModes": ["ReadWriteOnce"], **({"volumeName": volume} if volume else {})}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec, **more}


def volume(
    name: str, *, claim: str | None = None, driver: str = DRIVER, size: str = "1Gi", secrets: Any = None, **spec: Any
) -> Any:
    """Return a CSI volume; `claim` is `namespace/name`, `secrets` maps fields of `csi` to `namespace/name`."""
    csi: dict[str, Any] = {"driver": driver, "volumeHandle": f"h-{name}"}
    for field, secret in (secrets or {}).items():
        csi[field] = dict(zip(("namespace", "name"), secret.split("/"), strict=True))
    if claim:
        spec["claimRef"] = dict(zip(("namespace", "name"), claim.split("/"), strict=True))
    given = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "csi": csi}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {**given, **spec},
    }


def attachment(name: str, *, volume: str, node: str = "n1", attached: bool = True) -> Any:
    spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": spec,
        "status": {"attached": attached, "attachmentMetadata": {"lun": "7"}},
    }


def secret(name: str, *, namespace: str = "default", **data: str) -> Any:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def storage_class(name: str, offline: str | None = None, **more: Any) -> Any:
    """Return a StorageClass, with a parameter of its vendor's, and with an offline policy if one is given."""
    parameters = {"type": "ssd", **({PARAMETER: offline} if offline is not None else {})}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "parameters": parameters,
        **more,
    }


def driver(name: str = DRIVER, **spec: Any) -> Any:
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec}


def node(name: str = "n1", **labels: str) -> Any:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def as_yaml(*objects: Any) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False)


def entries(*objects: Any) -> dict[Ref, Entry]:
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    return {entry.ref: entry for entry in read_objects("m.json", json.dumps(listed).encode())}
