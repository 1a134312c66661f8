"""The offline policy of a volume: whether a node that is away keeps it (`keep`), or loses it by time (`fence`).

A PersistentVolume asks for it with the annotation `csi-bridge.io/offline`. An agent that fences tells so in the fact
about its Node:

    {"leaseSeconds": 60, "stopSeconds": 20, "volumes": ["kubernetes.io/csi/d.csi^vol-1"]}

It stands there as `status.fence`. Agents that do not fence tell none, and older ones neither.

Rules:

* A volume is fenced only if both say so: its PersistentVolume, and the agent that has it mounted.
* A value that is neither `keep` nor `fence` counts as `keep`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

ANNOTATION: Final = "csi-bridge.io/offline"

_LONGEST_LEASE_S: Final = 86_400
_LONGEST_STOP_S: Final = 3_600
"""What an agent may tell. With more, it does not fence."""

KEEP: Final = "keep"
FENCE: Final = "fence"


def is_fence(annotations: Mapping[str, str] | None) -> bool:
    """Whether an object's annotations ask for `fence`."""
    return (annotations or {}).get(ANNOTATION) == FENCE


def flaw(annotations: Mapping[str, str] | None) -> str:
    """What is wrong with the policy in an object's annotations; empty if nothing is."""
    value = (annotations or {}).get(ANNOTATION, KEEP)
    if value in {KEEP, FENCE}:
        return ""
    return f"the annotation {ANNOTATION} is {value[:40]!a}; it can be {KEEP} or {FENCE}, and counts as {KEEP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFence:
    """What an agent tells of its fencing.

    Attributes:
        lease_s: seconds from an answer of the hub to the end of the agent's lease, at most.
        stop_s: seconds from that end until all writers have surely stopped.
        volumes: the volumes that it fences, by their names in `volumesInUse`.
    """

    lease_s: int
    stop_s: int
    volumes: frozenset[str] = frozenset()


def write(lease_s: int, stop_s: int, volumes: Iterable[str]) -> dict[str, Any]:
    """The fencing as the fact has it."""
    return {"leaseSeconds": lease_s, "stopSeconds": stop_s, "volumes": sorted(volumes)}


def read(status: Mapping[str, Any]) -> ToldFence | None:
    """The fencing in the status of a Node's fact; None if the agent does not fence."""
    told = status.get("fence")
    if not told:
        return None
    lease_s, stop_s = told.get("leaseSeconds") or 0, told.get("stopSeconds") or 0
    if not (0 < lease_s <= _LONGEST_LEASE_S and 0 < stop_s <= _LONGEST_STOP_S):
        return None
    return ToldFence(lease_s=lease_s, stop_s=stop_s, volumes=frozenset(told.get("volumes") or ()))
