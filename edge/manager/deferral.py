"""The deferral of a volume: after the driver has published its block device, the pod's runtime gets it, and back.

Rules (docs/runtime-assisted.md):

* Each change is recorded before it begins. `FORMATTING` and the new UUID come before mkfs, so that the rest of a killed
  mkfs is not taken for data. `HANDED` comes before the mount info: from then on a guest may use the device, and the
  agent neither makes, checks nor grows a file system on it until this boot ends or the volume is unpublished.
* A device that is not blank is never formatted. If a file system has another type than the volume's, or the device
  holds anything else, the pod does not get the volume.
* The UUID of the file system is kept with the publication. After a reboot, devices may have other names. The runtime
  hears of a device only if it holds the same file system as before.
* If a step fails before the handover, everything is undone in reverse, with NodeUnpublishVolume at the end.
* A pod that goes is no reason to write: another node may have the device by then. So nobody finishes a mkfs whose pod
  is gone. But a tool that an earlier agent has left is waited for.
"""

import logging
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.disk.found_volumes import Published
from edge.manager.host import DeferralHost
from edge.manager.rows import VolumeRows
from edge.manager.steps import Step
from edge.volume_errors import Uncertain, VolumeError, VolumeRefused
from edge.volumes import Deferral, PodVolume
from edge.wanted.places import Target, target_for
from edge.wanted.states import BY_DRIVER, Handover, Publication

if TYPE_CHECKING:
    from edge.direct.file_systems import Content
    from edge.direct.hand_over import DirectVolumes

log = logging.getLogger("csi_bridge.edge.volumes")


