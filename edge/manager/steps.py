"""A step: one thing that can be done to a volume, and the event that tells of its failure."""

from collections.abc import Iterable
from enum import StrEnum

from edge.manager.facts import VolumeFacts
from edge.manager.places import Target
from edge.volumes import PodVolume


class Step(StrEnum):
    """What can be done to a volume; the words of the fault points."""

    RECORD = "record"
    UNPUBLISH = "unpublish"
    STAGE = "stage"
    PUBLISH = "publish"
    EXPAND = "expand"
    REPUBLISH = "republish"
    UNSTAGE = "unstage"
    STATS = "stats"


Candidate = tuple[Step, Target, float]
"""A step that a volume needs: what, where, and not before when, by the monotonic clock."""

REGULAR = {Step.RECORD, Step.REPUBLISH, Step.STATS}
"""Steps whose success says nothing about another step's trouble."""

MOUNTING = {Step.STAGE, Step.PUBLISH, Step.REPUBLISH, Step.EXPAND}
"""Steps whose failure is told to the pods; a pod that a volume is taken from may be forgotten everywhere."""

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
"""The kubelet's words for what failed, and its reasons (operation_generator.go, kubelet/events)."""


def tell_pods(facts: VolumeFacts, wants: Iterable[PodVolume], step: Step, why: str) -> None:
    """Tell pods, by an event each, why one of the `MOUNTING` steps failed."""
    for want in wants:
        part, reason = (_BLOCK_EVENTS if want.volume.block else _EVENTS)[step]
        facts.tell_pod(want.pod, reason, f'{part} failed for volume "{want.volume.name}": {why}')
