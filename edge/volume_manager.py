"""The volume manager: mounts and unmounts this node's volumes as its pods need them, with one task per volume.

Rules:

* Changed objects, changed drivers and the end of a pod's grace period wake the tasks they concern. Only unreadable
  objects and directories of an earlier run are polled.
* At start, the manager trusts the rows in the agent's database if the mount table agrees with them. A volume without a
  row may have directories on the disk. Its task mounts it again if a pod wants it, else unmounts it
  (docs/csi-contract.md#volumes-found-after-a-restart).
* A pod that is missing in the store may still arrive. So its volumes are unmounted only if the store has
  once had all of the hub's objects, perhaps in an earlier run. For a volume without a row, the store must have had them
  since the present start (docs/csi-contract.md#cleaning-up-waits-for-a-complete-store).
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from common.objects.left_over import LeftOver
from common.objects.objects import Ref
from common.observe.metrics import VolumeStats
from common.pages.agent import PodStatus, PodVolumeStatus
from edge.manager.host import VolumeHost
from edge.manager.task import VolumeTask
from edge.reports.leftovers import Leftovers
from edge.reports.pod_facts import PodState
from edge.reports.reconstruction import reconstruct, sweep
from edge.reports.report import (
    is_left_over,
    report_leaving,
    report_pod,
    report_unreadable,
    report_unresolved,
    report_wanted,
    told_left_over,
    told_volumes,
)
from edge.volumes import PodVolume, VolumeKey
from edge.wanted.places import target_for
from edge.wanted.resolution import PodWants
from edge.wanted.states import Publication

log = logging.getLogger("csi_bridge.edge.volumes")

_REPORT_AFTER_S = 123.0  # then an event reports a volume that cannot be resolved (the kubelet's 2 min 3 s)
_RESTART_S = 10.0  # the wait before the restart of a task that failed because of a bug, so that it does not spin
_READ_AGAIN_S = 10.0  # the interval of retries for objects that cannot be read from the disk
_LEFTOVERS_S = 60.0  # the interval at which `Leftovers` checks directories from an earlier run, while there are any


@dataclass(slots=True)
class _UnresolvedVolume:
    since: float  # when it was first found unresolved, in seconds since the epoch
    began_at: float  # the same time by the monotonic clock
    is_reported: bool = False  # whether an event has reported the volume


class VolumeManager:
    """Runs the tasks of one node's volumes, and reports their state. `start` it, and `close` it."""

    def __init__(self, host: VolumeHost) -> None:
        self._host = host
        self._objects = host.objects
        self._plugin = host.plugin
        self._drivers = host.drivers
        self._facts = host.facts
        self._fencing = host.fencing
        self._clock = host.clock
        self.wanted = host.wanted
        self._users = host.users  # by volume: the uids of the pods that want it now
        host.changed = self._tell_subscribers
        host.use_changed = self._tell_in_use
        self._volumes: dict[VolumeKey, VolumeTask] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted_by_pod: dict[str, set[VolumeKey]] = {}  # by pod uid: the volumes that the pod wants now
        self._leftovers = Leftovers(host, self._volumes)
        self._unresolved: dict[str, dict[str, _UnresolvedVolume]] = {}  # by pod uid and volume name
        self._told_in_use: list[str] = []
        self._subscribers: list[Callable[[], None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # The drivers' states at the last change of a driver, by name: only tasks whose driver differs retry.
        self._driver_states: dict[str, object] = {}
        self._is_in_step = False  # whether the store had all of the hub's objects when last checked
        self._running = False
        self._started_at = self._clock.time()

    # ---- start and close ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a task for each volume. Raises NotReady if the present mounts cannot be found: call it again then."""
        await self._reconstruct()
        self._running = True
        self._objects.subscribe(self._objects_changed)
        self._drivers.subscribe(self._drivers_changed)
        await self._fencing.release_others(
            key for key, volume in self._volumes.items() if volume.rows.device is not None
        )
        # None: the hub need not confirm that no other node has the volume. A volume with `fence` has a
        # VolumeAttachment, which keeps other nodes off.
        acked = partial(self._host.in_use_acked, None)
        self._fencing.subscribe(self._fencing_changed, self._host.in_use_changed, acked)
        if self._objects.ever_in_step:  # claims may have been deleted while the agent did not run
            self._forget_absent_claims(self._facts.claims())
        self._pods_changed(self.wanted.load(self._clock.monotonic()))
        for volume in list(self._volumes.values()):
            self._run_task(volume)
        self._update_in_step()
        self._start_cleaning()

    async def close(self, drain_s: float) -> None:
        """Wait for the running steps, then cancel them. Mounts stay. Cancelling this leaves the steps running."""
        self._running = False
        for timer in self._timers.values():
            timer.cancel()
        for volume in self._volumes.values():
            volume.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def volumes_in_use(self) -> list[str]:
        return sorted(str(key) for key, volume in self._volumes.items() if volume.use.is_reported)

    def sole_uses(self) -> list[VolumeKey]:
        return [key for key, volume in self._volumes.items() if volume.use.is_reported and volume.use.is_sole]

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the result of `describe` may have changed, except for usage and health."""
        self._subscribers.append(callback)

    def describe(self) -> list[PodVolumeStatus]:
        volumes_by_pod = self._volumes_by_pod()
        live = [wants for wants in self.wanted.pods if not wants.pod.gone]
        shown = [entry for wants in live for entry in self._describe(wants, volumes_by_pod)]
        uses = {(entry.uid, entry.driver, entry.handle) for entry in shown}
        for leaving in self._leaving():
            # The pods of a fenced volume still ask for the volume, so `shown` may have the entry already.
            is_fenced = self._fencing.is_fenced(VolumeKey(leaving.driver, leaving.handle))
            if not is_fenced or (leaving.uid, leaving.driver, leaving.handle) not in uses:
                shown.append(self._as_fenced(leaving))
        return sorted(shown, key=lambda entry: (entry.namespace, entry.pod, entry.volume, entry.pv, entry.uid))

    def left_over(self) -> list[LeftOver]:
        """Return the mounts that no pod wants, and that the agent may not or cannot take down."""
        return [told_left_over(entry) for entry in self._leaving() if is_left_over(entry)]

    def _leaving(self) -> Iterator[PodVolumeStatus]:
        for volume in self._volumes.values():
            yield from report_leaving(volume, self._host)
        yield from (report_unreadable(entry, self._started_at) for entry in self._leftovers.shown)

    def usage(self) -> dict[tuple[str, str], VolumeStats]:
        # A thread may call this, so it reads copies.
        usage: dict[tuple[str, str], VolumeStats] = {}
        for volume in list(self._volumes.values()):
            for target, stats in volume.upkeep.stats.copy().items():
                want = volume.wants.get(target)
                claim = want.volume.claim if want is not None else None
                if claim is not None:
                    # If several pods have a claim, the usage is that of one mount, as with a kubelet.
                    usage[claim.namespace, claim.name] = stats
        return usage

    def describe_pods(self) -> list[PodStatus]:
        volumes_by_pod = self._volumes_by_pod()
        live = [wants for wants in self.wanted.pods if not wants.pod.gone]
        pods = [report_pod(wants, self._describe(wants, volumes_by_pod)) for wants in live]
        return sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid))

    def pod_states(self) -> list[PodState]:
        volumes_by_pod = self._volumes_by_pod()
        steps = [volume.doing for volume in self._volumes.values() if volume.doing is not None]
        busy = {target.pod_uid for _, target in steps}
        occupied = volumes_by_pod.keys() | busy | {entry.pod_uid for entry in self._leftovers.shown}
        return [self._pod_state(wants, volumes_by_pod, occupied) for wants in self.wanted.pods]

    def _pod_state(
        self, wants: PodWants, volumes_by_pod: Mapping[str, set[VolumeKey]], occupied: Collection[str]
    ) -> PodState:
        shown = [] if wants.pod.gone else self._describe(wants, volumes_by_pod)
        return PodState(
            pod=wants.pod,
            deleted=wants.deleted_at is not None,
            left=wants.pod.uid in occupied,
            volumes=told_volumes(wants, shown, self._publications(wants.pod.uid, volumes_by_pod)),
        )

    def _describe(self, wants: PodWants, volumes_by_pod: Mapping[str, set[VolumeKey]]) -> list[PodVolumeStatus]:
        resolved = [
            self._as_fenced(report_wanted(want, self._volumes.get(want.volume.key), self._host))
            for want in wants.volumes
        ]
        mounted = {row.volume_name for row in self._publications(wants.pod.uid, volumes_by_pod)}
        known = self._unresolved.get(wants.pod.uid, {})
        return resolved + [
            report_unresolved(wants, name, known[name].since if name in known else self._clock.time())
            for name in wants.unresolved
            if name not in mounted
        ]

    def _as_fenced(self, entry: PodVolumeStatus) -> PodVolumeStatus:
        key = VolumeKey(entry.driver, entry.handle)
        if not self._fencing.is_fenced(key):
            return entry
        progress = self._fencing.fence_report(key) or "its file system is being shut down"
        return replace(entry, state="fenced", error=f"no answer of the hub in time, so the agent fenced it: {progress}")

    def _publications(self, uid: str, volumes_by_pod: Mapping[str, set[VolumeKey]]) -> Iterator[Publication]:
        for key in volumes_by_pod.get(uid, ()):
            yield from (row for row in self._volumes[key].rows.publications.values() if row.pod_uid == uid)

    def _volumes_by_pod(self) -> dict[str, set[VolumeKey]]:
        # by pod uid: the volumes that the pod has, or may have
        found: defaultdict[str, set[VolumeKey]] = defaultdict(set)
        for key, volume in self._volumes.items():
            for target in volume.rows.publications:
                found[target.pod_uid].add(key)
        return found

    def _tell_subscribers(self) -> None:
        for callback in list(self._subscribers):
            callback()

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _objects_changed(self, changed: frozenset[Ref]) -> None:
        if not self._running:
            return
        self._forget_absent_claims(changed)
        self._pods_changed(self.wanted.update(changed, self._clock.monotonic()))
        self._update_in_step()

    def _forget_absent_claims(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            with contextlib.suppress(OSError):  # an unreadable claim may exist
                if ref.kind == "PersistentVolumeClaim" and self._objects.get(ref) is None:
                    self._facts.forget_claim(ref.namespace, ref.name)

    def _drivers_changed(self) -> None:
        if not self._running:
            return
        self._pods_changed(self.wanted.update_labels(self._clock.monotonic()))
        before = self._driver_states
        self._driver_states = {key.driver: self._state_of(key.driver) for key in self._volumes}
        for volume in list(self._volumes.values()):
            name = volume.key.driver
            # A driver that restarts must not reset the back-off of other drivers' volumes.
            if self._driver_states[name] != before[name]:
                volume.retry()

    def _state_of(self, name: str) -> object:
        driver = self._drivers.find(name)
        return None if driver is None else (driver.registered, driver.file, driver.capabilities)

    def _pods_changed(self, uids: Collection[str]) -> None:
        touched: set[VolumeKey] = set()
        volumes_by_pod = self._volumes_by_pod() if uids else {}
        for uid in uids:
            wants = self.wanted.of(uid)
            alive = wants if wants is not None and not wants.pod.gone else None
            keys = {want.volume.key for want in alive.volumes} if alive is not None else set()
            before = self._wanted_by_pod.pop(uid, set())
            for key in before - keys:
                self._users[key].discard(uid)
            for key in keys:
                self._users[key].add(uid)
            if keys:
                self._wanted_by_pod[uid] = keys
            touched |= before | keys | volumes_by_pod.get(uid, set())
            self._note_unresolved(uid, alive)
        for key in touched:
            self._update_wants(key)
        self._wake_for_pods()
        if uids:
            self._start_cleaning()
            self._report_unresolved()
            self._tell_in_use()
            self._tell_subscribers()

    def _fencing_changed(self, keys: Collection[VolumeKey]) -> None:
        # Without keys, any volume may be mounted now.
        if not self._running:
            return
        for key in keys:
            self._tell_fenced(key)
            self._update_wants(key)
        if not keys:
            for volume in list(self._volumes.values()):
                volume.retry()
        self._host.in_use_changed()
        self._tell_subscribers()

    def _tell_fenced(self, key: VolumeKey) -> None:
        if report := self._fencing.fence_report(key):
            for wants in filter(None, map(self.wanted.of, sorted(self._users.get(key, ())))):
                for want in wants.volumes:
                    if want.volume.key == key:
                        text = f'volume "{want.volume.name}" was fenced, because the hub did not answer: {report}'
                        self._facts.tell_pod(wants.pod, "Fenced", text)

    def _update_wants(self, key: VolumeKey) -> None:
        users = () if self._fencing.is_fenced(key) else sorted(self._users[key])
        wants = {}
        for uid in users:
            of_pod = self.wanted.of(uid)
            if of_pod is None:
                continue
            for want in of_pod.volumes:
                if want.volume.key == key and self._may_begin(of_pod, want):
                    wants[target_for(want)] = want
        if not self._users[key]:  # the look-up itself may have made the empty set
            del self._users[key]
        if wants or key in self._volumes:
            volume = self._volume(key)
            volume.want(wants)
            self._run_task(volume)

    def _may_begin(self, wants: PodWants, want: PodVolume) -> bool:
        # A pod that is being deleted gets no new volume (the kubelet's populator).
        task = self._volumes.get(want.volume.key)
        target = target_for(want)
        return wants.ends_at is None or (
            task is not None and (target in task.wants or target in task.rows.publications)
        )

    def _run_task(self, volume: VolumeTask) -> None:
        if not self._running or volume.running:
            return
        volume.running = True
        task = asyncio.create_task(volume.run(), name=f"volume {volume.key}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._task_ended(volume, task))

    def _task_ended(self, volume: VolumeTask, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        volume.running = False
        if task.cancelled() or task.exception() is not None:
            # A closing loop cancels all tasks, so the restart waits: a new task would be left in that loop.
            if not task.cancelled():
                log.error("the task of volume %s failed", volume.key, exc_info=task.exception())
            self._set_timer(f"restart {volume.key}", _RESTART_S, lambda: self._run_task(volume))
        elif not volume.is_over:
            self._run_task(volume)  # a pod wanted it again while `run` ended
        elif self._volumes.get(volume.key) is volume:
            del self._volumes[volume.key]
            if self._fencing.is_held(volume.key):  # held for a staging that never happened
                self._run_in_background(self._let_go_unless_wanted(volume.key), f"let go {volume.key}")
            self._tell_in_use()
            self._start_cleaning()
        self._tell_subscribers()

    async def _let_go_unless_wanted(self, key: VolumeKey) -> None:
        if key not in self._volumes:
            await self._fencing.let_go(key)

    def _tell_in_use(self) -> None:
        in_use = self.volumes_in_use()
        if in_use != self._told_in_use:
            self._told_in_use = in_use
            self._host.in_use_changed()

    # ---- time --------------------------------------------------------------------------------------------------------

    def _set_timer(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        # Replaces an earlier timer of this name.
        if not self._running:
            return
        old = self._timers.pop(name, None)
        if old is not None:
            old.cancel()

        def ring() -> None:
            del self._timers[name]
            callback()

        self._timers[name] = self._clock.call_later(delay_s, ring)

    def _wake_for_pods(self) -> None:
        wanted = self.wanted
        now = self._clock.monotonic
        ends_at = wanted.next_end()
        if ends_at is not None:
            delay_s = max(ends_at - now(), 0.0) + 0.001  # a timer may fire a moment early
            self._set_timer("grace", delay_s, lambda: self._pods_changed(wanted.expire(now())))
        if wanted.has_unread and "read again" not in self._timers:  # a further change must not postpone the retry
            self._set_timer("read again", _READ_AGAIN_S, lambda: self._pods_changed(wanted.read_again(now())))

    def _note_unresolved(self, uid: str, wants: PodWants | None) -> None:
        old = self._unresolved.pop(uid, {})
        if wants is not None and wants.unresolved:
            new = _UnresolvedVolume(self._clock.time(), self._clock.monotonic())
            self._unresolved[uid] = {name: old.get(name) or replace(new) for name in wants.unresolved}

    def _report_unresolved(self) -> None:
        now = self._clock.monotonic()
        next_s = None
        for uid, names in self._unresolved.items():
            wants = self.wanted.of(uid)
            assert wants is not None
            for name, volume in names.items():
                if volume.is_reported:
                    continue
                left_s = 0.0 if name in wants.refused else volume.began_at + _REPORT_AFTER_S - now
                if left_s <= 0:
                    volume.is_reported = True
                    message = f"Unable to attach or mount volumes: {name or 'all'}: {wants.unresolved[name]}"
                    self._facts.tell_pod(wants.pod, "FailedMount", message)
                else:
                    next_s = left_s if next_s is None else min(next_s, left_s)
        if next_s is not None:
            self._set_timer("unresolved", max(next_s, 1.0), self._report_unresolved)

    # ---- in step -----------------------------------------------------------------------------------------------------

    def _update_in_step(self) -> None:
        # Some steps wait until the store is complete. A new link makes it incomplete for a while.
        if self._objects.in_step == self._is_in_step:
            return
        self._is_in_step = self._objects.in_step
        if self._is_in_step:
            self._host.was_in_step = True
            for volume in list(self._volumes.values()):
                volume.retry()
            self._start_cleaning()
        else:
            for volume in self._volumes.values():
                volume.use.out_of_step()

    # ---- state at start ----------------------------------------------------------------------------------------------

    async def _reconstruct(self) -> None:
        found = await self._plugin.scan()
        rows = await reconstruct(self._host, found, now=self._started_at)
        for row in rows:
            self._volume(row.key).rows.add(row)
        self._leftovers.begin(found.unreadable, rows)
        await sweep(self._host, rows)

    def _volume(self, key: VolumeKey) -> VolumeTask:
        self._driver_states.setdefault(key.driver, self._state_of(key.driver))
        return self._volumes.setdefault(key, VolumeTask(key, self._host))

    # ---- directories from an earlier run -----------------------------------------------------------------------------

    def _start_cleaning(self) -> None:
        if self._leftovers and self._running:
            self._run_in_background(self._clean(), "clean leftovers")

    async def _clean(self) -> None:
        await self._leftovers.look()
        self._tell_subscribers()
        if self._leftovers:  # a person may repair or unmount it meanwhile
            self._set_timer("leftovers", _LEFTOVERS_S, self._start_cleaning)

    def _run_in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())
