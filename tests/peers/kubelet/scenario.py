"""A scenario: a driver, its volumes, and a short script of what happens to the pods that use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.peers.kubelet.cluster_objects import Driver, Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers.kubelet.scene import Scene

UP = {"stage": "NodeStageVolume", "publish": "NodePublishVolume"}
DOWN = {"unpublish": "NodeUnpublishVolume", "unstage": "NodeUnstageVolume"}
NO_ATTACH = Driver(attach=False)


def one_pod(scene: Scene, **pod: Any) -> None:
    """The plainest script: a pod, as `Scene.start_pod` takes it, comes, runs and goes."""
    scene.run_pod("a", **pod)
    scene.end_pod("a")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario.

    Attributes:
        driver: whose volumes.
    """

    name: str  # of its record: words joined by dashes
    about: str  # what happens, as a sentence
    run: Callable[[Scene], None] = one_pod  # the script
    driver: Driver = Driver()  # noqa: RUF009  # it is frozen
    volumes: tuple[Volume, ...] = (Volume(),)  # what there is before the script starts
    alone: bool = False  # whether no other may run on the node meanwhile, because it restarts the node
    slow: bool = False  # whether it takes minutes
    leaves: bool = False  # whether files of a volume stay behind for ever; the record then shows which
    measures: bool = False  # whether NodeGetVolumeStats belongs into its record
