"""An expansion: what a claim's and a volume's sizes ask of a node."""

from __future__ import annotations

import pytest

from common.status import Code
from edge.manager.expansion import NOT_REQUIRED, ClaimSize, Plan, Verdict, is_infeasible, plan_expansion, read_claim

NOTHING = Plan(Verdict.NOTHING)
PENDING, PROGRESS = "NodeResizePending", "NodeResizeInProgress"


def claim(have: int = 1, allocated: int | None = None, status: str = "", *, shared: bool = False) -> ClaimSize:
    return ClaimSize(status_bytes=have, allocated_bytes=allocated, resize_status=status, shared=shared)


@pytest.mark.parametrize(
    ("given", "volume", "known", "plan"),
    [
        (claim(1), 1, 1, NOTHING),
        (claim(1), 2, 1, Plan(Verdict.EXPAND, 2, legacy=True)),
        (claim(2), 2, 1, Plan(Verdict.EXPAND, 2, legacy=True, claim_knows=True)),
        (claim(1), 2, 0, NOTHING),
        (claim(1, 2, PENDING), 2, 1, Plan(Verdict.EXPAND, 2)),
        (claim(1, 2, PROGRESS), 3, 1, Plan(Verdict.EXPAND, 2)),
        (claim(1, 2, "ControllerResizeInProgress"), 2, 1, NOTHING),
        (claim(1, 2, "NodeResizeInfeasible"), 2, 1, NOTHING),
        (claim(1, 2, ""), 2, 1, NOTHING),
        (claim(2, 2, ""), 2, 1, Plan(Verdict.DONE, 2, claim_knows=True)),
        (claim(2, 2, "", shared=True), 2, 1, Plan(Verdict.EXPAND, 2, claim_knows=True)),
        (claim(1, 2, PROGRESS), 2, 2, Plan(Verdict.DONE, 2)),
        (claim(1), 2, 2, Plan(Verdict.DONE, 2, legacy=True)),
        (claim(2, 2), 2, 2, NOTHING),
    ],
)
def test_a_published_volume(given: ClaimSize, volume: int, known: int, plan: Plan) -> None:
    assert plan_expansion(given, volume_bytes=volume, known_bytes=known, mounting=False) == plan


@pytest.mark.parametrize(
    ("given", "volume", "known", "plan"),
    [
        (claim(1), 1, 1, NOTHING),
        (claim(1), 2, 1, Plan(Verdict.EXPAND, 2, legacy=True)),
        (claim(1), 2, 2, Plan(Verdict.DONE, 2, legacy=True)),
        (claim(2), 2, 1, NOTHING),
        (claim(1, 2, PENDING), 2, 1, Plan(Verdict.EXPAND, 2)),
        (claim(1, 2, PENDING), 2, 2, Plan(Verdict.DONE, 2)),
        (claim(1, 2, "NodeResizeInfeasible"), 2, 1, NOTHING),
        (claim(1, 2, "ControllerResizeInfeasible"), 2, 1, NOTHING),
        (claim(2, 2, "", shared=True), 2, 2, NOTHING),
    ],
)
def test_a_volume_that_is_being_published(given: ClaimSize, volume: int, known: int, plan: Plan) -> None:
    assert plan_expansion(given, volume_bytes=volume, known_bytes=known, mounting=True) == plan


@pytest.mark.parametrize("code", list(Code))
def test_only_some_codes_give_an_expansion_up(code: Code) -> None:
    expected = code in {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND}
    assert is_infeasible(claim(1, 2, PENDING), Plan(Verdict.EXPAND, 2), code, refused_before=False) is expected


def test_one_that_was_refused_is_given_up_when_its_user_asks_for_another_size() -> None:
    asked = ClaimSize(status_bytes=1, requested_bytes=3, allocated_bytes=2, resize_status=PENDING)
    plan = Plan(Verdict.EXPAND, 2)
    assert is_infeasible(asked, plan, Code.INTERNAL, refused_before=True)
    assert not is_infeasible(asked, plan, Code.INTERNAL, refused_before=False)


def test_a_claim_object_tells_its_sizes() -> None:
    body = {
        "metadata": {},
        "spec": {"resources": {"requests": {"storage": "3Gi"}}, "accessModes": ["ReadWriteMany"]},
        "status": {
            "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": PENDING},
        },
    }
    gi = 1 << 30
    expected = ClaimSize(
        status_bytes=gi, requested_bytes=3 * gi, allocated_bytes=2 * gi, resize_status=PENDING, shared=True
    )
    assert read_claim(body) == expected
    assert not read_claim({**body, "metadata": {"annotations": {NOT_REQUIRED: "true"}}}).shared
    assert read_claim({}) == ClaimSize(status_bytes=0)
