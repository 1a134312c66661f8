"""The vendors' drivers of the cluster: each is the test driver with other flags, under a name of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit.peers.kube_api import Object


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """A vendor's driver."""

    name: str  # the driver's name, and that of its storage class
    flags: tuple[str, ...]  # of the test driver
    nodes: tuple[str, ...]  # where it runs
    # The node that serves all calls of the sidecars, where the driver's processes share one state directory, as the
    # nodes of a SAN or an NFS server do. None: each node has storage of its own.
    pinned: str | None
    csi_driver: Mapping[str, Any] = field(default_factory=dict)  # the spec of its CSIDriver
    annotations: Mapping[str, str] = field(default_factory=dict)  # of its CSIDriver
    watched: bool = False  # whether all that its nodes ask of it is recorded, on its way
    relayed: bool = False  # whether kubelets call it through the agent's relay
    proxy_flags: tuple[str, ...] = ()  # of its proxy driver

    @property
    def is_local(self) -> bool:
        return self.pinned is None

    def manifest(self) -> Object:
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": self.name, "annotations": dict(self.annotations)},
            "spec": dict(self.csi_driver),
        }


KUBELETS = ("k1", "k2")  # the nodes with a kubelet

EDGECORE = "e1"  # the node whose kubelet sees no CSINode and no CSIDriver of the cluster, as KubeEdge's EdgeCore

OWN = "o1"  # the node with the agent alone

NODES = (*KUBELETS, OWN)

SAN = Vendor(
    name="san.csi",
    flags=("--fs=image", "--no-topology"),
    nodes=NODES,
    pinned="k1",
    csi_driver={"attachRequired": True, "fsGroupPolicy": "File"},
)
"""Disks that are attached to one node at a time. A node with a kubelet serves its calls."""

NFS = Vendor(
    name="nfs.csi",
    flags=("--fs=directory", "--no-topology", "--no-attach"),
    nodes=NODES,
    pinned=OWN,
    csi_driver={"attachRequired": False},
)
"""Directories that every node reaches at any time. A node without a kubelet serves its calls."""

WATCHED = Vendor(
    name="watched.csi",
    flags=("--fs=directory", "--no-topology", "--no-attach", "--max-volumes-per-node=5"),
    nodes=("k1", OWN),
    pinned="k1",
    csi_driver={"attachRequired": False, "volumeLifecycleModes": ["Persistent", "Ephemeral"]},
    watched=True,
)
"""A driver for tests that change its CSIDriver and look at what that makes of the calls."""

SSD = Vendor(
    name="ssd.csi",
    flags=("--fs=directory", "--topology"),
    nodes=NODES,
    pinned=None,
    csi_driver={"attachRequired": True},
)
"""Storage of each node's own; the vendor says itself where it is."""

LVM = Vendor(
    name="lvm.csi",
    flags=("--fs=image", "--no-topology", "--no-attach"),
    nodes=NODES,
    pinned=None,
    csi_driver={"attachRequired": False},
    relayed=True,
    proxy_flags=("--placement=local",),
)
"""Storage of each node's own; the vendor knows no topology, so the bridge adds one."""

PAST_THE_RELAY = replace(LVM, name="past.csi", nodes=("k1",), relayed=False)
"""The same, but the kubelet calls the driver itself, and so nobody says where its volumes are."""

DISK = Vendor(
    name="disk.csi",
    flags=("--fs=image", "--raw", "--no-topology", "--no-attach"),
    nodes=(OWN,),
    pinned=OWN,
    csi_driver={"attachRequired": False, "fsGroupPolicy": "File"},
    annotations={"csi-bridge.io/direct-volumes": "true"},
)
"""Disks of a node without a kubelet, which a pod's runtime may mount in its guest."""

DIRECT = Vendor(
    name="direct.csi",
    flags=("--fs=image", "--raw", "--no-topology", "--no-attach"),
    nodes=("k1",),
    pinned="k1",
    csi_driver={"attachRequired": False, "fsGroupPolicy": "File"},
    relayed=True,
)
"""Disks of a node with a kubelet, which a pod's runtime may mount in its guest."""

NODE_ONLY = Vendor(
    name="only.csi",
    flags=("--fs=directory", "--no-controller"),
    nodes=(),
    pinned=None,
    csi_driver={"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]},
)
"""A driver without a controller, whose volumes are parts of pods: no process in the cloud belongs to it."""

HOSTPATH = Vendor(
    name="csi-hostpath",
    flags=("--fs=directory", "--no-topology"),
    nodes=(EDGECORE,),
    pinned=EDGECORE,
    csi_driver={"attachRequired": True},
)
"""KubeEdge's example, with an attachment. The node with EdgeCore serves its calls."""

PLAIN = Vendor(
    name="plain.csi",
    flags=("--fs=directory", "--no-topology", "--no-attach"),
    nodes=(EDGECORE,),
    pinned=None,
    csi_driver={"attachRequired": True},
    proxy_flags=("--placement=local",),
)
"""A driver that attaches nothing, on a node whose kubelet waits for attachments all the same."""
