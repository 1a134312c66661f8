"""A pod fact: the status in which an agent tells the hub how each volume of a pod is on its node.

    {"conditions": [{"type": "csi-bridge.io/VolumesMounted", "status": "False", "reason": "Waiting"}],
     "volumes": [{"name": "data", "state": "waiting", "reason": "no driver"}, {"name": "logs", "state": "mounted"}]}

Rules:

* `volumes` names every volume that the node mounts for the pod. The name is empty where the reason concerns the whole
  pod: its object cannot be read.
* The hub makes sentences for people from this list, and parses no sentence. A driver writes a part of each reason.
* A fact has at most `MOST_BYTES`. To keep to it, the agent cuts reasons and says so in each. It never drops one volume
  of the list: if not even the bare names have room, the fact has no list, and the hub reports these volumes as unknown.
* Agents before this list told a sentence as the condition's message. The hub reports their waiting volumes as unknown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from common.objects.objects import encode_body

MOUNTED: Final = "csi-bridge.io/VolumesMounted"  # the condition that says whether the pod has all its volumes
RELEASED: Final = "csi-bridge.io/VolumesReleased"  # the pod is over and nothing of its volumes is left on the node
UNMOUNTED: Final = "Unmounted"  # the reason of both conditions then
MOST_BYTES: Final = 16 * 1024  # of a pod fact as JSON: a node may have thousands

_REASON_CHARS: Final = (900, 450, 200, 100, 50, 0)  # reasons are cut to these, until the fact has room for all
_CUT: Final = " … (cut)"


class VolumeState(StrEnum):
    """How a volume of a pod is on its node."""

    MOUNTED = "mounted"
    WAITING = "waiting"  # the pod does not have it
    # It may be mounted. The node is finding out, or has not told, or told a state that this version does not know.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class ToldVolume:
    """One volume of a pod: its name in the pod, its state, and the reason if it is not mounted and one is known."""

    name: str
    state: VolumeState
    reason: str = ""


def shorten(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else text[:most_chars] + _CUT


def write_volumes(volumes: Iterable[ToldVolume], *, most_bytes: int) -> list[dict[str, str]] | None:
    """The list as the fact has it, with reasons cut so that it fits. None if not even the names fit."""
    in_order = sorted(volumes)
    for most_chars in _REASON_CHARS:
        told = [_written(volume, most_chars) for volume in in_order]
        if len(encode_body({"volumes": told})) <= most_bytes:
            return told
    return None


def read_volumes(status: Mapping[str, Any]) -> dict[str, ToldVolume] | None:
    if "volumes" not in status:
        return None
    return {it["name"]: ToldVolume(it["name"], _state(it["state"]), it.get("reason") or "") for it in status["volumes"]}


def _written(volume: ToldVolume, most_chars: int) -> dict[str, str]:
    reason = {"reason": shorten(volume.reason, most_chars)} if volume.reason else {}
    return {"name": volume.name, "state": volume.state.value, **reason}


def _state(text: str) -> VolumeState:
    try:
        return VolumeState(text)
    except ValueError:
        return VolumeState.UNKNOWN
