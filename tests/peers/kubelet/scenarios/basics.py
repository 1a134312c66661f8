"""Basic scenarios: pods, claims, access modes, filesystems and raw blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.peers.kubelet.cluster_objects import ROX, RWOP, RWX, Driver, Use, Volume
from tests.peers.kubelet.scenario import Scenario, one_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers.kubelet.scene import Scene


def _two_pods(scene: Scene) -> None:
    scene.start_pod("a")
    scene.wait_published("a")
    scene.start_pod("b")
    scene.wait_published("b")
    scene.delete_pod("a")
    scene.wait_gone("a")
    scene.delete_pod("b")
    scene.wait_gone("b")


def _pod_after_pod(scene: Scene) -> None:
    one_pod(scene)
    scene.start_pod("b")
    scene.wait_published("b")
    scene.delete_pod("b")
    scene.wait_gone("b")


def _with(*uses: Use) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        scene.start_pod("a", *uses)
        scene.wait_published("a")
        scene.delete_pod("a")
        scene.wait_gone("a")

    return run


_BLOCK = Volume(name="disk", block=True)

SCENARIOS = (
    Scenario(name="one-pod", about="A pod with one claim starts, runs and is deleted.", run=one_pod),
    Scenario(
        name="two-pods-rwx",
        about="Two pods share a ReadWriteMany claim. The second starts and is deleted after the first.",
        run=_two_pods,
        volumes=(Volume(modes=(RWX,)),),
    ),
    Scenario(
        name="two-pods-rwo",
        about="Two pods share a ReadWriteOnce claim on one node.",
        run=_two_pods,
    ),
    Scenario(
        name="pod-after-pod",
        about="A second pod uses the claim after the first is gone.",
        run=_pod_after_pod,
    ),
    Scenario(
        name="claim-twice-in-one-pod",
        about="A pod names the same ReadWriteOnce claim twice.",
        run=_with(Use(name="first"), Use(name="second")),
    ),
    Scenario(
        name="two-volumes",
        about="A pod has two claims of the same driver.",
        run=_with(Use(volume="data"), Use(volume="more")),
        volumes=(Volume(), Volume(name="more")),
    ),
    Scenario(
        name="read-only",
        about="A pod uses its claim read-only.",
        run=_with(Use(read_only=True)),
    ),
    Scenario(
        name="read-only-many",
        about="A ReadOnlyMany claim whose PersistentVolume is read-only as well.",
        run=one_pod,
        volumes=(Volume(modes=(ROX,), read_only=True),),
    ),
    Scenario(
        name="read-write-once-pod",
        about="A ReadWriteOncePod claim.",
        run=one_pod,
        volumes=(Volume(modes=(RWOP,)),),
    ),
    Scenario(
        name="several-modes",
        about="A PersistentVolume with several access modes: the node uses the first.",
        run=one_pod,
        volumes=(Volume(modes=(RWX, ROX)),),
    ),
    Scenario(
        name="fs-type",
        about="A PersistentVolume names a filesystem, mount options and attributes.",
        run=one_pod,
        driver=Driver(flags=("--fs=image",)),
        volumes=(Volume(fs_type="ext4", mount_options=("noatime", "nodev"), attributes={"tier": "cold"}),),
    ),
    Scenario(
        name="no-stage",
        about="A driver without STAGE_UNSTAGE_VOLUME.",
        run=one_pod,
        driver=Driver(flags=("--no-stage",)),
    ),
    Scenario(
        name="no-attach",
        about="A driver without attachments.",
        run=one_pod,
        driver=Driver(attach=False),
    ),
    Scenario(
        name="no-attach-no-stage",
        about="A driver without attachments and without STAGE_UNSTAGE_VOLUME.",
        run=one_pod,
        driver=Driver(attach=False, flags=("--no-stage",)),
    ),
    Scenario(name="block", about="A block volume.", run=one_pod, volumes=(_BLOCK,)),
    Scenario(
        name="block-read-only",
        about="A block volume, used read-only.",
        run=_with(Use(volume="disk", read_only=True)),
        volumes=(_BLOCK,),
    ),
    Scenario(
        name="block-no-stage",
        about="A block volume of a driver without STAGE_UNSTAGE_VOLUME.",
        run=one_pod,
        driver=Driver(flags=("--no-stage",)),
        volumes=(_BLOCK,),
    ),
    Scenario(
        name="block-two-pods",
        about="Two pods share a block volume.",
        run=_two_pods,
        volumes=(_BLOCK,),
    ),
    Scenario(
        name="block-and-filesystem",
        about="A pod has a block volume and a filesystem.",
        run=_with(Use(volume="disk"), Use(volume="data")),
        volumes=(_BLOCK, Volume()),
    ),
)
