"""Scenarios of interruptions: pods that go too early, drivers that die or leave, a node's process that is killed."""

from functools import partial

from tests.peers.kubelet.cluster_objects import Volume
from tests.peers.kubelet.scenario import DOWN, NO_ATTACH, UP, Scenario, one_pod
from tests.peers.kubelet.scene import Scene

_DISK = Volume(name="disk", block=True)


def _attached_late(scene: Scene) -> None:
    scene.start_pod("a", attach=False)
    scene.let_pass("the node waits for the attachment")
    scene.attach("data")
    scene.wait_published("a")
    scene.end_pod("a")


def _pod_deleted_during(scene: Scene, *, method: str, grace_s: int = 1) -> None:
    scene.recorder.hold(method)
    scene.start_pod("a", grace_s=grace_s)
    scene.recorder.wait_begun(method)
    scene.delete_pod("a")
    scene.let_pass("the node knows of the deletion")
    scene.let_go()
    scene.wait_gone("a")


def _driver_killed_before(scene: Scene, *, method: str) -> None:
    scene.recorder.hold(method)
    scene.start_pod("a")
    scene.recorder.wait_begun(method)
    scene.kill_driver()
    scene.let_go()
    scene.recorder.wait_for(method, status="UNAVAILABLE")
    scene.let_pass("the node has tried again")
    scene.start_driver()
    scene.wait_published("a")
    scene.end_pod("a")


def _driver_dies_after(scene: Scene, *, method: str) -> None:
    scene.faults(f"{method}=crash-after")
    scene.start_pod("a")
    scene.recorder.wait_for(method, status="UNAVAILABLE")
    scene.let_pass("the node has tried again")
    scene.faults()
    scene.start_driver()
    scene.wait_published("a")
    scene.end_pod("a")


def _driver_away_while_the_pod_goes(scene: Scene) -> None:
    scene.run_pod("a")
    scene.kill_driver()
    scene.delete_pod("a")
    scene.recorder.wait_for("NodeUnpublishVolume", status="UNAVAILABLE", times=2)
    scene.start_driver()
    scene.wait_gone("a")


def _unregistered_under_a_pod(scene: Scene) -> None:
    scene.run_pod("a")
    scene.unregister()
    scene.let_pass("the node has forgotten the driver, if it does that soon")
    scene.register()
    scene.end_pod("a")


def _unregistered_while_the_pod_goes(scene: Scene) -> None:
    scene.run_pod("a")
    scene.unregister()
    scene.let_pass("the node has forgotten the driver, if it does that soon")
    scene.delete_pod("a")
    scene.let_pass("the node has tried without the driver, or has done it")
    scene.register()
    scene.wait_gone("a")


def _registered_late(scene: Scene) -> None:
    scene.unregister()
    scene.let_pass("the node has forgotten the driver, if it does that soon")
    scene.start_pod("a")
    scene.let_pass("the node has tried without the driver, or has done it")
    scene.register()
    scene.wait_published("a")
    scene.end_pod("a")


def _node_killed_under_a_pod(scene: Scene) -> None:
    scene.run_pod("a")
    scene.kill_node()
    scene.start_node()
    scene.let_pass("the node has looked at what it has")
    scene.end_pod("a")


def _pod_deleted_without_the_node(scene: Scene, *, grace_s: int = 1) -> None:
    scene.run_pod("a", grace_s=grace_s)
    scene.kill_node()
    scene.delete_pod("a")
    scene.start_node()
    scene.wait_gone("a")


def _node_killed_on_the_way_up(scene: Scene, *, method: str, done: bool, deleted: bool = False) -> None:
    scene.recorder.hold(method, answers=done)
    scene.start_pod("a", grace_s=0 if deleted else 1)
    scene.recorder.wait_held(method)
    scene.kill_node()
    scene.let_go()
    if deleted:
        scene.delete_pod("a")
    scene.start_node()
    if not deleted:
        scene.wait_published("a")
        scene.delete_pod("a")
    scene.wait_gone("a")


def _node_killed_on_the_way_down(scene: Scene, *, method: str, done: bool) -> None:
    scene.run_pod("a")
    scene.recorder.hold(method, answers=done)
    scene.delete_pod("a")
    scene.recorder.wait_held(method)
    scene.kill_node()
    scene.let_go()
    scene.start_node()
    scene.wait_gone("a")


_WHEN = {True: ("after", "after the work of"), False: ("before", "before the work of")}

