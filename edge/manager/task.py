"""A volume task: makes all changes to one volume on this node, one step at a time.

Rules:

* Each volume has one task. Only this task calls the driver for the volume, and never twice at a time. A running step
  ends before the next begins. Only the reading of usage and health is cancelled when another step is due.
* Each mount has a row in the agent's database. Before a call of the driver the row says `UNCERTAIN`; after the answer
  it has the result (docs/csi-contract.md#the-state-is-on-disk-before-the-call). The next call for an uncertain mount is
  the same call again or its opposite (docs/csi-contract.md#an-uncertain-volume-is-mounted-again-or-undone). A mount
  whose row says `DONE` is not requested again.
* Order: rows that are not on disk yet, then unpublishing, then the rest. Unpublishing is checked again right before the
  call (`_must_unpublish`). The driver unstages a volume only when it is published to no pod.
* When the driver refuses to mount (a final gRPC code), the task removes the row. It keeps the row if the mount table
  shows a mount, or if only directories on the disk showed the volume at start. It keeps the row of a staging if a pod
  has the volume. A failed republish changes no row.
* The task retries a failed step with the kubelet's back-off. When an object or a driver that concerns the volume has
  changed, it retries at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from edge.disk.found_volumes import published_for, staged_for
from edge.disk.mounts import MountTable
from edge.manager.deferral import VolumeDeferral, handover_fields
from edge.manager.expander import VolumeExpander
from edge.manager.host import VolumeHost
from edge.manager.rows import VolumeRows
from edge.manager.staging import VolumeStaging, publish_arguments
from edge.manager.steps import MOUNTING, REGULAR, Candidate, Step, tell_pods
from edge.manager.upkeep import VolumeUpkeep
from edge.manager.use import VolumeUse
from edge.volume_errors import NotReady, VolumeError, VolumeRefused
from edge.volumes import PodVolume, Volume, VolumeKey
from edge.wanted.call_inputs import Waiting
from edge.wanted.places import VOLUME, Target
from edge.wanted.states import BY_DRIVER, Device, Publication, Row, State
from edge.wanted.tries import Tries

log = logging.getLogger("csi_bridge.edge.volumes")

# After this time an event tells users of a step that waits for another party: the hub, the attacher, the driver. The
# kubelet waits as long (2 min 3 s).
_WAIT_EVENT_AFTER_S = 123.0

# After this many failed tries an event tells users of a failing unpublish or unstage: a driver may need a moment.
_EVENT_AFTER_TRIES = 3


@dataclass(slots=True)
class _Trouble:
    """Why the last try of a step failed, and the monotonic time of the first failure."""

    why: str
    since: float


class VolumeTask:
    """Mounts and unmounts one volume as its pods need it. `run` ends when nothing of it is mounted or wanted."""

    def __init__(self, key: VolumeKey, host: VolumeHost) -> None:
        self.key = key
        self._host = host
        self.rows = VolumeRows(key, host.states, host.places)
        self.wants: dict[Target, PodVolume] = {}  # the pods that want the volume, by the place of its mount
        self.doing: tuple[Step, Target] | None = None  # the step under way, and its target
        self.running = False
        self._woken = asyncio.Event()
        self.use = VolumeUse(host, self.rows, confirmed=self.retry)
        self._staging = VolumeStaging(host, self.rows)
        self._deferral = VolumeDeferral(host, self.rows)
        self._expander = VolumeExpander(host, self.rows)
        self.upkeep = VolumeUpkeep(host, self.rows, self._woken)
        self._closing = False
        self._tries: dict[tuple[Step, Target], Tries] = {}
        self._troubles: dict[Target, _Trouble] = {}
        self._wanted_since: dict[Target, float] = {}
        self._steps: Mapping[Step, Callable[[Target], Awaitable[None]]] = {
            Step.RECORD: self.rows.record,
            Step.UNPUBLISH: self._unpublish,
            Step.STAGE: self._stage,
            Step.PUBLISH: self._publish,
            Step.EXPAND: lambda target: self._expander.expand_published(self.wants[target]),
            Step.REPUBLISH: lambda target: self.upkeep.republish(target, self.wants[target]),
            Step.UNSTAGE: self._unstage,
            Step.STATS: lambda target: self.upkeep.read_stats(target, self.wants[target]),
        }

    # ---- called by the manager ---------------------------------------------------------------------------------------

    def want(self, wants: Mapping[Target, PodVolume]) -> None:
        self.wants = dict(wants)
        self.use.want(wants.values())
        now = self._host.clock.time()
        self._wanted_since = {target: self._wanted_since.get(target, now) for target in wants}
        kept = {VOLUME, *wants, *self.rows.publications}
        self._troubles = {target: trouble for target, trouble in self._troubles.items() if target in kept}
        self._tries = {one: tries for one, tries in self._tries.items() if one[1] in kept}
        self.retry()

    def retry(self) -> None:
        for tries in self._tries.values():
            tries.retry_now()
        self._woken.set()

    def close(self) -> None:
        self._closing = True
        self._woken.set()

    # ---- reports -----------------------------------------------------------------------------------------------------

    def trouble(self, target: Target) -> str:
        """Return why a pod does not have the volume, or why it cannot be unpublished; empty if nothing failed."""
        found = self._troubles.get(target) or self._troubles.get(VOLUME)
        return found.why if found is not None else ""

    def wanted_since(self, target: Target) -> float:
        return self._wanted_since.get(target, 0.0)

    @property
    def is_over(self) -> bool:
        return self.rows.device is None and not (self.rows.publications or self.rows.unwritten or self.wants)

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take steps until nothing is left to do. If it is cancelled, the running step's mount stays uncertain."""
        try:
            while not self._closing:
                self._woken.clear()
                step, until = self._next_step()
                if step is not None:
                    await self._take_step(*step)
                elif self.is_over:
                    return
                else:
                    await self._wait_until(until)
        finally:
            self.use.void()

    async def _wait_until(self, until: float | None) -> None:
        timer = None
        if until is not None:
            timer = self._host.clock.call_later(until - self._host.clock.monotonic(), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _next_step(self) -> tuple[tuple[Step, Target] | None, float | None]:
        """Return the step to take now; or, if none is due, the monotonic time at which the next is."""
        now = self._host.clock.monotonic()
        until: float | None = None
        for step, target, due in self._candidates(now):
            tries = self._tries.get((step, target))
            ready_at = max(tries.ready_at, due) if tries is not None else due
            if ready_at <= now:
                return (step, target), None
            until = ready_at if until is None else min(until, ready_at)
        return None, until

    def _candidates(self, now: float) -> Iterator[Candidate]:
        yield from ((step, target, 0.0) for step, target in self._mounting())
        if (expansion := self._expander.find(self.wants)) is not None:
            yield Step.EXPAND, *expansion
        rows = self.rows
        if rows.device is not None and not rows.publications and not self.wants and self._host.may_unstage(rows.device):
            yield Step.UNSTAGE, VOLUME, 0.0
        yield from self.upkeep.find(self.wants, now)

    def _mounting(self) -> Iterator[tuple[Step, Target]]:
        rows = self.rows
        for target in rows.unwritten:
            yield Step.RECORD, target
        for target, publication in rows.publications.items():
            if self._must_unpublish(target, publication):
                yield Step.UNPUBLISH, target
        is_stale = self._staging.is_stale(self.wants)
        is_ready = self._staging.is_done and not is_stale
        if is_stale:
            yield Step.UNSTAGE, VOLUME
        elif not is_ready and self._staging.next_want(self.wants) is not None:
            yield Step.STAGE, VOLUME
        for target, want in self.wants.items():
            if rows.is_published(target) or self._staging.is_outdated(want, rows.publications.get(target)):
                continue
            if is_ready or want.volume.ephemeral or self._staging.obstacle(want):  # the publish step reports it
                yield Step.PUBLISH, target

    def _must_unpublish(self, target: Target, publication: Publication) -> bool:
        want = self.wants.get(target)
        if want is None:
            return self._host.may_unpublish(publication)
        return self._staging.is_outdated(want, publication)

    # ---- one step ----------------------------------------------------------------------------------------------------

    async def _take_step(self, step: Step, target: Target) -> None:
        self.doing = step, target
        if step is not Step.STATS:  # it runs every minute for each volume, and no listener of `changed()` reads usage
            self._host.changed()
        try:
            await self._steps[step](target)
        except VolumeError as error:
            self._failed(step, target, error)
        except Exception as error:
            log.exception("volume %s: %s failed because of a bug; it is tried again", self.key, step)
            self._failed(step, target, NotReady(f"{step} failed because of a bug in the agent: {type(error).__name__}"))
        else:
            self._tries.pop((step, target), None)
            if step not in REGULAR:
                self._troubles.pop(target, None)
        finally:
            self.doing = None
            if step is not Step.STATS:
                self._host.changed()

    def _failed(self, step: Step, target: Target, error: VolumeError) -> None:
        now = self._host.clock.monotonic()
        tries = self._tries.setdefault((step, target), Tries())
        tries.failed(now)
        trouble = self._troubles.get(target)
        if trouble is None or trouble.why != error.why:
            log.warning("volume %s: %s%s: %s", self.key, step, self._whose(target), error.why)
            trouble = self._troubles[target] = _Trouble(error.why, trouble.since if trouble else now)
        if step is not Step.RECORD and not (isinstance(error, Waiting) and now - trouble.since < _WAIT_EVENT_AFTER_S):
            self._tell_failure(step, target, error.why, tries.failures)

    def _tell_failure(self, step: Step, target: Target, why: str, failures: int) -> None:
        facts = self._host.facts
        if step not in MOUNTING:
            if failures >= _EVENT_AFTER_TRIES:  # the pod may not exist any more
                facts.tell_node("FailedUnMount", f"volume {self.key}{self._whose(target)}: {step} failed: {why}")
            return
        concerned = [self.wants[target]] if target in self.wants else self.wants.values()
        tell_pods(facts, concerned, step, why)

    def _whose(self, target: Target) -> str:
        if target in self.wants:
            pod = self.wants[target].pod
            return f" for pod {pod.namespace}/{pod.name}"
        row = self.rows.publications.get(target)
        return f" for {_pod_of(row)}" if row is not None else ""

    # ---- mounting ----------------------------------------------------------------------------------------------------

    async def _stage(self, _target: Target) -> None:
        want = self._staging.next_want(self.wants)
        host = self._host
        assert want is not None
        volume = want.volume
        host.driver(self.key.driver)
        inputs = host.inputs.to_stage(volume, driver_stages=self._staging.driver_stages)
        attachment_uid = host.inputs.attachment_uid(volume)
        before = self.rows.device
        # The hub must confirm a first staging. A recorded one that was listed, or is one node's, keeps its
        # confirmation, unless the volume asks for fence in a new boot.
        must_reconfirm = await self._begin_fencing(want, before)
        was_confirmed = before is not None and (before.attached or volume.is_sole) and not must_reconfirm
        must_be_confirmed = volume.is_listed and not was_confirmed
        if must_be_confirmed:
            self._check_copy(volume)
            await self.use.check()
        intent = self._intent_to_stage(want, before, attachment_uid)
        await self.rows.intend(Step.STAGE, intent)
        try:
            self._check(self._staging.obstacle(want))  # another volume may have taken the place meanwhile
            if must_be_confirmed:
                self._check_copy(volume)
            if must_be_confirmed and not self.use.is_confirmed:
                raise Waiting("the pod that wanted it is gone, so the hub's confirmation does not count")
            async with host.fencing.mounting(volume, Step.STAGE.value) as may_go_on:
                await host.plugin.stage(want, inputs, reconstructed=intent.reconstructed, may_go_on=may_go_on)
        except (NotReady, VolumeRefused) as error:
            await self._settle_failed(Step.STAGE, before, intent, error)
            raise
        mounted = await self._shows(host.plugin.is_mounted, intent)
        size_bytes = intent.size_bytes or (volume.claim.status_bytes if volume.claim is not None else 0)
        done = replace(intent, state=State.DONE, reconstructed=False, mount_point=mounted, size_bytes=size_bytes)
        await self.rows.settle(Step.STAGE, replace(done, since=host.clock.time()))
        log.info("volume %s is staged", self.key)

    async def _begin_fencing(self, want: PodVolume, before: Device | None) -> bool:
        # Begins to fence the volume if its policy asks for that. Returns whether the hub must confirm the volume again
        # before it is staged. The policy is fixed at the first staging in a boot, until its end.
        volume = want.volume
        fencing = self._host.fencing
        if before is not None and before.boot == self._host.boot:
            self._check_lease(volume)
            return False
        flaw = volume.offline_flaw
        if volume.fence and (why := fencing.refusal(volume)):
            flaw = f"it asks for fence, and is kept on this node: {why}"
        if flaw and volume.claim is not None:
            self._host.facts.tell_claim(volume.claim, "NotFenced", f"PV {volume.name}: {flaw}")
        if flaw or not volume.fence:  # the hub may still believe that this node fences it, as an earlier boot told
            if fencing.is_held(self.key):
                self._check_copy(volume)
                await fencing.exempt(self.key, flaw)
            return volume.fence
        if why := fencing.obstacle(volume):
            raise Waiting(why)
        await fencing.hold(volume)
        return True

    def _check_copy(self, volume: Volume) -> None:
        # After a reset by the watchdog the agent's objects may be old: the pod and its attachment may be gone, and the
        # volume on another node.
        by_time = volume.fence or self._host.fencing.is_held(self.key)
        if (volume.is_sole or by_time) and not self._host.objects.in_step:
            raise Waiting("the hub has not confirmed on the present link that this node's objects are complete")

    def _check_lease(self, volume: Volume) -> None:
        # Before anything is written. The step itself begins and goes on only while the lease holds
        # (`Fencing.mounting`).
        fencing = self._host.fencing
        if fencing.is_held(self.key) and (why := fencing.obstacle(volume)):
            raise Waiting(why)

    async def _tell_kept(self, volume: Volume, row: Publication) -> None:
        fencing = self._host.fencing
        if row.runtime == BY_DRIVER:
            await fencing.exempt(self.key, "its driver has told the pod's runtime of the device")
        if (why := fencing.why_exempt(self.key)) and volume.claim is not None:
            text = f"PV {volume.name}: it asks for fence, and is kept on this node: {why}"
            self._host.facts.tell_claim(volume.claim, "NotFenced", text)

    async def _publish(self, target: Target) -> None:
        want = self.wants[target]
        pod = want.pod
        host = self._host
        self._check(self._staging.obstacle(want) or self._staging.misfit(want))
        host.driver(self.key.driver)
        inputs = host.inputs.to_publish(want)
        before = self.rows.publications.get(target)
        intent = self._intent_to_publish(want, before)
        self._check_lease(want.volume)
        await self.rows.intend(Step.PUBLISH, intent)
        try:
            self._check(self._staging.obstacle(want))  # another volume may have taken the place meanwhile
            async with host.fencing.mounting(want.volume, pod.uid) as may_go_on:
                await host.plugin.publish(
                    want,
                    inputs,
                    reconstructed=intent.reconstructed,
                    tell=lambda text: host.facts.tell_pod(pod, "VolumePermissionChangeInProgress", text),
                    may_go_on=may_go_on,
                )
        except (NotReady, VolumeRefused) as error:
            await self._settle_failed(Step.PUBLISH, before, intent, error)
            raise
        # `self.wants` anew: the claim may have changed. If this fails, the mount stays UNCERTAIN and the pod does not
        # start.
        await self._expander.expand_mounting(self.wants.get(target, want))
        if want.deferral is not None:
            await self._expander.handed_over(want, fills=await self._deferral.hand_over(want))
        else:
            await self._deferral.notice(want)
        await self._tell_kept(want.volume, self.rows.publications[target])
        await host.cdi.add(want)
        mounted = await self._shows(host.plugin.is_mounted, intent)
        done = replace(
            self.rows.publications[target],
            state=State.DONE,
            reconstructed=False,
            mount_point=mounted,
            since=host.clock.time(),
        )
        await self.rows.settle(Step.PUBLISH, done)
        log.info("volume %s is published to pod %s/%s", self.key, pod.namespace, pod.name)

    # ---- unmounting --------------------------------------------------------------------------------------------------

    async def _unpublish(self, target: Target) -> None:
        before = self.rows.publications[target]
        plugin = self._host.plugin
        self._host.driver(self.key.driver)
        await self.rows.intend(Step.UNPUBLISH, replace(before, state=State.UNCERTAIN, error=""))
        if not self._must_unpublish(target, before):  # while the row was written, a pod may have wanted it again
            await self.rows.settle(Step.UNPUBLISH, before)
            return
        try:
            await self._host.cdi.remove(before)
            if self._deferral.may_have(before):
                await self._deferral.take_back(before)
                before = replace(before, state=State.UNCERTAIN)
            await plugin.unpublish(before)
        except NotReady:
            await self.rows.settle(Step.UNPUBLISH, before)
            raise
        await self._host.fencing.unmounted(self.key, target.pod_uid)
        if not before.block:
            await self._deferral.forget(before)
        await self.rows.settle(Step.UNPUBLISH, before, gone=True)
        self.upkeep.forget(target)
        self._tries = {one: tries for one, tries in self._tries.items() if one[1] != target}
        log.info("volume %s is no longer published to %s", self.key, _pod_of(before))

    async def _unstage(self, _target: Target) -> None:
        before = self.rows.device
        assert before is not None
        self._host.driver(self.key.driver)
        intent = replace(before, state=State.UNCERTAIN, error="", attached=self.use.is_reported)
        await self.rows.intend(Step.UNSTAGE, intent)
        if not (self._staging.is_stale(self.wants) if self.wants else self._host.may_unstage(before)):
            await self.rows.settle(Step.UNSTAGE, before)
            return
        try:
            await self._host.plugin.unstage(before, recorded=not before.reconstructed)
        except NotReady:
            await self.rows.settle(Step.UNSTAGE, before)
            raise
        await self._host.fencing.check_released(self.key)
        await self.rows.settle(Step.UNSTAGE, before, gone=True)
        self._expander.forget()
        self.use.unstaged()
        await self._host.fencing.let_go(self.key)
        log.info("volume %s is no longer staged", self.key)

    # ---- parts of several steps --------------------------------------------------------------------------------------

    @staticmethod
    def _check(why_not: str) -> None:
        if why_not:
            raise NotReady(why_not)

    def _intent_to_stage(self, want: PodVolume, before: Device | None, attachment_uid: str) -> Device:
        return Device(
            **asdict(staged_for(want.volume)),
            reconstructed=before is not None and before.reconstructed,
            attached=want.volume.is_listed,
            attachment_uid=attachment_uid,
            arguments=self._staging.arguments(want),
            size_bytes=before.size_bytes if before is not None else 0,
            boot=self._host.boot,
            since=self._since(before),
        )

    def _intent_to_publish(self, want: PodVolume, before: Publication | None) -> Publication:
        return Publication(
            **asdict(published_for(want)),
            pod_namespace=want.pod.namespace,
            pod_name=want.pod.name,
            volume_name=want.volume_name,
            reconstructed=before is not None and before.reconstructed,
            arguments=publish_arguments(want),
            boot=self._host.boot,
            since=self._since(before),
            **(handover_fields(want, before, self._host.boot) if want.deferral is not None else {}),
        )

    def _since(self, before: Row | None) -> float:
        if before is not None and before.state is State.UNCERTAIN and before.since:
            return before.since
        return self._host.clock.time()

    async def _settle_failed(
        self, step: Step, before: Row | None, intent: Row, error: NotReady | VolumeRefused
    ) -> None:
        if isinstance(error, NotReady):  # the driver was not called
            await self.rows.settle(step, before or intent, gone=before is None)
            return
        kept = intent.reconstructed or (step is Step.STAGE and bool(self.rows.publications))
        kept = kept or await self._shows(self._host.plugin.has_mounts, intent)
        await self.rows.settle(step, replace(intent, error=error.why), gone=not kept)

    async def _shows(self, check: Callable[[Row, MountTable], bool], row: Row) -> bool:
        # If the table cannot be read, the mount may be there.
        try:
            return check(row, await self._host.mount_table())
        except NotReady:
            return True


def _pod_of(row: Publication) -> str:
    return f"pod {row.pod_namespace}/{row.pod_name}" if row.pod_name else f"the pod of uid {row.pod_uid}"
