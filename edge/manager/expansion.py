"""Decides whether a grown volume must be expanded on this node, to which size, and whether its claim must be told.

The rules are the kubelet's (kubernetes pkg/volume/util/operationexecutor, operation_generator.go and node_expander.go;
docs/csi-contract.md#expansion-on-the-node), with one difference. The node remembers its own expansions. It does not
repeat one whose size has not reached the claim yet, and it does not forget to tell the claim
(docs/csi-contract.md#a-claims-size-only-grows).

There are two ways. *Recovery* applies if the claim's status has `allocatedResources` or `allocatedResourceStatuses`,
which today's external-resizer always writes; the node then acts only while that status says that it is the node's turn.
*Legacy* applies without either; the node then expands to the PV's size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from common.quantity import parse_bytes
from common.status import Code

NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
"""An annotation of external-resizer: the other nodes that use a ReadWriteMany volume need not expand it."""

PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"

_INFEASIBLE_CODES = {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSize:
    """The sizes in a PersistentVolumeClaim object."""

    status_bytes: int  # `status.capacity.storage`
    requested_bytes: int = 0  # `spec.resources.requests.storage`
    allocated_bytes: int | None = None  # `status.allocatedResources.storage`, or None
    resize_status: str = ""  # `status.allocatedResourceStatuses.storage`, or empty
    shared: bool = False  # the claim is ReadWriteMany and each node must expand its own mount


class Verdict(Enum):
    """The decision about a volume's size."""

    NOTHING = auto()
    """Do nothing: the volume has the right size, or it is not this node's turn."""
    EXPAND = auto()
    """Call the driver."""
    DONE = auto()
    """Do not call the driver; remember the size, and tell the claim if it does not have it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision with its details."""

    verdict: Verdict
    required_bytes: int = 0
    legacy: bool = False  # the claim has no resize status, because its resizer writes none
    claim_knows: bool = False  # the claim has this size already


_NOTHING = Plan(Verdict.NOTHING)


def read_claim(body: Mapping[str, Any]) -> ClaimSize:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    allocated = (status.get("allocatedResources") or {}).get("storage")
    annotations = (body.get("metadata") or {}).get("annotations") or {}
    return ClaimSize(
        status_bytes=parse_bytes((status.get("capacity") or {}).get("storage", 0)),
        requested_bytes=parse_bytes(((spec.get("resources") or {}).get("requests") or {}).get("storage", 0)),
        allocated_bytes=None if allocated is None else parse_bytes(allocated),
        resize_status=str((status.get("allocatedResourceStatuses") or {}).get("storage") or ""),
        shared="ReadWriteMany" in (spec.get("accessModes") or ()) and NOT_REQUIRED not in annotations,
    )


def plan_expansion(claim: ClaimSize, *, volume_bytes: int, known_bytes: int, mounting: bool) -> Plan:
    """Decide about the size of a volume. `volume_bytes` is the PV's, `known_bytes` this node's, or 0."""
    if claim.status_bytes >= volume_bytes if mounting else not 0 < known_bytes < volume_bytes:
        return _finish(claim, volume_bytes, known_bytes)
    if not claim.resize_status and claim.allocated_bytes is None:
        knows = claim.status_bytes >= volume_bytes
        verdict = Verdict.DONE if known_bytes >= volume_bytes else Verdict.EXPAND
        return Plan(verdict, volume_bytes, legacy=True, claim_knows=knows)
    required = claim.allocated_bytes or volume_bytes
    if claim.status_bytes >= required and not claim.resize_status:  # another node or the controller did it
        is_done = not claim.shared or known_bytes >= required
        return Plan(Verdict.DONE if is_done else Verdict.EXPAND, required, claim_knows=True)
    if claim.resize_status not in {PENDING, IN_PROGRESS}:
        return _NOTHING
    return Plan(Verdict.DONE if known_bytes >= required else Verdict.EXPAND, required)


def is_infeasible(claim: ClaimSize, plan: Plan, code: int | None, *, refused_before: bool) -> bool:
    """Whether a refusal makes the expansion infeasible, so that the resizer may try another size."""
    return code in _INFEASIBLE_CODES or (refused_before and claim.requested_bytes != plan.required_bytes)


def _finish(claim: ClaimSize, volume_bytes: int, known_bytes: int) -> Plan:
    """Decide for a volume that has its size on this node. The claim may not have it yet."""
    required = claim.allocated_bytes or 0
    if claim.resize_status in {PENDING, IN_PROGRESS} and 0 < required <= known_bytes:
        return Plan(Verdict.DONE, required)
    if not claim.resize_status and not required and claim.status_bytes < volume_bytes <= known_bytes:
        return Plan(Verdict.DONE, volume_bytes, legacy=True)
    return _NOTHING
