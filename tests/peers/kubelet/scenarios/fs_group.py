"""Scenarios of fsGroup: who gives a volume's files to a pod's group, and when."""

from functools import partial

from tests.peers.kubelet.cluster_objects import RWX, Driver, Use, Volume
from tests.peers.kubelet.scenario import Scenario, one_pod
from tests.peers.kubelet.scene import Scene

_GROUP = {"fsGroup": 2000}


def _one_pod(scene: Scene, *, read_only: bool = False) -> None:
    scene.put_files("data")
    one_pod(scene, uses=[Use(read_only=read_only)], security=_GROUP)


def _two_pods(scene: Scene, *, policy: str) -> None:
    """New files, with modes of their own, are put into the volume before the second pod comes."""
    for pod, folder in (("a", "folder"), ("b", "later")):
        scene.put_files("data", folder=folder)
        scene.run_pod(pod, security={**_GROUP, "fsGroupChangePolicy": policy})
        scene.end_pod(pod)


_FILE = Driver(fs_group_policy="File")

SCENARIOS = (
    Scenario(
        name="fs-group-file",
        about="fsGroupPolicy File: the node gives all files to the group.",
        run=_one_pod,
        driver=_FILE,
    ),
    Scenario(
        name="fs-group-file-rwx",
        about="fsGroupPolicy File, a shared volume: the same.",
        run=_one_pod,
        driver=_FILE,
        volumes=(Volume(modes=(RWX,)),),
    ),
    Scenario(
        name="fs-group-none",
        about="fsGroupPolicy None: the node leaves the files alone.",
        run=_one_pod,
        driver=Driver(fs_group_policy="None"),
    ),
    Scenario(
        name="fs-group-with-fs-type",
        about="fsGroupPolicy ReadWriteOnceWithFSType; the volume names a filesystem.",
        run=partial(one_pod, security=_GROUP),
        driver=Driver(fs_group_policy="ReadWriteOnceWithFSType", flags=("--fs=image",)),
        volumes=(Volume(fs_type="ext4"),),
    ),
    Scenario(
        name="fs-group-without-fs-type",
        about="fsGroupPolicy ReadWriteOnceWithFSType; the volume names no filesystem.",
        run=_one_pod,
        driver=Driver(fs_group_policy="ReadWriteOnceWithFSType"),
    ),
    Scenario(name="fs-group-default-policy", about="A CSIDriver without fsGroupPolicy.", run=_one_pod),
    Scenario(
        name="fs-group-read-only",
        about="A pod with an fsGroup uses its claim read-only.",
        run=partial(_one_pod, read_only=True),
        driver=_FILE,
    ),
    Scenario(
        name="fs-group-always",
        about="fsGroupChangePolicy Always: for a second pod the node changes new files, too.",
        run=partial(_two_pods, policy="Always"),
        driver=_FILE,
    ),
    Scenario(
        name="fs-group-on-root-mismatch",
        about="fsGroupChangePolicy OnRootMismatch: for a second pod the node leaves new files alone.",
        run=partial(_two_pods, policy="OnRootMismatch"),
        driver=_FILE,
    ),
    Scenario(
        name="fs-group-by-driver",
        about="A driver with VOLUME_MOUNT_GROUP gets the group; the node leaves the files alone.",
        run=_one_pod,
        driver=Driver(fs_group_policy="File", flags=("--mount-group",)),
    ),
    Scenario(
        name="fs-group-by-driver-policy-none",
        about="A driver with VOLUME_MOUNT_GROUP and fsGroupPolicy None.",
        run=_one_pod,
        driver=Driver(fs_group_policy="None", flags=("--mount-group",)),
    ),
    Scenario(
        name="fs-group-block",
        about="A pod with an fsGroup has a block volume.",
        run=partial(one_pod, security=_GROUP),
        driver=_FILE,
        volumes=(Volume(name="disk", block=True),),
    ),
)
