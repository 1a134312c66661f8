"""A volume as a pod wants it: the data of Kubernetes' objects that the node calls need.

Nothing here is read from a driver or from the disk. docs/csi-contract.md#fields-of-node-calls tells the source of each
field, after kubernetes pkg/volume/csi (csi_attacher.go, csi_mounter.go, csi_block.go).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

_SINGLE_WRITER = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})


@dataclass(frozen=True, slots=True)
class SecretRef:
    """The name of a Secret that a call needs."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod bound to this node, with the fields that its volumes need."""

    uid: str
    namespace: str
    name: str
    service_account: str = ""
    fs_group: int | None = None  # `securityContext.fsGroup`, or None
    fs_group_on_root_mismatch: bool = False  # `fsGroupChangePolicy` is OnRootMismatch (else Always)
    runtime_class: str = ""  # its `runtimeClassName`; empty without one
    # It wants no volume any more. It has ended; or it was deleted, and its containers have ended or its grace period is
    # over.
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRules:
    """The CSIDriver object of a driver; the defaults are those of a driver without one."""

    attach_required: bool = True
    pod_info: bool = False
    persistent: bool = True
    ephemeral: bool = False
    fs_group_policy: str = "ReadWriteOnceWithFSType"  # ReadWriteOnceWithFSType, File or None
    selinux_mount: bool = False
    requires_republish: bool = False
    # The `tokenRequests` in order: (audience, expirationSeconds or 0).
    token_audiences: tuple[tuple[str, int], ...] = ()
    tokens_in_secrets: bool = False  # `serviceAccountTokenInSecrets`


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundClaim:
    """The PersistentVolumeClaim that a volume is bound to, with the fields that an expansion needs."""

    namespace: str
    name: str
    uid: str
    volume: str = ""  # `spec.volumeName`, the name of its PV
    status_bytes: int = 0  # `status.capacity.storage`
    requested_bytes: int = 0  # `spec.resources.requests.storage`
    allocated_bytes: int | None = None  # `status.allocatedResources.storage`, or None
    resize_status: str = ""  # `status.allocatedResourceStatuses.storage`, empty if there is none
    shared: bool = False  # it is ReadWriteMany, and each node must expand its own mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume, independent of the pods that use it."""

    driver: str  # the CSI driver's name
    handle: str  # the `volume_id` of every call: the PV's volumeHandle, or `inline_handle()` of an inline volume
    name: str  # the PV's name, or the inline volume's; it is part of the paths, and vol_data.json's specVolID
    block: bool = False  # volumeMode is Block
    ephemeral: bool = False  # an inline volume: no attachment, no staging
    fs_type: str = ""  # as given; may be empty
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)  # the PV's, in order. Node calls use the first one.
    mount_options: tuple[str, ...] = ()  # the PV's mountOptions
    # The PV's `volumeAttributes`. Copy it before adding anything
    # (docs/csi-contract.md#pod-information-goes-into-a-copy).
    attributes: Mapping[str, str] = field(default_factory=dict)
    stage_secret: SecretRef | None = None
    publish_secret: SecretRef | None = None
    expand_secret: SecretRef | None = None
    size_bytes: int = 0  # the PV's `spec.capacity.storage`; 0 if unknown
    claim: BoundClaim | None = None  # the claim it is bound to; None for inline volumes
    fence: bool = False  # its PV asks for `fence` (`common.objects.offline_policy`)
    offline_flaw: str = ""  # what is wrong with the policy that its PV asks for; empty if nothing is
    rules: DriverRules = DriverRules()

    @property
    def key(self) -> "VolumeKey":
        return VolumeKey(self.driver, self.handle)

    @property
    def is_sole(self) -> bool:
        """Whether one node at a time may have it, without an attachment (`common.objects.sole_use`)."""
        is_attached = self.ephemeral or self.rules.attach_required
        return not is_attached and _SINGLE_WRITER.issuperset(self.access_modes)

    @property
    def is_listed(self) -> bool:
        """Whether the node's `volumesInUse` lists it before it is staged."""
        return self.is_sole or (not self.ephemeral and self.rules.attach_required)


@dataclass(frozen=True, slots=True, order=True)
class VolumeKey:
    """A volume's identity on a node."""

    driver: str
    handle: str

    def __str__(self) -> str:
        """Return the kubelet's unique volume name, as listed in Node.status.volumesInUse."""
        return f"kubernetes.io/csi/{self.driver}^{self.handle}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """How a pod's runtime mounts a volume in its guest. The driver publishes only the block device."""

    runtime: str  # the runtime's RuntimeClass and flavour, for people
    flavour: str  # `go` or `rs`
    fs_type: str  # the file system on the device
    fs_group: int | None = None  # the group that the files get in the guest; None: their own


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The place of a volume in one container."""

    container: str  # the container's name in its pod
    path: str  # `mountPath` or `devicePath`
    read_only: bool = False  # the container may only read it


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolume:
    """One volume of one pod, with everything needed to publish it."""

    pod: Pod
    volume: Volume
    volume_name: str  # its name in the pod's `spec.volumes`
    read_only: bool = False  # from the pod's claim reference (or its inline volume), not from the PV
    # The pod's runtime mounts it, so `volume.block` is set; None: the driver mounts it.
    deferral: Deferral | None = None
    # The places of a block volume in the pod's containers, as far as the hub tells them; of others none.
    uses: tuple[ContainerUse, ...] = ()
    # The label for the mount's context option ("user:role:type:level"); empty without one, as of each block volume.
    selinux_context: str = ""


def attachment_name(driver: str, handle: str, node: str) -> str:
    # as in kubernetes pkg/volume/csi
    return "csi-" + hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()


def inline_handle(pod_uid: str, volume_name: str) -> str:
    # makeVolumeHandle of pkg/volume/csi
    return "csi-" + hashlib.sha256(f"{pod_uid}{volume_name}".encode()).hexdigest()
