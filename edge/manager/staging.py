"""A staging: how a volume is staged on this node, which pods may get it so, and what is to be taken down before.

Rules:

* It is staged for the first pod that may get it. What keeps another pod from it keeps nobody else.
* Nothing is staged anew under a pod. What was staged with other arguments, or under an attachment that is no more, is
  unstaged while no pod has it.
* Nor is what a pod surely has taken from it. What it may have, and was asked for with other arguments than now, is
  unpublished before it is published (RULE C14).
"""

import hashlib
from collections.abc import Iterator, Mapping

from edge.manager.host import VolumeHost
from edge.manager.places import Target, staging_place, target_for
from edge.manager.rows import VolumeRows
from edge.manager.states import Device, Publication, State
from edge.volumes import PodVolume, Volume, VolumeKey

_STAGE_UNSTAGE = 1
"""Of `NodeServiceCapability.RPC.Type`."""

_ASKED = "asked "
_NOT_ASKED = "not asked"
"""How a staging's `arguments` begin: the driver was asked for this, or it did not stage then. Those of earlier
versions, and of what only the disk tells of, begin otherwise, and are compared with nothing."""


class VolumeStaging:
    """The staging of one volume."""

    def __init__(self, key: VolumeKey, host: VolumeHost, rows: VolumeRows) -> None:
        """Nothing is staged yet, but what `rows` says."""
        self._key, self._host, self._rows = key, host, rows

    @property
    def is_asked_for(self) -> bool:
        """Whether the driver is asked to stage."""
        driver = self._host.drivers.find(self._key.driver)
        return driver is not None and _STAGE_UNSTAGE in driver.capabilities

    @property
    def is_done(self) -> bool:
        """Whether it is surely staged: by the driver, if that stages."""
        device = self._rows.device
        return self._rows.is_staged and not (
            self.is_asked_for and device is not None and device.arguments == _NOT_ASKED
        )

    def arguments(self, want: PodVolume) -> str:
        """The row's. Not fsGroup, which is given with the first pod's: the next one's is no other volume."""
        return _ASKED + hash_arguments(want.volume, want.selinux_context) if self.is_asked_for else _NOT_ASKED

    def next_want(self, wants: Mapping[Target, PodVolume]) -> PodVolume | None:
        """For whom it is staged: the first pod that does not have it and may get it."""
        return next((want for want in self._waiting(wants) if not self.obstacle(want)), None)

    def obstacle(self, want: PodVolume) -> str:
        """Why a pod cannot get it while things are as they are; empty if it can.

        One volume to a place; one that is ReadWriteOncePod alone goes to one pod (operation_generator.go), but what a
        pod had it may have again.
        """
        target, volume, had = target_for(want), want.volume, self._rows.publications
        if (
            volume.access_modes == ("ReadWriteOncePod",)
            and target not in had
            and any(other.pod_uid != target.pod_uid for other in had)
        ):
            return "the volume has the access mode ReadWriteOncePod and is already in use by another pod"
        holder = self._host.places.holder(want)
        if holder is not None:
            return f"another volume is still mounted in the place of {volume.name}: {holder}"
        if self.is_outdated(want, had.get(target)):
            return "it may be mounted with earlier arguments, and is unmounted first"
        return self.misfit(want) if any(other != target for other in had) else ""

    def misfit(self, want: PodVolume) -> str:
        """Why a pod cannot get it from how it is staged; empty if it can."""
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
        """Whether a pod may have it otherwise than it is to get it now.

        What only the disk tells of has no arguments, and what was asked for before a boot is nowhere mounted.
        """
        if row is None or row.state is State.DONE:
            return False
        is_comparable = row.arguments and not row.reconstructed and row.boot == self._host.boot
        is_other = is_comparable and row.arguments != publish_arguments(want)
        return is_other or row.block != want.volume.block

    def is_stale(self, wants: Mapping[Target, PodVolume]) -> bool:
        """Whether no pod has it, and it was staged in another way than the next one is to get it.

        Objects can be written anew with the same handle. If no pod may get it yet, it makes room: two block volumes may
        wait for each other's place.
        """
        device = self._rows.device
        if device is None or self._rows.publications:
            return False
        want = self.next_want(wants) or next(self._waiting(wants), None)
        if want is None:
            return False
        is_other = (
            self.is_asked_for and device.arguments.startswith(_ASKED) and device.arguments != self.arguments(want)
        )
        return is_other or staging_place(device) != staging_place(want.volume) or self._is_detached(device, want.volume)

    def _is_detached(self, device: Device, volume: Volume) -> bool:
        """Whether the attachment under which it was staged is no more, or is being deleted.

        The cloud takes a volume from a node that is away for long, by force, and may give it back later with another
        attachment. What is mounted is then of the time before another node wrote to it, and what it has not written
        yet must not reach the volume any more: it is unstaged before, not after, the volume comes back.
        """
        if not (device.attachment_uid and volume.rules.attach_required):
            return False
        now = self._host.inputs.attachment_uid(volume)
        return now != device.attachment_uid and (now != "" or self._host.is_trusted(device))

    def _waiting(self, wants: Mapping[Target, PodVolume]) -> Iterator[PodVolume]:
        """The pods that do not have it, of a volume that can be staged."""
        for target, want in wants.items():
            if not want.volume.ephemeral and not self._rows.is_published(target):
                yield want


def publish_arguments(want: PodVolume) -> str:
    """A publication's, for its row."""
    return hash_arguments(want.volume, want.pod.fs_group, want.read_only)


def hash_arguments(volume: Volume, *more: object) -> str:
    """What two equal requests have in common; not the secrets, tokens and contexts, which come and go."""
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
