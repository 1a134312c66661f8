"""A place: where on this node a volume is mounted, and which volumes have it, or may have it.

Objects can be written anew under the same names for another volume, and a place has one mount.
"""

from typing import NamedTuple

from edge.manager.states import Device
from edge.volumes import PodVolume, Volume, VolumeKey


class Target(NamedTuple):
    """A volume's place in one pod: `name` is the directory's (the PV's name, or the inline volume's)."""

    pod_uid: str
    name: str


VOLUME = Target("", "")
"""The target of what is about the volume alone."""

Place = Target | VolumeKey | str
"""Where a volume is published; or where it is staged: see `staging_place`."""


def target_for(want: PodVolume) -> Target:
    """Where a pod is to get a volume."""
    return Target(want.pod.uid, want.volume.name)


def staging_place(volume: Volume | Device) -> VolumeKey | str:
    """Where it is staged: a file system by driver and handle, a block volume by its PV's name (`edge.disk.layout`)."""
    return volume.name if volume.block else volume.key


class Places:
    """The places of all volumes of a node. Nobody asks all volumes for one: there may be a thousand."""

    def __init__(self) -> None:
        """No place is taken."""
        self._holders: dict[Place, dict[VolumeKey, None]] = {}

    def take(self, place: Place, key: VolumeKey) -> None:
        """A volume has it, or may have it."""
        self._holders.setdefault(place, {})[key] = None

    def leave(self, place: Place, key: VolumeKey) -> None:
        """A volume has it no more."""
        holders = self._holders[place]
        del holders[key]
        if not holders:
            del self._holders[place]

    def holder(self, want: PodVolume) -> VolumeKey | None:
        """Another volume that has a place which this one is to get."""
        places = (target_for(want), staging_place(want.volume))
        holders = (key for place in places for key in self._holders.get(place, ()))
        return next((key for key in holders if key != want.volume.key), None)
