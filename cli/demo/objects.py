"""The demo's objects: the manifests of a pod with one volume."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

Object = dict[str, Any]


def driver_rules(driver: str) -> Object:
    """The CSIDriver object of a driver whose volumes are attached before a node uses them."""
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": driver}, "spec": {}}


def pod_with_volume(node: str, driver: str, handle: str, publish_context: Mapping[str, str]) -> list[Object]:
    """A pod, its claim, the volume of that handle, and the attachment that the attacher would have written."""
    size, modes = "16Mi", ["ReadWriteOnce"]
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pv-demo"},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": modes,
                "storageClassName": "",
                "claimRef": {"namespace": "default", "name": "demo"},
                "csi": {"driver": driver, "volumeHandle": handle},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "demo", "namespace": "default"},
            "spec": {
                "accessModes": modes,
                "storageClassName": "",
                "volumeName": "pv-demo",
                "resources": {"requests": {"storage": size}},
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            # The name by which a kubelet looks for it (kubernetes pkg/volume/csi, getAttachmentName).
            "metadata": {"name": "csi-" + sha256(f"{handle}{driver}{node}".encode()).hexdigest()},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": "pv-demo"}},
            "status": {"attached": True, "attachmentMetadata": dict(publish_context)},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": "web", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
                ],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "demo"}}],
            },
        },
    ]
