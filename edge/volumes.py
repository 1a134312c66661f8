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
    """A pod bound to this node, with the fields that its volumes need.

    Attributes:
        fs_group: `securityContext.fsGroup`, or None.
        fs_group_on_root_mismatch: `fsGroupChangePolicy` is OnRootMismatch (else Always).
        selinux_label: the label for a mount's context option ("user:role:type:level"); empty without one.
        runtime_class: its `runtimeClassName`; empty without one.
        gone: it wants no volume any more. It has ended; or it was deleted, and its containers have ended or its grace
            period is over.
    """

    uid: str
    namespace: str
    name: str
    service_account: str = ""
    fs_group: int | None = None
    fs_group_on_root_mismatch: bool = False
    selinux_label: str = ""
    runtime_class: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRules:
    """The CSIDriver object of a driver; the defaults are those of a driver without one.

    Attributes:
        fs_group_policy: ReadWriteOnceWithFSType, File or None.
        token_audiences: the `tokenRequests` in order: (audience, expirationSeconds or 0).
        tokens_in_secrets: `serviceAccountTokenInSecrets`.
    """

    attach_required: bool = True
    pod_info: bool = False
    persistent: bool = True
    ephemeral: bool = False
    fs_group_policy: str = "ReadWriteOnceWithFSType"
    selinux_mount: bool = False
    requires_republish: bool = False
    token_audiences: tuple[tuple[str, int], ...] = ()
    tokens_in_secrets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The PersistentVolumeClaim that a volume is bound to, with the fields that an expansion needs.

    Attributes:
        volume: `spec.volumeName`, the name of its PV.
        status_bytes: `status.capacity.storage`.
        allocated_bytes: `status.allocatedResources.storage`, or None.
        resize_status: `status.allocatedResourceStatuses.storage`, empty if there is none.
    """

    namespace: str
    name: str
    uid: str
    volume: str = ""
    status_bytes: int = 0
    allocated_bytes: int | None = None
    resize_status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume, independent of the pods that use it.

    Attributes:
        driver: the CSI driver's name.
        handle: the `volume_id` of every call: the PV's volumeHandle, or `inline_handle()` of an inline volume.
        name: the PV's name, or the inline volume's; it is part of the paths, and vol_data.json's specVolID.
        block: volumeMode is Block.
        ephemeral: an inline volume: no attachment, no staging.
        fs_type: as given; may be empty.
        access_modes: the PV's, in order. Node calls use the first one.
        mount_options: the PV's mountOptions.
        attributes: the PV's `volumeAttributes`. Copy it before adding anything
            (docs/csi-contract.md#pod-information-goes-into-a-copy).
        size_bytes: the PV's `spec.capacity.storage`; 0 if unknown.
        claim: the claim it is bound to; None for inline volumes.
        fence: its PV asks for `fence` (`common.offline_policy`).
        offline_flaw: what is wrong with the policy that its PV asks for; empty if nothing is.
    """

    driver: str
    handle: str
    name: str
    block: bool = False
    ephemeral: bool = False
    fs_type: str = ""
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)
    mount_options: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    stage_secret: SecretRef | None = None
    publish_secret: SecretRef | None = None
    expand_secret: SecretRef | None = None
    size_bytes: int = 0
    claim: Claim | None = None
    fence: bool = False
    offline_flaw: str = ""
    rules: DriverRules = DriverRules()

    @property
    def key(self) -> "VolumeKey":
        """The key by which operations on it are serialised."""
        return VolumeKey(self.driver, self.handle)

    @property
    def is_sole(self) -> bool:
        """Whether one node at a time may have it, without an attachment (`common.sole_use`)."""
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
    """How a pod's runtime mounts a volume in its guest. The driver publishes only the block device.

    Attributes:
        runtime: the runtime's RuntimeClass and flavour, for people.
        flavour: `go` or `rs`.
        fs_type: the file system on the device.
        options: mount options in the guest.
        fs_group: the group that the files get in the guest; None: their own.
    """

    runtime: str
    flavour: str
    fs_type: str
    options: tuple[str, ...] = ()
    fs_group: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The place of a volume in one container.

    Attributes:
        container: the container's name in its pod.
        path: `mountPath` or `devicePath`.
        read_only: the container may only read it.
    """

    container: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolume:
    """One volume of one pod, with everything needed to publish it.

    Attributes:
        volume_name: its name in the pod's `spec.volumes`.
        read_only: from the pod's claim reference (or its inline volume), not from the PV.
        deferral: the pod's runtime mounts it, so `volume.block` is set; None: the driver mounts it.
        uses: the places of a block volume in the pod's containers, as far as the hub tells them; of others none.
    """

    pod: Pod
    volume: Volume
    volume_name: str
    read_only: bool = False
    deferral: Deferral | None = None
    uses: tuple[ContainerUse, ...] = ()

    @property
    def selinux_context(self) -> str:
        """The SELinux label for a mount option; empty if the driver does not support it, and for block volumes."""
        return self.pod.selinux_label if self.volume.rules.selinux_mount and not self.volume.block else ""


def attachment_name(driver: str, handle: str, node: str) -> str:
    """Return a VolumeAttachment's name: `csi-` and the hex sha256 of handle, driver and node (pkg/volume/csi)."""
    return "csi-" + hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()


def inline_handle(pod_uid: str, volume_name: str) -> str:
    """Return the `volume_id` of an inline volume (makeVolumeHandle of pkg/volume/csi)."""
    return "csi-" + hashlib.sha256(f"{pod_uid}{volume_name}".encode()).hexdigest()
