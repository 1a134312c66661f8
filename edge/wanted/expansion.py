"""Decides whether a grown volume must be expanded on this node, to which size, and whether its claim must be told.

The rules are the kubelet's (kubernetes pkg/volume/util/operationexecutor, operation_generator.go and node_expander.go;
docs/csi-contract.md#expansion-on-the-node), with one difference. The node remembers its own expansions. It does not
repeat one whose size has not reached the claim yet, and it does not forget to tell the claim
(docs/csi-contract.md#a-claims-size-only-grows).

There are two ways. *Recovery* applies if the claim's status has `allocatedResources` or `allocatedResourceStatuses`,
which today's external-resizer always writes; the node then acts only while that status says that it is the node's turn.
*Legacy* applies without either; the node then expands to the PV's size.
"""

from dataclasses import dataclass, field

from common.status import Code
from edge.volumes import BoundClaim

PENDING = "NodeResizePending"
IN_PROGRESS = "NodeResizeInProgress"
INFEASIBLE = "NodeResizeInfeasible"

_INFEASIBLE_CODES = {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionPlan:
    """What is to be done about a volume's size. Two plans are equal if they ask for the same."""

    claim: BoundClaim = field(compare=False)  # it is told the size, unless it has it
    required_bytes: int
    is_done: bool = False  # the volume has that size on this node: the driver is not called
    legacy: bool = False  # the claim has no resize status, because its resizer writes none
    claim_knows: bool = False  # the claim has this size already


def plan_expansion(claim: BoundClaim, *, volume_bytes: int, known_bytes: int, mounting: bool) -> ExpansionPlan | None:
    """Decide about the size of a volume; None if it is right, or if it is not this node's turn.

    `volume_bytes` is the PV's size, `known_bytes` the one that this node knows to have reached, or 0.
    """
    if claim.status_bytes >= volume_bytes if mounting else not 0 < known_bytes < volume_bytes:
        return _finish(claim, volume_bytes, known_bytes)
    if not claim.resize_status and claim.allocated_bytes is None:
        knows = claim.status_bytes >= volume_bytes
        is_done = known_bytes >= volume_bytes
        return ExpansionPlan(claim=claim, required_bytes=volume_bytes, is_done=is_done, legacy=True, claim_knows=knows)
    required = claim.allocated_bytes or volume_bytes
    is_done = known_bytes >= required
    if claim.status_bytes >= required and not claim.resize_status:  # another node or the controller did it
        return ExpansionPlan(
            claim=claim, required_bytes=required, is_done=is_done or not claim.shared, claim_knows=True
        )
    if claim.resize_status not in {PENDING, IN_PROGRESS}:
        return None
    return ExpansionPlan(claim=claim, required_bytes=required, is_done=is_done)


def is_infeasible(plan: ExpansionPlan, code: int | None, *, refused_before: bool) -> bool:
    """Whether a refusal makes the expansion infeasible, so that the resizer may try another size."""
    return code in _INFEASIBLE_CODES or (refused_before and plan.claim.requested_bytes != plan.required_bytes)


def _finish(claim: BoundClaim, volume_bytes: int, known_bytes: int) -> ExpansionPlan | None:
    # The volume has its size on this node, and the claim may not have it yet.
    required = claim.allocated_bytes or 0
    if claim.resize_status in {PENDING, IN_PROGRESS} and 0 < required <= known_bytes:
        return ExpansionPlan(claim=claim, required_bytes=required, is_done=True)
    if not claim.resize_status and not required and claim.status_bytes < volume_bytes <= known_bytes:
        return ExpansionPlan(claim=claim, required_bytes=volume_bytes, is_done=True, legacy=True)
    return None