SCENARIOS = (
    Scenario(
        name="attached-late",
        about="The volume is attached after the pod was created.",
        run=_attached_late,
    ),
    *(
        Scenario(
            name=f"pod-deleted-during-{word}",
            about=f"The pod is deleted while {method} runs.",
            run=partial(_pod_deleted_during, method=method),
            driver=NO_ATTACH,
        )
        for word, method in UP.items()
    ),
    *(
        Scenario(
            name=f"pod-forced-away-during-{word}",
            about=f"The pod is deleted without grace while {method} runs.",
            run=partial(_pod_deleted_during, method=method, grace_s=0),
            driver=NO_ATTACH,
        )
        for word, method in UP.items()
    ),
    Scenario(
        name="block-pod-deleted-during-publish",
        about="The pod is deleted while NodePublishVolume of a block volume runs.",
        run=partial(_pod_deleted_during, method="NodePublishVolume"),
        driver=NO_ATTACH,
        volumes=(_DISK,),
    ),
    Scenario(
        name="forced-deletion",
        about="A running pod is deleted without grace.",
        run=partial(one_pod, grace_s=0),
        driver=NO_ATTACH,
    ),
    *(
        Scenario(
            name=f"driver-killed-before-{word}",
            about=f"The driver is killed before {method} reaches it, and restarts later.",
            run=partial(_driver_killed_before, method=method),
            driver=NO_ATTACH,
        )
        for word, method in UP.items()
    ),
    *(
        Scenario(
            name=f"driver-dies-after-{word}",
            about=f"The driver dies after the work of {method}, before its answer.",
            run=partial(_driver_dies_after, method=method),
            driver=NO_ATTACH,
        )
        for word, method in UP.items()
    ),
    Scenario(
        name="driver-away-while-pod-goes",
        about="The pod is deleted while the driver is dead; the driver restarts later.",
        run=_driver_away_while_the_pod_goes,
        driver=NO_ATTACH,
    ),
    Scenario(
        name="driver-unregistered-under-pod",
        about="The driver unregisters and registers again while a pod runs.",
        run=_unregistered_under_a_pod,
        driver=NO_ATTACH,
    ),
    Scenario(
        name="driver-unregistered-while-pod-goes",
        about="The pod is deleted while the driver is not registered.",
        run=_unregistered_while_the_pod_goes,
        driver=NO_ATTACH,
    ),
    Scenario(
        name="driver-registered-late",
        about="The pod is created while the driver is not registered.",
        run=_registered_late,
        driver=NO_ATTACH,
    ),
    Scenario(
        name="node-killed-under-pod",
        about="The node is killed and restarted under a running pod.",
        run=_node_killed_under_a_pod,
        alone=True,
    ),
    Scenario(
        name="node-killed-under-block-pod",
        about="The same, with a block volume.",
        run=_node_killed_under_a_pod,
        volumes=(_DISK,),
        alone=True,
    ),
    Scenario(
        name="pod-deleted-without-node",
        about="The pod is deleted while the node is dead.",
        run=_pod_deleted_without_the_node,
        alone=True,
    ),
    Scenario(
        name="pod-forced-away-without-node",
        about="The pod is deleted without grace while the node is dead.",
        run=partial(_pod_deleted_without_the_node, grace_s=0),
        driver=NO_ATTACH,
        alone=True,
    ),
    Scenario(
        name="block-pod-forced-away-without-node",
        about="The same, with a block volume.",
        run=partial(_pod_deleted_without_the_node, grace_s=0),
        driver=NO_ATTACH,
        volumes=(_DISK,),
        alone=True,
    ),
    *(
        Scenario(
            name=f"node-killed-{when}-{word}",
            about=f"The node is killed {moment} {method}.",
            run=partial(_node_killed_on_the_way_up, method=method, done=done),
            driver=NO_ATTACH,
            alone=True,
        )
        for word, method in UP.items()
        for done, (when, moment) in _WHEN.items()
    ),
    *(
        Scenario(
            name=f"node-killed-after-{word}-pod-gone",
            about=f"The node is killed after the work of {method}; the pod is deleted before it restarts.",
            run=partial(_node_killed_on_the_way_up, method=method, done=True, deleted=True),
            driver=NO_ATTACH,
            alone=True,
            leaves=word == "stage",  # the kubelet finds volumes by their pods' directories, and there is none
        )
        for word, method in UP.items()
    ),
    *(
        Scenario(
            name=f"node-killed-{when}-{word}",
            about=f"The node is killed {moment} {method}.",
            run=partial(_node_killed_on_the_way_down, method=method, done=done),
            driver=NO_ATTACH,
            alone=True,
            leaves=word == "unstage",  # the same
        )
        for word, method in DOWN.items()
        for done, (when, moment) in _WHEN.items()
    ),
)
