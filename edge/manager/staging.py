"""The staging of a volume: its arguments, the pods that may use it, and the reasons to undo it first.

Rules:

* A volume is staged for the first pod that may get it. An obstacle for one pod does not hold up the others.
* While a pod has the volume, the task does not stage it again. When no pod has it, the task undoes a staging whose
  arguments do not fit the next pod, or whose attachment is gone.
* A publication that is surely done stays, even if its arguments have changed. If an uncertain one was requested with
  other arguments than the present ones, the task unpublishes the volume first
  (docs/csi-contract.md#an-uncertain-volume-is-mounted-again-or-undone).
"""

import hashlib
from collections.abc import Iterator, Mapping

from edge.calls.node_requests import Has
from edge.manager.host import VolumeHost
from edge.manager.rows import VolumeRows
from edge.volumes import PodVolume, Volume
from edge.wanted.places import Target, staging_place, target_for
from edge.wanted.states import Device, Publication, State

# The beginning of a staging's `arguments` in the agent's database: the driver was called to stage, or had no capability
# for it. Volumes that only the disk showed have no `arguments`.
_BY_DRIVER = "asked "
_NOT_BY_DRIVER = "not asked"


class VolumeStaging:
    """The staging of one volume."""

    def __init__(self, host: VolumeHost, rows: VolumeRows) -> None:
        self._key = rows.key
        self._host = host
        self._rows = rows

    @property
    def driver_stages(self) -> bool:
        """Whether the driver has the capability STAGE_UNSTAGE_VOLUME, so that NodeStageVolume is called."""
        driver = self._host.drivers.find(self._key.driver)
        return driver is not None and Has.STAGE_UNSTAGE_VOLUME in driver.capabilities

    @property
    def is_done(self) -> bool:
        """Whether the volume is surely staged. If the driver can stage, only a staging by the driver counts."""
        device = self._rows.device
        return self._rows.is_staged and not (
            self.driver_stages and device is not None and device.arguments == _NOT_BY_DRIVER
        )

    def arguments(self, want: PodVolume) -> str:
        # Without fsGroup: the staging has the first pod's, and the next pods share the staging.
        return _BY_DRIVER + hash_arguments(want.volume, want.selinux_context) if self.driver_stages else _NOT_BY_DRIVER

    def next_want(self, wants: Mapping[Target, PodVolume]) -> PodVolume | None:
        return next((want for want in self._waiting(wants) if not self.obstacle(want)), None)

    def obstacle(self, want: PodVolume) -> str:
        # Two volumes cannot be mounted at one place. If ReadWriteOncePod is the only access mode, one pod at a time
        # gets the volume (operation_generator.go). A pod that has a row for it may be mounted again.
        target = target_for(want)
        volume = want.volume
        had = self._rows.publications
        if (
            volume.access_modes == ("ReadWriteOncePod",)
            and target not in had
            and any(other.pod_uid != target.pod_uid for other in had)
        ):
            return "the volume has the access mode ReadWriteOncePod and is already in use by another pod"
        others = [row for other, row in had.items() if other != target]
        if any(want.deferral is not None or row.agent_defers for row in others):
            return "the volume is in use by another pod, and a volume that the runtime mounts is one pod's alone"
        holder = self._host.places.holder(want)
        if holder is not None:
            return f"another volume is still mounted in the place of {volume.name}: {holder}"
        if self.is_outdated(want, had.get(target)):
            return "it may be mounted with earlier arguments, and is unmounted first"
        return self.misfit(want) if others else ""

    def misfit(self, want: PodVolume) -> str:
        """Return why a pod cannot get the volume from its present staging; empty if it can."""
        device = self._rows.device
        if device is None or want.volume.ephemeral:
            return ""
        if staging_place(device) != staging_place(want.volume):
            staged = f"block volume {device.name}" if device.block else "a file system"
            return f"it is staged as {staged}, and is staged again when no pod uses it that way"
        if self._rows.is_staged and not self.is_done:
            return (
                f"driver {self._key.driver} can stage volumes now, and could not when another pod got the volume; the "
                f"volume is staged when no pod uses it any more"
            )
        return ""

    def is_outdated(self, want: PodVolume, row: Publication | None) -> bool:
        """Whether an uncertain publication was requested with other arguments than the present ones.

        Of three kinds of rows only the volume mode is compared (Block or Filesystem): rows without arguments, rows of
        volumes that only the disk showed, and rows from an earlier boot, whose mounts are gone.
        """
        if row is None or row.state is State.DONE:
            return False
        is_comparable = row.arguments and not row.reconstructed and row.boot == self._host.boot
        is_other = is_comparable and row.arguments != publish_arguments(want)
        return is_other or row.block != want.volume.block

    def is_stale(self, wants: Mapping[Target, PodVolume]) -> bool:
        # A user may have made a PV with the same handle again. Even for a pod with an obstacle the volume is unstaged,
        # which frees its place: two block volumes may each occupy the place that the other needs.
        device = self._rows.device
        if device is None or self._rows.publications:
            return False
        want = self.next_want(wants) or next(self._waiting(wants), None)
        if want is None:
            return False
        is_other = (
            self.driver_stages and device.arguments.startswith(_BY_DRIVER) and device.arguments != self.arguments(want)
        )
        return is_other or staging_place(device) != staging_place(want.volume) or self._is_detached(device, want.volume)

    def _is_detached(self, device: Device, volume: Volume) -> bool:
        # The cloud detaches a volume by force from a node that is away for long, and may attach it again later. Another
        # node may have written to the volume in between. So this node's unwritten data must not reach it, and the old
        # staging is undone before the volume is used again.
        if not (device.attachment_uid and volume.rules.attach_required):
            return False
        now = self._host.inputs.attachment_uid(volume)
        return now != device.attachment_uid and (now != "" or self._host.is_trusted(device))

    def _waiting(self, wants: Mapping[Target, PodVolume]) -> Iterator[PodVolume]:
        # An inline volume is never staged.
        for target, want in wants.items():
            if not want.volume.ephemeral and not self._rows.is_published(target):
                yield want


def publish_arguments(want: PodVolume) -> str:
    return hash_arguments(want.volume, want.pod.fs_group, want.read_only)


def hash_arguments(volume: Volume, *more: object) -> str:
    """Return a hash that is equal for equal requests. It omits secrets, tokens and publish contexts: they change."""
    parts = (
        volume.name,
        volume.block,
        volume.fs_type,
        volume.access_modes,
        volume.mount_options,
        sorted(volume.attributes.items()),
        *more,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
