"""Expands one volume on this node when its claim or its PV has grown, and tells the claim.

`edge.wanted.expansion` decides. An instance here keeps only state that a restart may lose.

The claim's status comes back through the cloud: late, or not at all while the node is offline. So the node acts at once
on its own results. After the driver has refused a size for good, the node does not request it again, even if the claim
still says that it is the node's turn. The refusal delays no pod.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from common.status import Code
from common.store.fault_points import reach
from edge.calls.node_requests import Has, Inputs
from edge.manager.host import VolumeHost
from edge.manager.rows import VolumeRows
from edge.manager.steps import Step
from edge.volume_errors import Uncertain, VolumeRefused
from edge.volumes import PodVolume, Volume
from edge.wanted.expansion import IN_PROGRESS, PENDING, ExpansionPlan, is_infeasible, plan_expansion
from edge.wanted.places import Target, target_for
from edge.wanted.states import State
from edge.wanted.tries import KUBELET

log = logging.getLogger("csi_bridge.edge.volumes")


class VolumeExpander:
    """Expands one volume."""

    def __init__(self, host: VolumeHost, rows: VolumeRows) -> None:
        self._key = rows.key
        self._host = host
        self._rows = rows
        self.forget()

    def forget(self) -> None:
        """Forget all results, because the volume is no longer staged: they held while it was in use."""
        self._settled: ExpansionPlan | None = None
        self._refused = False
        # A size that the driver has refused for good, until the claim's status changes, or until this time.
        self._refusal = (0, 0.0)
        self._in_use: VolumeRefused | None = None  # the driver's refusal to expand a volume in use
        self._owes = False  # no claim was told of it yet
        self._growing: ExpansionPlan | None = None  # the expansion of a device whose file system is about to grow

    def find(self, wants: Mapping[Target, PodVolume]) -> tuple[Target, float] | None:
        """Return a pod whose mount is to be expanded, and the monotonic time at which that is due; or None."""
        if self._rows.device is None or (self._in_use is not None and not self._owes):
            return None
        for target, want in wants.items():
            row = self._rows.publications.get(target)
            if row is not None and row.block != want.volume.block:
                continue  # somebody asked to defer the volume, or no more, after it was published
            if self._rows.is_published(target) and not want.read_only:
                plan = self._plan(want.volume, mounting=False)
                if plan is not None and plan != self._settled and not (self._owes and plan.legacy):
                    return target, self._refused_until(plan)
        return None

    async def expand_mounting(self, want: PodVolume) -> None:
        """Expand the volume while it is being published. After a VolumeError the pod must not have it."""
        self._growing = None
        plan = self._plan(want.volume, mounting=True)
        if plan is None or self._host.clock.monotonic() < self._refused_until(plan):
            return
        if want.read_only:
            why = (
                f'MountVolume.NodeExpandVolume failed for volume "{want.volume.name}": requested read-only file system'
            )
            self._host.facts.tell_pod(want.pod, "FileSystemResizeFailed", why)
            return
        await self._expand(want, plan)

    async def handed_over(self, want: PodVolume, *, fills: bool) -> None:
        """Finish what `expand_mounting` has begun. `fills`: the file system has the size of the device."""
        growing = self._growing
        self._growing = None
        if growing is not None:
            if fills:
                self._tell_success(want, growing)
                await self._finish(growing)
            else:
                self._tell_ungrown(want, growing)

    async def expand_published(self, want: PodVolume) -> None:
        """Expand the volume while a pod uses it. Raises VolumeError if it could not be expanded."""
        plan = self._plan(want.volume, mounting=False)
        if plan is None:
            return
        if self._in_use is None:
            await self._expand(want, plan)
        elif self._owes:
            self._tell_in_use(plan, self._in_use)

    def _plan(self, volume: Volume, *, mounting: bool) -> ExpansionPlan | None:
        claim = volume.claim
        device = self._rows.device
        if claim is None:
            return None
        if claim.resize_status not in {PENDING, IN_PROGRESS}:
            self._refusal = (0, 0.0)
        known_bytes = device.size_bytes if device is not None else 0
        return plan_expansion(claim, volume_bytes=volume.size_bytes, known_bytes=known_bytes, mounting=mounting)

    def _refused_until(self, plan: ExpansionPlan) -> float:
        size_bytes, until = self._refusal
        return until if size_bytes == plan.required_bytes else 0.0

    async def _expand(self, want: PodVolume, plan: ExpansionPlan) -> None:
        if not plan.is_done:
            if not self._can_expand(plan):
                # Only the plan: the volume has not grown here, and a later state of the claim may wait for this node.
                self._settled = plan
                return
            if not await self._ask(want, plan):
                return
        await self._finish(plan)

    async def _finish(self, plan: ExpansionPlan) -> None:
        reach("expand.before-result")
        if not plan.claim_knows:
            self._host.facts.expanded(plan.claim, plan.required_bytes)
        self._refused = False
        self._settled = replace(plan, is_done=True)
        device = self._rows.device
        if device is not None and device.size_bytes < plan.required_bytes:
            await self._rows.write(replace(device, size_bytes=plan.required_bytes))
        reach("expand.after-result")

    def _can_expand(self, plan: ExpansionPlan) -> bool:
        if Has.EXPAND_VOLUME in self._host.driver(self._key.driver).capabilities:
            return True
        if plan.legacy or plan.claim_knows:  # no claim waits for the node
            return False
        error = VolumeRefused(
            f"driver {self._key.driver} cannot expand a volume on the node (it has no capability EXPAND_VOLUME), and "
            f"PVC {plan.claim.namespace}/{plan.claim.name} waits for that",
            code=Code.UNIMPLEMENTED,
        )
        self._tell_refusal(plan, error)
        raise error

    async def _ask(self, want: PodVolume, plan: ExpansionPlan) -> bool:
        host = self._host
        volume = want.volume
        inputs = Inputs(secrets=host.inputs.secrets(volume.expand_secret))
        reach("expand.before-intent")
        if not (plan.legacy or plan.claim_knows):
            host.facts.expanding(plan.claim)
        reach("expand.after-intent")
        try:
            # A driver may grow a device that is not mounted.
            async with host.fencing.mounting(volume, Step.EXPAND.value) as may_go_on:
                await host.plugin.expand(
                    volume, want.pod.uid, inputs, required_bytes=plan.required_bytes, may_go_on=may_go_on
                )
        except VolumeRefused as error:
            if error.code != Code.FAILED_PRECONDITION:
                self._tell_refusal(plan, error)
                raise
            self._tell_in_use(plan, error)
            log.warning("volume %s cannot be expanded while it is in use: %s", self._key, error.why)
            return False
        except Uncertain as error:
            if not plan.legacy:
                host.facts.not_expanded(plan.claim, error.why, infeasible=False)
            raise
        if want.deferral is None:
            self._tell_success(want, plan)
            return True
        row = self._rows.publications[target_for(want)]
        if row.state is State.DONE or row.is_handed(host.boot):  # no released Kata grows a file system in use
            self._tell_ungrown(want, plan)
        else:  # no guest has the device: the handover grows its file system
            self._growing = plan
        return False

    def _tell_ungrown(self, want: PodVolume, plan: ExpansionPlan) -> None:
        self._settled = plan
        self._host.facts.tell_claim(plan.claim, "FileSystemResizeRequired", words_for_ungrown(want), warning=False)

    def _tell_success(self, want: PodVolume, plan: ExpansionPlan) -> None:
        message = f'MountVolume.NodeExpandVolume succeeded for volume "{want.volume.name}"'
        self._host.facts.tell_pod(want.pod, "FileSystemResizeSuccessful", message, warning=False)
        self._host.facts.tell_claim(plan.claim, "FileSystemResizeSuccessful", message, warning=False)
        log.info("volume %s is expanded to %d bytes", self._key, plan.required_bytes)

    def _tell_in_use(self, plan: ExpansionPlan, error: VolumeRefused) -> None:
        # Once. If the PV came before its claim, the claim does not wait for this node yet.
        self._in_use = error
        self._owes = plan.legacy
        self._tell_refusal(plan, error)

    def _tell_refusal(self, plan: ExpansionPlan, error: VolumeRefused) -> None:
        if plan.legacy:  # such a claim has no status for it
            return
        infeasible = is_infeasible(plan, error.code, refused_before=self._refused)
        self._refused = True
        if infeasible:
            self._refusal = (plan.required_bytes, self._host.clock.monotonic() + KUBELET.most_s)
        self._host.facts.not_expanded(plan.claim, error.why, infeasible=infeasible)


def words_for_ungrown(want: PodVolume) -> str:
    """Return what is told if a device has grown and its file system has not."""
    assert want.deferral is not None
    how = (
        "it grows when a pod next gets the volume"
        if want.deferral.fs_type != "xfs"
        else "let the guest run xfs_growfs, which is seen when a pod next gets the volume"
    )
    return (
        f'volume "{want.volume.name}" has grown, and its file system has not: the runtime '
        f"({want.deferral.runtime}) cannot grow it now; {how}"
    )
