"""The offline policy of a volume: whether a node that is away keeps it (`keep`), or loses it by time (`fence`).

A PersistentVolume asks for it with the annotation `csi-bridge.io/offline`, or its StorageClass with the parameter of
this name. An agent that fences tells so in the fact about its Node:

    {"leaseSeconds": 60, "watchdogSeconds": 60, "staged": ["kubernetes.io/csi/d.csi^vol-1"], "staging": []}

It stands there as `status.fence`. Agents that do not fence tell none.

Rules:

* A volume is fenced only if both say so: its policy, and the agent that has it mounted.
* Only a staged volume goes by time. While it is being staged, a driver may mount it at any moment, and it stays.
* The annotation wins over the parameter. The class is the one that the PersistentVolume's `storageClassName` names now.
  A class that is missing asks for nothing, so the default counts: `keep`.
* A value that is neither `keep` nor `fence` counts as `keep`. A CreateVolume with such a parameter is not refused: an
  earlier try of the same create may have made the volume already, and after a final code nobody would look for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

ANNOTATION: Final = "csi-bridge.io/offline"
PARAMETER: Final = ANNOTATION

_LONGEST_LEASE_S: Final = 86_400  # with more, an agent does not fence
_LONGEST_WATCHDOG_S: Final = 3_600  # the same

KEEP: Final = "keep"
FENCE: Final = "fence"


Texts = Mapping[str, str]


def is_fence(annotations: Texts | None, parameters: Texts | None = None) -> bool:
    """Whether a volume asks for `fence`, in its PersistentVolume's annotations or its StorageClass's parameters."""
    return _asked(annotations, parameters)[1] == FENCE


def flaw(annotations: Texts | None, parameters: Texts | None = None) -> str:
    """What is wrong with the policy that a volume asks for; empty if nothing is. Arguments as in `is_fence`."""
    where, value = _asked(annotations, parameters)
    if value in {KEEP, FENCE}:
        return ""
    return f"{where} {ANNOTATION} is {value[:40]!a}; it can be {KEEP} or {FENCE}, and counts as {KEEP}"


def _asked(annotations: Texts | None, parameters: Texts | None) -> tuple[str, str]:
    if annotations and ANNOTATION in annotations:
        return "the annotation", annotations[ANNOTATION]
    return "the class parameter", (parameters or {}).get(PARAMETER, KEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFence:
    """What an agent tells of its fencing."""

    lease_s: int  # seconds from an answer of the hub to the end of the agent's lease, at most
    watchdog_s: int  # seconds after which the watchdog resets a machine whose agent has not fenced its volumes
    staged: frozenset[str] = frozenset()  # the volumes that it fences, by their names in `volumesInUse`
    staging: frozenset[str] = frozenset()  # those that a driver may be mounting


def write(lease_s: int, watchdog_s: int, staged: Iterable[str], staging: Iterable[str]) -> dict[str, Any]:
    times = {"leaseSeconds": lease_s, "watchdogSeconds": watchdog_s}
    return {**times, "staged": sorted(staged), "staging": sorted(staging)}


def read(status: Mapping[str, Any]) -> ToldFence | None:
    """The fencing in the status of a Node's fact; None if the agent does not fence."""
    told = status.get("fence")
    if not told:
        return None
    lease_s = told.get("leaseSeconds") or 0
    watchdog_s = told.get("watchdogSeconds") or 0
    if not (0 < lease_s <= _LONGEST_LEASE_S and 0 < watchdog_s <= _LONGEST_WATCHDOG_S):
        return None
    staged = frozenset(told.get("staged") or ())
    staging = frozenset(told.get("staging") or ())
    return ToldFence(lease_s=lease_s, watchdog_s=watchdog_s, staged=staged - staging, staging=staging)
