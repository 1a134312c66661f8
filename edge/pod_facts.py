"""A pod fact: what this node tells of its pods' volumes: whether a pod has them, and that nothing of them is left.

Rules:

* It is told as conditions of the pod, for whoever is the kubelet's part towards Kubernetes. They hold no times: what is
  the same is not told again.
* `VolumesReleased` is told of a pod that is being deleted, when it is over and no step, mount or directory of its
  volumes is left here. It is never taken back: the pod gets no volume any more.
* It is told until the pod is gone from the store. A pod without volumes is told of only when it is released.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from common.objects import Ref
from edge.volumes import Pod

MOUNTED: Final = "csi-bridge.io/VolumesMounted"
RELEASED: Final = "csi-bridge.io/VolumesReleased"

_SETTLE_S: Final = 0.5
"""From a change until it is told: a pod that starts passes through many."""

_LONGEST_MESSAGE: Final = 1_024
"""Characters; a pod has room for more, but an event says no more either."""


class Store(Protocol):
    """Where facts wait for the hub (`edge.metastore`)."""

    def put_fact(self, ref: Ref, body: dict[str, Any]) -> None:
        """Tell this in place of what was told of `ref` before; nothing if it is the same."""

    def drop_fact(self, ref: Ref) -> None:
        """Nothing is to be told of `ref` any more."""

    def fact_refs(self, kind: str) -> list[Ref]:
        """What is told of objects of a kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """How a pod stands.

    Attributes:
        deleted: it is being deleted.
        left: something of its volumes is here, or may be.
        has_volumes: it wants any; unknown of a pod that is over.
        missing: by the volumes that it wants and does not have: why, if that is known.
    """

    pod: Pod
    deleted: bool = False
    left: bool = False
    has_volumes: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_released(self) -> bool:
        """Whether it may end, as far as its volumes go."""
        return self.deleted and self.pod.gone and not self.left


class PodFacts:
    """The facts of one node's pods. Nothing is told before the first `changed`."""

    def __init__(
        self,
        store: Store,
        states: Callable[[], Iterable[PodState]],
        *,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """Nothing is told yet.

        Args:
            store: where it is left for the hub.
            states: how all pods in the store stand.
            later: calls back after so many seconds; the running loop does, if it is not given.
        """
        self._store, self._states = store, states
        self._later = later or asyncio.get_running_loop().call_later
        self._told: dict[Ref, PodState | None] = dict.fromkeys(store.fact_refs("Pod"))
        """None: an earlier life of the agent told it."""
        self._due = self._closed = False

    def changed(self) -> None:
        """Something may be another way now: it is told soon."""
        if not (self._due or self._closed):
            self._due = True
            self._later(_SETTLE_S, self._tell)

    def close(self) -> None:
        """Tell no more."""
        self._closed = True

    def _tell(self) -> None:
        self._due = False
        if self._closed:
            return
        told: dict[Ref, PodState | None] = {}
        for state in self._states():
            ref = Ref("Pod", state.pod.namespace, state.pod.name)
            if state.has_volumes or state.left or state.is_released or ref in self._told:
                told[ref] = state
                if self._told.get(ref) != state:
                    self._store.put_fact(ref, _body(state))
        for ref in self._told.keys() - told.keys():
            self._store.drop_fact(ref)
        self._told = told


def _body(state: PodState) -> dict[str, Any]:
    pod = state.pod
    released = [{"type": RELEASED, "status": "True", "reason": "Unmounted"}] if state.is_released else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "status": {"conditions": [_mounted(state), *released]},
    }


def _mounted(state: PodState) -> dict[str, str]:
    if state.pod.gone:
        return {"type": MOUNTED, "status": "False", "reason": "Unmounting" if state.left else "Unmounted"}
    if not state.missing:
        return {"type": MOUNTED, "status": "True", "reason": "Mounted"}
    whys = (f"{name}: {why}" if name and why else name or why for name, why in sorted(state.missing.items()))
    return {"type": MOUNTED, "status": "False", "reason": "Waiting", "message": "; ".join(whys)[:_LONGEST_MESSAGE]}
