"""Manifests of the objects that storage tests make, as small as the API server accepts them."""

from typing import Any

from tests.kit.peers.kube_api import Object

GIB = 1 << 30


def storage_class(driver: str, *, name: str | None = None, wait_for_consumer: bool = False, **fields: Any) -> Object:
    """A StorageClass of a driver, under the driver's own name unless told otherwise.

    Args:
        driver: the CSI driver's name.
        name: the class' name.
        wait_for_consumer: bind only when a pod needs the claim.
        fields: further fields, such as ``parameters`` or ``allowVolumeExpansion``.
    """
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name or driver},
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer" if wait_for_consumer else "Immediate",
        **fields,
    }


def attributes_class(name: str, *, driver: str, **parameters: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttributesClass",
        "metadata": {"name": name},
        "driverName": driver,
        "parameters": parameters,
    }


def claim(
    name: str,
    *,
    namespace: str,
    storage_class: str,
    size_bytes: int = GIB,
    access_mode: str = "ReadWriteOnce",
    volume_mode: str = "Filesystem",
    **spec: Any,
) -> Object:
    """A PersistentVolumeClaim; further fields, such as ``dataSource`` or ``volumeName``, go to its spec."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": [access_mode],
            "volumeMode": volume_mode,
            "resources": {"requests": {"storage": str(size_bytes)}},
            **spec,
        },
    }


def persistent_volume(name: str, *, driver: str, handle: str, **spec: Any) -> Object:
    """A PersistentVolume that an administrator writes for a volume of a driver; further fields go to its spec."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": driver, "volumeHandle": handle},
            **spec,
        },
    }


def node(name: str, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}


def pod(name: str, *, namespace: str, claim: str = "", image: str = "none", **spec: Any) -> Object:
    """A pod that may have a claim. No kubelet runs it, so it takes any taint; further fields go to its spec."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    mounts = [{"name": it["name"], "mountPath": "/data"} for it in volumes]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [{"name": "c", "image": image, "volumeMounts": mounts}],
            "volumes": volumes,
            "tolerations": [{"operator": "Exists"}],
            **spec,
        },
    }


def csi_driver(name: str, **spec: Any) -> Object:
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec}


def csi_node(name: str, *, drivers: dict[str, str], topology_keys: list[str] | None = None) -> Object:
    """A CSINode: driver name → the id that the driver knows the node by. Its Node must exist."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {
            "drivers": [
                {"name": driver, "nodeID": node_id, "topologyKeys": topology_keys or []}
                for driver, node_id in drivers.items()
            ]
        },
    }


def volume_attachment(name: str, *, driver: str, node: str, volume: str) -> Object:
    """A VolumeAttachment, which the attach-detach controller would write for a pod."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
    }


def snapshot_class(driver: str) -> Object:
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": driver},
        "driver": driver,
        "deletionPolicy": "Delete",
    }


def snapshot(name: str, *, namespace: str, snapshot_class: str, claim: str) -> Object:
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"volumeSnapshotClassName": snapshot_class, "source": {"persistentVolumeClaimName": claim}},
    }


def group_snapshot_class(driver: str) -> Object:
    return {
        "apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": driver},
        "driver": driver,
        "deletionPolicy": "Delete",
    }


def group_snapshot(name: str, *, namespace: str, snapshot_class: str, labels: dict[str, str]) -> Object:
    """A VolumeGroupSnapshot of the volumes of all claims with these labels."""
    return {
        "apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"volumeGroupSnapshotClassName": snapshot_class, "source": {"selector": {"matchLabels": labels}}},
    }
