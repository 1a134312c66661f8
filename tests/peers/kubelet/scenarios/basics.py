"""Basic scenarios: pods, claims, access modes, filesystems and raw blocks."""

from functools import partial

from tests.peers.kubelet.cluster_objects import ROX, RWOP, RWX, Driver, Use, Volume
from tests.peers.kubelet.scenario import NO_ATTACH, Scenario, one_pod
from tests.peers.kubelet.scene import Scene


def _two_pods(scene: Scene) -> None:
    for pod in ("a", "b"):
        scene.run_pod(pod)
    for pod in ("a", "b"):
        scene.end_pod(pod)


def _pod_after_pod(scene: Scene) -> None:
    for pod in ("a", "b"):
        scene.run_pod(pod)
        scene.end_pod(pod)


_BLOCK = Volume(name="disk", block=True)
_NO_STAGE = Driver(flags=("--no-stage",))

SCENARIOS = (
    Scenario(name="one-pod", about="A pod with one claim starts, runs and is deleted."),
    Scenario(
        name="two-pods-rwx",
        about="Two pods share a ReadWriteMany claim. The second starts and is deleted after the first.",
        run=_two_pods,
        volumes=(Volume(modes=(RWX,)),),
    ),
    Scenario(name="two-pods-rwo", about="Two pods share a ReadWriteOnce claim on one node.", run=_two_pods),
    Scenario(name="pod-after-pod", about="A second pod uses the claim after the first is gone.", run=_pod_after_pod),
    Scenario(
        name="claim-twice-in-one-pod",
        about="A pod names the same ReadWriteOnce claim twice.",
        run=partial(one_pod, uses=[Use(name="first"), Use(name="second")]),
    ),
    Scenario(
        name="two-volumes",
        about="A pod has two claims of the same driver.",
        run=partial(one_pod, uses=[Use(volume="data"), Use(volume="more")]),
        volumes=(Volume(), Volume(name="more")),
    ),
    Scenario(
        name="read-only",
        about="A pod uses its claim read-only.",
        run=partial(one_pod, uses=[Use(read_only=True)]),
    ),
    Scenario(
        name="read-only-many",
        about="A ReadOnlyMany claim whose PersistentVolume is read-only as well.",
        volumes=(Volume(modes=(ROX,), read_only=True),),
    ),
    Scenario(name="read-write-once-pod", about="A ReadWriteOncePod claim.", volumes=(Volume(modes=(RWOP,)),)),
    Scenario(
        name="several-modes",
        about="A PersistentVolume with several access modes: the node uses the first.",
        volumes=(Volume(modes=(RWX, ROX)),),
    ),
    Scenario(
        name="fs-type",
        about="A PersistentVolume names a filesystem, mount options and attributes.",
        driver=Driver(flags=("--fs=image",)),
        volumes=(Volume(fs_type="ext4", mount_options=("noatime", "nodev"), attributes={"tier": "cold"}),),
    ),
    Scenario(name="no-stage", about="A driver without STAGE_UNSTAGE_VOLUME.", driver=_NO_STAGE),
    Scenario(name="no-attach", about="A driver without attachments.", driver=NO_ATTACH),
    Scenario(
        name="no-attach-no-stage",
        about="A driver without attachments and without STAGE_UNSTAGE_VOLUME.",
        driver=Driver(attach=False, flags=("--no-stage",)),
    ),
    Scenario(name="block", about="A block volume.", volumes=(_BLOCK,)),
    Scenario(
        name="block-read-only",
        about="A block volume, used read-only.",
        run=partial(one_pod, uses=[Use(volume="disk", read_only=True)]),
        volumes=(_BLOCK,),
    ),
    Scenario(
        name="block-no-stage",
        about="A block volume of a driver without STAGE_UNSTAGE_VOLUME.",
        driver=_NO_STAGE,
        volumes=(_BLOCK,),
    ),
    Scenario(name="block-two-pods", about="Two pods share a block volume.", run=_two_pods, volumes=(_BLOCK,)),
    Scenario(
        name="block-and-filesystem",
        about="A pod has a block volume and a filesystem.",
        volumes=(_BLOCK, Volume()),
    ),
)