class VolumeDeferral:
    """Hands one volume over to runtimes."""

    def __init__(self, host: DeferralHost, rows: VolumeRows) -> None:
        self._key = rows.key
        self._host = host
        self._rows = rows

    @property
    def _direct(self) -> "DirectVolumes":
        return self._host.direct()

    async def hand_over(self, want: PodVolume) -> bool:
        """Make the device ready, and tell the runtime. Return whether the file system surely fills the device.

        After Refused all is undone, and the row is gone. After Uncertain the row stays, with the UUID.
        """
        began_at = self._host.clock.monotonic()
        target = target_for(want)
        published = self._rows.publications[target]
        is_used = published.is_handed(self._host.boot) or await self._direct.is_told(published)
        try:
            device = await self._direct.device(published)
            fs_uuid, fills = await self._prepare(want, target, device, is_used=is_used)
            await self._record("handover", target, Handover.HANDED, _of(want).fs_type, fs_uuid)
            await self._direct.hand_over(want, published, device)
        except VolumeError as error:
            if is_used or await self._direct.is_told(published):  # a guest may run
                raise Uncertain(error.why) from error
            await self._undo(target)
            if isinstance(error, VolumeRefused):
                row = replace(self._rows.publications[target], error=error.why)
                await self._rows.settle(Step.PUBLISH, row, gone=not row.reconstructed)
                raise
            raise Uncertain(error.why) from error
        took_ms = 1000 * (self._host.clock.monotonic() - began_at)
        log.info(
            "volume %s is deferred to the runtime (%s): device %s, ready after %.0f ms",
            self._key, _of(want).runtime, device, took_ms,
        )  # fmt: skip
        self._host.metrics.deferred.inc("agent")
        return fills

    def may_have(self, row: Publication) -> bool:
        """Whether the agent has handed a publication over, or may have in a time that it does not remember."""
        return row.agent_defers or (row.reconstructed and row.block and self._host.may_defer)

    async def take_back(self, row: Publication) -> None:
        """Undo `hand_over`, before the driver unpublishes. Raises Uncertain if it must be repeated."""
        await self._direct.take_back(row)
        if row.handover is not Handover.HANDED:
            await self._direct.wait_idle(row)
        await self._clean(row.guard)

    # ---- deferral by the driver --------------------------------------------------------------------------------------

    async def notice(self, want: PodVolume) -> None:
        """Note in the row whether the driver itself has told the runtime of the volume (csi-kata-directvolume does)."""
        if self._host.may_defer and not want.volume.block:
            target = target_for(want)
            row = self._rows.publications[target]
            is_told = await self._direct.is_told(row)
            self._rows.add(replace(row, runtime=BY_DRIVER if is_told else ""))
            if is_told:
                self._host.metrics.deferred.inc("driver")

    async def forget(self, row: Publication) -> None:
        """Remove what a driver left of its own deferral, once it has unpublished. Raises Uncertain: repeat it."""
        if row.runtime or (row.reconstructed and self._host.may_defer):
            await self._direct.forget(row)

    # ---- the device --------------------------------------------------------------------------------------------------

    async def _prepare(self, want: PodVolume, target: Target, device: Path, *, is_used: bool) -> tuple[str, bool]:
        """Make, check or grow the file system. Returns its UUID, and whether it surely fills the device."""
        row = self._rows.publications[target]
        fs_type = _of(want).fs_type
        reads_only = want.read_only or "ro" in want.volume.mount_options
        if row.handover is Handover.FORMATTING:
            # False: an earlier mkfs may have finished when the device was smaller.
            return await self._make(row, device, begun=True), False
        content = await self._direct.look(device)
        if not row.fs_uuid and content.is_blank and not is_used:
            if reads_only:
                raise VolumeRefused(f"device {device} holds no file system, and the pod may only read the volume")
            await self._record("format", target, Handover.FORMATTING, fs_type, str(uuid.uuid4()))
            return await self._make(self._rows.publications[target], device, begun=False), True
        await self._check(row, device, content, fs_type, is_used=is_used)
        fills = not (is_used or reads_only) and await self._direct.grow(device, fs_type)
        return content.uuid, fills

    async def _check(self, row: Publication, device: Path, content: "Content", fs_type: str, *, is_used: bool) -> None:
        is_right = content.fs_type == fs_type
        if row.fs_uuid:
            if not is_right or content.uuid != row.fs_uuid:
                raise Uncertain(
                    f"device {device} holds {content.what or 'nothing'}, and the volume's file system is {fs_type} "
                    f"{row.fs_uuid}; check which device the driver has published"
                )
        elif not is_right:
            raise VolumeRefused(
                f"device {device} holds {content.what or 'nothing'}, and the volume's file system is {fs_type}"
            )
        elif not (is_used or await self._direct.is_sound(device, fs_type)):
            raise VolumeRefused(
                f"device {device} holds an unfinished {fs_type}, of a mkfs that was killed; erase it by hand"
            )

    async def _make(self, row: Publication, device: Path, *, begun: bool) -> str:
        await self._direct.make(device, row.fs_type, row.fs_uuid, begun=begun)
        log.info("volume %s: a new %s is made on %s, with the UUID %s", self._key, row.fs_type, device, row.fs_uuid)
        return row.fs_uuid

    # ---- parts of several --------------------------------------------------------------------------------------------

    async def _record(self, step: str, target: Target, handover: Handover, fs_type: str, fs_uuid: str) -> None:
        row = self._rows.publications[target]
        await self._rows.intend(step, replace(row, handover=handover, fs_type=fs_type, fs_uuid=fs_uuid))

    async def _clean(self, published: Published) -> None:
        # What cannot be removed does no harm.
        try:
            await self._host.plugin.clean_leftovers(published)
        except VolumeError as error:
            log.warning("volume %s: a directory stays: %s", self._key, error.why)

    async def _undo(self, target: Target) -> None:
        row = self._rows.publications[target]
        try:
            await self._direct.take_back(row)
            await self._direct.wait_idle(row)
            if row.handover is Handover.HANDED:  # no guest has it any more: the next try checks and grows it again
                await self._rows.write(replace(row, handover=Handover.NONE))
            await self._clean(row.guard)
            await self._host.plugin.unpublish(row)
        except VolumeError as error:
            raise Uncertain(error.why) from error


def handover_fields(want: PodVolume, before: Publication | None, boot: str) -> dict[str, Any]:
    """Return the fields with which a publication of a deferred volume begins. `before` is the row that it may have."""
    # After a reboot no guest uses the device, so HANDED becomes NONE. FORMATTING stays: the interrupted mkfs must be
    # finished.
    kept = before or Publication(driver="", handle="", name="", pod_uid="")
    is_over = kept.handover is Handover.HANDED and kept.boot != boot
    return {
        "runtime": _of(want).runtime,
        "fs_type": kept.fs_type,
        "fs_uuid": kept.fs_uuid,
        "handover": Handover.NONE if is_over else kept.handover,
    }


def _of(want: PodVolume) -> Deferral:
    assert want.deferral is not None
    return want.deferral
