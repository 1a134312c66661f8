"""The callers: they want volumes made, attached, grown, copied and deleted, and retry as the stock sidecars do."""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from common.csi import csi_pb2 as csi
from tests.chaos.judge import MADE, MAY_RETRY, Attempt, Step
from tests.kit.requests import create, create_at
from tests.kit.sidecar import Outcome

Ask = Callable[[str, Message, float], Outcome]  # makes one call: method, request, time limit

_MIB = 1 << 20
_MOUNT = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
_RANGE = csi.CapacityRange(required_bytes=16 * _MIB)
_FIRST_S, _LONGEST_S = 0.3, 2.0  # the back-off of a stock sidecar is 1 s to 5 min

_PAUSE_S = 20.0  # the longest time for which a caller forgets a create, which ends with the run

_BETWEEN_S = 1.0  # the longest time between an answer and what the caller wants next


class Stopped(Exception):
    """The run is over, and the outcome is not known."""


class Callers:
    """Many lives of volumes at one time, each in a thread of its own."""

    def __init__(self, seed: int, drivers: dict[str, Ask], nodes: Sequence[str], *, local: str, at_once: int) -> None:
        """Start nothing yet.

        Args:
            seed: what each life wants follows from it, and from the name.
            local: the driver whose volumes live on one node.
            at_once: how many lives run at one time.
        """
        self.steps: list[Step] = []  # all that was asked for; threads append to it
        self._seed, self._drivers, self._nodes, self._local = seed, drivers, nodes, local
        self._ends, self._stops = threading.Event(), threading.Event()
        self._lock, self._begun = threading.Lock(), 0
        self._threads = [threading.Thread(target=self._live, name=f"caller {it}") for it in range(at_once)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Begin no more lives."""
        self._ends.set()

    def stop(self) -> None:
        """Give up what has no outcome yet."""
        self._ends.set()
        self._stops.set()
        for thread in self._threads:
            thread.join()

    @property
    def running(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    @property
    def done(self) -> int:
        """How many steps have an outcome."""
        return sum(step.over < math.inf for step in self.steps)

    def _live(self) -> None:
        while not self._ends.is_set():
            with self._lock:
                self._begun += 1
                name = f"v-{self._begun}"
            dice = random.Random(f"{self._seed} {name}")
            driver = dice.choice(list(self._drivers))
            try:
                _Life(self, name, driver, dice).live()
            except Stopped:
                return


class _Life:
    """One volume, from its create to its deletion."""

    def __init__(self, callers: Callers, name: str, driver: str, dice: random.Random) -> None:
        self._callers, self._name, self._driver, self._dice = callers, name, driver, dice
        self._ask, self._nodes = callers._drivers[driver], callers._nodes
        self._is_local = driver == callers._local
        self._node, self._is_moved = dice.choice(self._nodes), False

    def live(self) -> None:
        volume = str(self._do("CreateVolume", (self._name,), self._create, pauses=True).volume.volume_id)
        for want in self._dice.choices([self._attach, self._grow, self._copy], [4, 1, 2], k=self._dice.randint(0, 3)):
            want(volume)
        self._do("DeleteVolume", (volume,), lambda: csi.DeleteVolumeRequest(volume_id=volume))

    def _create(self) -> Message:
        fields = {"volume_capabilities": [_MOUNT], "capacity_range": _RANGE}
        if not self._is_local:
            return create(self._name, **fields)
        if self._is_moved or self._dice.random() < 0.03:  # the scheduler chooses again
            self._node, self._is_moved = self._dice.choice(self._nodes), True
        return create_at(self._name, {f"topology.{self._driver}/node": self._node}, **fields)

    def _attach(self, volume: str) -> None:
        node = self._where if self._is_local else self._dice.choice(self._nodes)
        key, ids = (volume, node), {"volume_id": volume, "node_id": node}
        asked = csi.ControllerPublishVolumeRequest(**ids, volume_capability=_MOUNT)
        undone = self._dice.random() < 0.2
        published = self._begin("ControllerPublishVolume", key)
        self._retry(published, lambda: asked, once=undone)
        self._do("ControllerUnpublishVolume", key, lambda: csi.ControllerUnpublishVolumeRequest(**ids))
        published.over = min(published.over, time.time())

    def _grow(self, volume: str) -> None:
        wanted = csi.CapacityRange(required_bytes=self._dice.randint(17, 64) * _MIB)
        asked = csi.ControllerExpandVolumeRequest(volume_id=volume, capacity_range=wanted)
        self._do("ControllerExpandVolume", (volume,), lambda: asked)

    def _copy(self, volume: str) -> None:
        name = f"{self._name}-s{self._dice.randrange(10**6)}"
        asked = csi.CreateSnapshotRequest(name=name, source_volume_id=volume)
        copy = str(self._do("CreateSnapshot", (name,), lambda: asked, pauses=True).snapshot.snapshot_id)
        self._do("DeleteSnapshot", (copy,), lambda: csi.DeleteSnapshotRequest(snapshot_id=copy))

    def _do(self, method: str, key: tuple[str, ...], request: Callable[[], Message], *, pauses: bool = False) -> Any:
        return self._retry(self._begin(method, key), request, pauses=pauses)

    def _begin(self, method: str, key: tuple[str, ...]) -> Step:
        step = Step(self._name, method, key, time.time())
        self._callers.steps.append(step)
        return step

    def _retry(self, step: Step, request: Callable[[], Message], *, once: bool = False, pauses: bool = False) -> Any:
        """Call until the answer is OK; return it.

        Args:
            step: what is wanted.
            request: makes the request of each call.
            once: give up after one call; the opposite step follows. Returns None then.
            pauses: after a code that says nothing, the caller may forget the step for a long time.
        """
        wait_s = _FIRST_S
        while True:
            begin = time.time()
            outcome = self._ask(step.method, request(), self._dice.uniform(2.0, 10.0))
            step.attempts.append(Attempt(begin, time.time(), outcome.code.name, outcome.message))
            if outcome.ok:
                self._note(step, outcome.answer)
                return outcome.answer
            if once:
                return None
            if pauses and outcome.code.name in MAY_RETRY and self._dice.random() < 0.03:
                self._callers._ends.wait(_PAUSE_S)
            if self._callers._stops.wait(wait_s):
                raise Stopped
            wait_s = min(2 * wait_s, _LONGEST_S)

    def _note(self, step: Step, answer: Any) -> None:
        step.over = time.time()
        if step.method in MADE:
            made = getattr(answer, step.method.removeprefix("Create").lower())
            step.made = getattr(made, MADE[step.method])
            if step.method == "CreateVolume" and self._is_local:
                (term,) = made.accessible_topology
                self._where = term.segments[f"topology.{self._driver}/node"]
        self._callers._stops.wait(self._dice.uniform(0.0, _BETWEEN_S))
