"""The demo's objects: the manifests of a pod with one volume."""

from typing import Any

Object = dict[str, Any]


def driver_rules(driver: str) -> Object:
    """The CSIDriver of the example driver: each volume is on one node and needs no attaching."""
    spec = {"attachRequired": False}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": driver}, "spec": spec}


def pod_with_volume(node: str, driver: str, handle: str) -> list[Object]:
    """A pod, its claim, and the volume of that handle."""
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
