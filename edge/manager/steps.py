"""The steps on a volume, and the events for their failures."""

from collections.abc import Iterable
from enum import StrEnum

from edge.manager.facts import VolumeFacts
from edge.volumes import PodVolume
from edge.wanted.places import Target


class Step(StrEnum):
    """One kind of change to a volume. Its value is also the word in the names of fault points."""

    RECORD = "record"
    UNPUBLISH = "unpublish"
    STAGE = "stage"
    PUBLISH = "publish"
    EXPAND = "expand"
    REPUBLISH = "republish"
    UNSTAGE = "unstage"
    STATS = "stats"


# A step that a volume needs, its target, and the monotonic time at which it is due.
Candidate = tuple[Step, Target, float]

REGULAR = {Step.RECORD, Step.REPUBLISH, Step.STATS}  # steps whose success does not clear the trouble of another step

# Steps whose failure is reported to the pods. When a volume is unpublished, its pod may be unknown everywhere.
MOUNTING = {Step.STAGE, Step.PUBLISH, Step.REPUBLISH, Step.EXPAND}

# The kubelet's names for the failed operations, of a file system and of a block volume (operation_generator.go).
_OPERATIONS = {
    Step.STAGE: ("MountVolume.MountDevice", "MapVolume.SetUpDevice"),
    Step.PUBLISH: ("MountVolume.SetUp", "MapVolume.MapPodDevice"),
    Step.REPUBLISH: ("MountVolume.SetUp", "MapVolume.MapPodDevice"),
    Step.EXPAND: ("NodeExpandVolume.NodeExpandVolume", "NodeExpandVolume.NodeExpandVolume"),
}


def tell_pods(facts: VolumeFacts, wants: Iterable[PodVolume], step: Step, why: str) -> None:
    """Send each pod an event with the reason why one of the `MOUNTING` steps failed."""
    for want in wants:
        block = want.volume.block
        part = _OPERATIONS[step][block]
        reason = "VolumeResizeFailed" if step is Step.EXPAND else "FailedMapVolume" if block else "FailedMount"
        facts.tell_pod(want.pod, reason, f'{part} failed for volume "{want.volume.name}": {why}')
