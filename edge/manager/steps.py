"""The steps on a volume, and the events for their failures."""

from collections.abc import Iterable
from enum import StrEnum

from edge.manager.facts import VolumeFacts
from edge.manager.places import Target
from edge.volumes import PodVolume


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


Candidate = tuple[Step, Target, float]
"""A step that a volume needs, its target, and the monotonic time at which it is due."""

REGULAR = {Step.RECORD, Step.REPUBLISH, Step.STATS}
"""Steps whose success does not clear the trouble of another step."""

MOUNTING = {Step.STAGE, Step.PUBLISH, Step.REPUBLISH, Step.EXPAND}
"""Steps whose failure is reported to the pods. When a volume is unpublished, its pod may be unknown everywhere."""

_EVENTS = {
    Step.STAGE: ("MountVolume.MountDevice", "FailedMount"),
    Step.PUBLISH: ("MountVolume.SetUp", "FailedMount"),
    Step.REPUBLISH: ("MountVolume.SetUp", "FailedMount"),
    Step.EXPAND: ("NodeExpandVolume.NodeExpandVolume", "VolumeResizeFailed"),
}
_BLOCK_EVENTS = {
    Step.STAGE: ("MapVolume.SetUpDevice", "FailedMapVolume"),
    Step.PUBLISH: ("MapVolume.MapPodDevice", "FailedMapVolume"),
    Step.REPUBLISH: ("MapVolume.MapPodDevice", "FailedMapVolume"),
    Step.EXPAND: ("NodeExpandVolume.NodeExpandVolume", "VolumeResizeFailed"),
}
"""The kubelet's names for the failed operations, and its reasons (operation_generator.go, kubelet/events)."""


def tell_pods(facts: VolumeFacts, wants: Iterable[PodVolume], step: Step, why: str) -> None:
    """Send each pod an event with the reason why one of the `MOUNTING` steps failed."""
    for want in wants:
        part, reason = (_BLOCK_EVENTS if want.volume.block else _EVENTS)[step]
        facts.tell_pod(want.pod, reason, f'{part} failed for volume "{want.volume.name}": {why}')
