"""The places on this node where volumes are mounted, and the volumes that have, or may have, each.

A place has one mount. Two volumes may need the same place when objects are written again under the same names.
"""

from typing import NamedTuple

from edge.volumes import PodVolume, Volume, VolumeKey
from edge.wanted.states import Device


class Target(NamedTuple):
    """A volume's place in one pod. `name` is the directory's: the PV's name, or the inline volume's."""

    pod_uid: str
    name: str


VOLUME = Target("", "")  # the target of steps that concern the volume as a whole

Place = Target | VolumeKey | str  # a place of a publication, or of a staging (`staging_place`)


def target_for(want: PodVolume) -> Target:
    return Target(want.pod.uid, want.volume.name)


def staging_place(volume: Volume | Device) -> VolumeKey | str:
    """Return the place of its staging (`edge.disk.layout`): a file system's key, or a block volume's PV name."""
    return volume.name if volume.block else volume.key


class Places:
    """The places of all volumes of a node. An index, because a node may have a thousand volumes."""

    def __init__(self) -> None:
        self._holders: dict[Place, dict[VolumeKey, None]] = {}

    def take(self, place: Place, key: VolumeKey) -> None:
        self._holders.setdefault(place, {})[key] = None

    def leave(self, place: Place, key: VolumeKey) -> None:
        holders = self._holders[place]
        del holders[key]
        if not holders:
            del self._holders[place]

    def holder(self, want: PodVolume) -> VolumeKey | None:
        """Return another volume in one of the places that `want` needs; None if they are free."""
        places = (target_for(want), staging_place(want.volume))
        holders = (key for place in places for key in self._holders.get(place, ()))
        return next((key for key in holders if key != want.volume.key), None)
