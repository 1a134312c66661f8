"""The pod facts: the agent tells the hub how the volumes of each pod on this node are.

Rules:

* A pod has one fact, in the form of `common.objects.pod_fact`. It holds no times, so an unchanged state is not sent
  again.
* A pod that is being deleted gets the condition `VolumesReleased` once it is over and no step, mount or directory of
  its volumes is left here. The agent never takes it back: it mounts no volume for this pod again.
* A fact stays until the store has no such pod. A pod without volumes gets a fact only when it is released.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from common.objects.objects import Ref, encode_body
from common.objects.pod_fact import MOST_BYTES, MOUNTED, RELEASED, UNMOUNTED, ToldVolume, VolumeState, write_volumes
from edge.stores.fact_store import FactStore
from edge.volumes import Pod

SETTLE_S: Final = 0.5  # seconds between a change and the fact about it: a pod that starts passes through many states


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The state of a pod's volumes on this node."""

    pod: Pod
    deleted: bool = False  # the pod is being deleted
    left: bool = False  # a mount, a directory or a running step of its volumes is here, or may be
    volumes: tuple[ToldVolume, ...] = ()  # every volume that the node mounts for the pod; none once the pod is over

    @property
    def is_released(self) -> bool:
        return self.deleted and self.pod.gone and not self.left


class PodFacts:
    """The facts about one node's pods."""

    def __init__(self, store: FactStore, states: Callable[[], Iterable[PodState]]) -> None:
        self._store = store
        self._states = states
        # None: the agent told it before its restart.
        self._told: dict[Ref, PodState | None] = dict.fromkeys(store.refs("Pod"))

    def tell(self) -> None:
        told: dict[Ref, PodState | None] = {}
        for state in self._states():
            ref = Ref("Pod", state.pod.namespace, state.pod.name)
            if state.volumes or state.left or state.is_released or ref in self._told:
                told[ref] = state
                if self._told.get(ref) != state:
                    self._store.put(ref, _body(state))
        for ref in self._told.keys() - told.keys():
            self._store.drop(ref)
        self._told = told


def _body(state: PodState) -> dict[str, Any]:
    pod = state.pod
    released = [{"type": RELEASED, "status": "True", "reason": UNMOUNTED}] if state.is_released else []
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "status": {"conditions": [_mounted(state), *released]},
    }
    if not pod.gone:
        volumes = write_volumes(state.volumes, most_bytes=MOST_BYTES - len(encode_body(body)))
        if volumes is not None:
            body["status"]["volumes"] = volumes
    return body


def _mounted(state: PodState) -> dict[str, str]:
    if state.pod.gone:
        return {"type": MOUNTED, "status": "False", "reason": "Unmounting" if state.left else UNMOUNTED}
    if all(volume.state is VolumeState.MOUNTED for volume in state.volumes):
        return {"type": MOUNTED, "status": "True", "reason": "Mounted"}
    return {"type": MOUNTED, "status": "False", "reason": "Waiting"}
