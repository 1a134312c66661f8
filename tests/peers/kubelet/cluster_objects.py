"""Objects of a scenario as a cluster wants them: from a few words to manifests."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.csi import csi_pb2 as pb
from tests.kit.peers import manifests
from tests.peers.kubelet.kubelet_process import IMAGE
from tests.peers.kubelet.node_under_test import Object

RWO, RWX, ROX, RWOP = "ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"

_MODES = {
    RWO: pb.VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER,
    RWOP: pb.VolumeCapability.AccessMode.SINGLE_NODE_SINGLE_WRITER,
    ROX: pb.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY,
    RWX: pb.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER,
}


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A driver as the cluster knows it, and the flags of the test driver that plays it."""

    flags: tuple[str, ...] = ()  # of the test driver; it has no topology
    attach: bool = True  # whether its volumes are attached
    fs_group_policy: str | None = None  # of the CSIDriver; None leaves it to the API server's default
    pod_info: bool = False  # whether it wants to know the pod
    republish: bool = False  # whether it wants NodePublishVolume again and again
    inline: bool = False  # whether it serves inline volumes as well
    audiences: tuple[str, ...] = ()  # of the tokens that it wants
    tokens_in_secrets: bool | None = None  # whether it wants them in the secrets
    selinux_mount: bool = False  # whether it takes an SELinux label as a mount option

    def manifest(self, name: str) -> Object:
        spec: Object = {
            "attachRequired": self.attach,
            "podInfoOnMount": self.pod_info,
            "requiresRepublish": self.republish,
            "volumeLifecycleModes": ["Persistent", *(["Ephemeral"] if self.inline else [])],
        }
        if self.selinux_mount:
            spec["seLinuxMount"] = True
        if self.fs_group_policy:
            spec["fsGroupPolicy"] = self.fs_group_policy
        if self.audiences:
            spec["tokenRequests"] = [{"audience": audience} for audience in self.audiences]
        if self.tokens_in_secrets is not None:
            spec["serviceAccountTokenInSecrets"] = self.tokens_in_secrets
        return manifests.csi_driver(name, **spec)


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume of the driver, with its PersistentVolume and its claim.

    Attributes:
        fs_type, mount_options, attributes: of the PersistentVolume.
    """

    name: str = "data"  # what the scenario calls it
    modes: tuple[str, ...] = (RWO,)  # of PersistentVolume and claim
    block: bool = False  # whether it is a raw block volume
    fs_type: str = ""
    mount_options: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False  # of the PersistentVolume's csi source
    size: str = "64Mi"
    # Purpose (`stage`, `publish`, `expand`) → what the Secret of that purpose holds.
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    late_secrets: tuple[str, ...] = ()  # purposes whose Secrets are not there before the script creates them
    grows: bool = False  # whether it has a StorageClass that allows expansion

    def capability(self) -> pb.VolumeCapability:
        mode = pb.VolumeCapability.AccessMode(mode=_MODES[self.modes[0]])
        if self.block:
            return pb.VolumeCapability(access_mode=mode, block=pb.VolumeCapability.BlockVolume())
        return pb.VolumeCapability(access_mode=mode, mount=pb.VolumeCapability.MountVolume(fs_type=self.fs_type))

    def persistent_volume(self, name: str, *, driver: str, handle: str, claim: Object) -> Object:
        source: Object = {
            "driver": driver,
            "volumeHandle": handle,
            "readOnly": self.read_only,
            "volumeAttributes": dict(self.attributes),
        }
        if self.fs_type:
            source["fsType"] = self.fs_type
        namespace = claim["metadata"]["namespace"]
        for purpose in self.secrets:
            field_name = f"node{purpose.title()}SecretRef"
            source[field_name] = {"name": self.secret_name(purpose), "namespace": namespace}
        spec: Object = {
            "capacity": {"storage": self.size},
            "accessModes": list(self.modes),
            "volumeMode": "Block" if self.block else "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": claim["spec"]["storageClassName"],
            "claimRef": {"kind": "PersistentVolumeClaim", "name": claim["metadata"]["name"], "namespace": namespace},
            "csi": source,
        }
        if self.mount_options:
            spec["mountOptions"] = list(self.mount_options)
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}

    def claim(self, *, namespace: str, volume: str, storage_class: str) -> Object:
        return manifests.claim(
            self.name,
            namespace=namespace,
            storage_class=storage_class if self.grows else "",
            volume_mode="Block" if self.block else "Filesystem",
            accessModes=list(self.modes),
            volumeName=volume,
            resources={"requests": {"storage": self.size}},
        )

    def secret_name(self, purpose: str) -> str:
        return f"{self.name}-{purpose}"


@dataclass(frozen=True, kw_only=True)
class Use:
    """A pod's use of a volume."""

    volume: str = "data"  # which, by the scenario's name
    read_only: bool = False  # of the pod's reference to the claim
    name: str = ""  # of the pod's volume; that of the volume by default

    @property
    def in_pod(self) -> str:
        return self.name or self.volume


@dataclass(frozen=True, kw_only=True)
class Inline:
    name: str = "scratch"
    attributes: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False
    secret: Mapping[str, str] = field(default_factory=dict)

    @property
    def secret_name(self) -> str:
        return f"{self.name}-inline"

    def source(self, driver: str) -> Object:
        source: Object = {"driver": driver, "volumeAttributes": dict(self.attributes), "readOnly": self.read_only}
        if self.secret:
            source["nodePublishSecretRef"] = {"name": self.secret_name}
        return {"name": self.name, "csi": source}


def pod(
    name: str,
    *,
    namespace: str,
    node: str,
    uses: Sequence[tuple[Use, Volume]],
    inlines: tuple[Inline, ...],
    driver: str,
    security: Mapping[str, object],
    grace_s: int,
) -> Object:
    volumes: list[Object] = [
        {"name": use.in_pod, "persistentVolumeClaim": {"claimName": volume.name, "readOnly": use.read_only}}
        for use, volume in uses
    ]
    files = [use.in_pod for use, volume in uses if not volume.block] + [inline.name for inline in inlines]
    devices = [use.in_pod for use, volume in uses if volume.block]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "serviceAccountName": "default",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": grace_s,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": dict(security),
            "volumes": [*volumes, *(inline.source(driver) for inline in inlines)],
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "volumeMounts": [{"name": it, "mountPath": f"/{it}"} for it in files],
                    "volumeDevices": [{"name": it, "devicePath": f"/dev/{it}"} for it in devices],
                }
            ],
        },
    }


def secret(name: str, content: Mapping[str, str], *, namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": dict(content),
    }


def attachment_name(*, handle: str, driver: str, node: str) -> str:
    """The name of a volume's VolumeAttachment on a node (docs/csi-contract.md#fields-of-node-calls)."""
    return f"csi-{hashlib.sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


def attachment(*, handle: str, driver: str, node: str, volume: str) -> Object:
    name = attachment_name(handle=handle, driver=driver, node=node)
    return manifests.volume_attachment(name, driver=driver, node=node, volume=volume)
