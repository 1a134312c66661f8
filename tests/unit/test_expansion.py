"""An expansion: what a claim's and a volume's sizes ask of a node."""

import pytest

from common.status import Code
from edge.volumes import BoundClaim
from edge.wanted.expansion import ExpansionPlan, is_infeasible, plan_expansion

PENDING, PROGRESS = "NodeResizePending", "NodeResizeInProgress"


def claim(have: int = 1, allocated: int | None = None, status: str = "", *, shared: bool = False) -> BoundClaim:
    return BoundClaim(
        namespace="ns",
        name="data",
        uid="c",
        status_bytes=have,
        requested_bytes=3,
        allocated_bytes=allocated,
        resize_status=status,
        shared=shared,
    )


def expand(size: int, *, is_done: bool = False, legacy: bool = False, claim_knows: bool = False) -> ExpansionPlan:
    return ExpansionPlan(claim=claim(), required_bytes=size, is_done=is_done, legacy=legacy, claim_knows=claim_knows)


def done(size: int, *, legacy: bool = False, claim_knows: bool = False) -> ExpansionPlan:
    return expand(size, is_done=True, legacy=legacy, claim_knows=claim_knows)


@pytest.mark.parametrize(
    ("given", "volume", "known", "plan"),
    [
        (claim(1), 1, 1, None),
        (claim(1), 2, 1, expand(2, legacy=True)),
        (claim(2), 2, 1, expand(2, legacy=True, claim_knows=True)),
        (claim(1), 2, 0, None),
        (claim(1, 2, PENDING), 2, 1, expand(2)),
        (claim(1, 2, PROGRESS), 3, 1, expand(2)),
        (claim(1, 2, "ControllerResizeInProgress"), 2, 1, None),
        (claim(1, 2, "NodeResizeInfeasible"), 2, 1, None),
        (claim(1, 2, ""), 2, 1, None),
        (claim(2, 2, ""), 2, 1, done(2, claim_knows=True)),
        (claim(2, 2, "", shared=True), 2, 1, expand(2, claim_knows=True)),
        (claim(1, 2, PROGRESS), 2, 2, done(2)),
        (claim(1), 2, 2, done(2, legacy=True)),
        (claim(2, 2), 2, 2, None),
    ],
)
def test_a_published_volume(given: BoundClaim, volume: int, known: int, plan: ExpansionPlan | None) -> None:
    assert plan_expansion(given, volume_bytes=volume, known_bytes=known, mounting=False) == plan


@pytest.mark.parametrize(
    ("given", "volume", "known", "plan"),
    [
        (claim(1), 1, 1, None),
        (claim(1), 2, 1, expand(2, legacy=True)),
        (claim(1), 2, 2, done(2, legacy=True)),
        (claim(2), 2, 1, None),
        (claim(1, 2, PENDING), 2, 1, expand(2)),
        (claim(1, 2, PENDING), 2, 2, done(2)),
        (claim(1, 2, "NodeResizeInfeasible"), 2, 1, None),
        (claim(1, 2, "ControllerResizeInfeasible"), 2, 1, None),
        (claim(2, 2, "", shared=True), 2, 2, None),
    ],
)
def test_a_volume_that_is_being_published(
    given: BoundClaim, volume: int, known: int, plan: ExpansionPlan | None
) -> None:
    assert plan_expansion(given, volume_bytes=volume, known_bytes=known, mounting=True) == plan


@pytest.mark.parametrize("code", list(Code))
def test_only_some_codes_give_an_expansion_up(code: Code) -> None:
    expected = code in {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND}
    assert is_infeasible(expand(2), code, refused_before=False) is expected


def test_one_that_was_refused_is_given_up_when_its_user_asks_for_another_size() -> None:
    plan = expand(2)
    assert is_infeasible(plan, Code.INTERNAL, refused_before=True)
    assert not is_infeasible(plan, Code.INTERNAL, refused_before=False)
