"""Scenarios of volumes that grow: with a pod on them, before a pod comes, and with a driver that fails at it."""

from functools import partial

from tests.peers.kubelet.cluster_objects import Driver, Volume
from tests.peers.kubelet.scenario import Scenario
from tests.peers.kubelet.scene import Scene

_SMALL, _LARGE = "512Mi", "640Mi"  # xfs has no smaller ones
_GROWING = Driver(flags=("--fs=image",))
_NOT_ON_NODES = Driver(flags=("--fs=image", "--no-node-expand"))
_FILESYSTEM = Volume(fs_type="xfs", size=_SMALL, grows=True, secrets={"expand": {"password": "expand-secret"}})
_DISK = Volume(name="disk", block=True, size=_SMALL, grows=True)
_RETRIED = ("INTERNAL", "UNAVAILABLE")
_FINAL = ("INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND", "FAILED_PRECONDITION")


def _online(scene: Scene, *, volume: str) -> None:
    scene.run_pod("a")
    scene.grow(volume, _LARGE)
    scene.wait_size(volume, _LARGE)
    scene.end_pod("a")


def _before_the_pod(scene: Scene, *, volume: str) -> None:
    scene.grow(volume, _LARGE)
    scene.run_pod("a")
    scene.wait_size(volume, _LARGE)
    scene.end_pod("a")


def _online_and_retried(scene: Scene, *, code: str) -> None:
    scene.run_pod("a")
    scene.faults(f"NodeExpandVolume=error:{code}:no")
    scene.grow("data", _LARGE)
    scene.recorder.wait_for("NodeExpandVolume", status=code, times=2)
    scene.faults()
    scene.wait_size("data", _LARGE)
    scene.end_pod("a")


def _online_and_given_up(scene: Scene, *, code: str = "") -> None:
    scene.run_pod("a")
    if code:
        scene.faults(f"NodeExpandVolume=error:{code}:no")
    scene.grow("data", _LARGE)
    scene.wait_resize_error("data")
    scene.let_pass("the node has told the claim what came of it")
    scene.note_claim("data")
    scene.end_pod("a")


def _at_mount_with_a_fault(scene: Scene, *, code: str) -> None:
    """Whether the pod gets its volume all the same depends on the code: the record says."""
    scene.faults(f"NodeExpandVolume=error:{code}:no")
    scene.grow("data", _LARGE)
    if code in _RETRIED:
        # It goes on and on: the fault is lifted just after an answer, and not between the calls of one try.
        scene.recorder.pause_after("NodeExpandVolume", status=code, times=3)
    scene.start_pod("a")
    if code in _RETRIED:
        scene.recorder.wait_for("NodeExpandVolume", status=code, times=3)
    else:
        scene.recorder.wait_for("NodeExpandVolume", status=code)
        scene.let_pass("the node has told the claim what came of it")
    scene.wait_resize_error("data")
    scene.note_published("a")
    scene.note_claim("data")
    scene.faults()
    scene.wait_published("a")
    scene.end_pod("a")


def _at_mount_without_the_capability(scene: Scene) -> None:
    scene.grow("data", _LARGE)
    scene.start_pod("a")
    scene.recorder.wait_for("NodePublishVolume", status="OK", times=3)
    scene.wait_resize_error("data")
    scene.note_published("a")
    scene.note_claim("data")
    scene.end_pod("a")


SCENARIOS = (
    Scenario(
        name="expand-online",
        about="A volume grows under a running pod.",
        run=partial(_online, volume="data"),
        driver=_GROWING,
        volumes=(_FILESYSTEM,),
    ),
    Scenario(
        name="expand-block-online",
        about="A block volume grows under a running pod.",
        run=partial(_online, volume="disk"),
        volumes=(_DISK,),
    ),
    Scenario(
        name="expand-at-mount",
        about="A volume grew before its pod starts: the node expands it after publishing.",
        run=partial(_before_the_pod, volume="data"),
        driver=_GROWING,
        volumes=(_FILESYSTEM,),
    ),
    Scenario(
        name="expand-block-at-mount",
        about="A block volume grew before its pod starts.",
        run=partial(_before_the_pod, volume="disk"),
        volumes=(_DISK,),
    ),
    *(
        Scenario(
            name=f"expand-online-{code.lower().replace('_', '-')}",
            about=f"NodeExpandVolume answers {code}, {end}.",
            run=partial(script, code=code),
            driver=_GROWING,
            volumes=(_FILESYSTEM,),
        )
        for codes, end, script in (
            (_RETRIED, "then OK", _online_and_retried),
            (_FINAL, "which is final", _online_and_given_up),
        )
        for code in codes
    ),
    *(
        Scenario(
            name=f"expand-at-mount-{code.lower().replace('_', '-')}",
            about=f"NodeExpandVolume answers {code} while a pod starts.",
            run=partial(_at_mount_with_a_fault, code=code),
            driver=_GROWING,
            volumes=(_FILESYSTEM,),
        )
        for code in (*_RETRIED, *_FINAL)
    ),
    Scenario(
        name="expand-online-no-capability",
        about="A volume needs expansion on the node under a running pod; the driver lacks EXPAND_VOLUME.",
        run=_online_and_given_up,
        driver=_NOT_ON_NODES,
        volumes=(_FILESYSTEM,),
    ),
    Scenario(
        name="expand-at-mount-no-capability",
        about="The same, while a pod starts.",
        run=_at_mount_without_the_capability,
        driver=_NOT_ON_NODES,
        volumes=(_FILESYSTEM,),
    ),
)
