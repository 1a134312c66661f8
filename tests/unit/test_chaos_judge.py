"""The judge of the chaos test finds each fault in a history, and none in a history without one."""

import math
import random

import pytest

from tests.chaos.faults import plan
from tests.chaos.judge import Attempt, Finding, Left, Step, histories, judge
from tests.kit.testdriver.call_log import Call

CREATE, DELETE = "CreateVolume", "DeleteVolume"
ATTACH, DETACH = "ControllerPublishVolume", "ControllerUnpublishVolume"


def step(method: str, *key: str, begin: float, codes: str = "OK", made: str = "", over: float | None = None) -> Step:
    """A step of `v`, with a call of one second for each code."""
    calls = [Attempt(begin + number, begin + number + 1, code) for number, code in enumerate(codes.split())]
    return Step("v", method, key, begin, calls, made, begin + len(calls) if over is None else over)


def call(method: str, start: float, code: str = "OK", **fields: str) -> Call:
    """A call at a driver, of half a second; without a code it has no end."""
    return Call(method, fields, start, start + 0.5 if code else None, code)


STEPS = [
    step(CREATE, "v", begin=0, codes="UNAVAILABLE OK", made="id"),
    step(ATTACH, "id", "n1", begin=10),
    step(DETACH, "id", "n1", begin=20),
    step(ATTACH, "id", "n2", begin=30, codes="INTERNAL OK"),
    step(DETACH, "id", "n2", begin=40),
    step(DELETE, "id", begin=50),
]

CALLS = [
    call(CREATE, 0.1, "", name="v"),  # its driver was killed
    call(CREATE, 1.1, name="v", volume_id="id"),
    call(ATTACH, 10.1, volume_id="id", node_id="n1"),
    call(DETACH, 20.1, volume_id="id", node_id="n1"),
    call(ATTACH, 30.1, "INTERNAL", volume_id="id", node_id="n2"),
    call(ATTACH, 31.1, volume_id="id", node_id="n2"),
    call(DETACH, 40.1, volume_id="id", node_id="n2"),
    call(DELETE, 50.1, volume_id="id"),
]


def found(steps: list[Step], calls: list[Call], *left: Left, other: list[Call] | None = None) -> str:
    findings = judge(steps, {"n1/d": calls, "n2/d": other or []}, left)
    assert {it.life for it in findings} <= {"v", "v2"}
    return "\n".join(it.what for it in findings)


def test_a_history_in_order_has_no_finding() -> None:
    assert found(STEPS, CALLS) == ""


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (call(CREATE, 60.0, name="v", volume_id="id"), "after its caller knew the outcome"),
        (call(DELETE, 45.0, volume_id="id"), "after its caller knew the outcome"),
        (call(CREATE, 1.3, name="v", volume_id="other"), "made more than one of this name: ['id', 'other']"),
        (call(CREATE, 60.0, "", name="v2"), "that nobody asked for"),
        (call(ATTACH, 20.0, volume_id="id", node_id="n2"), "attached to ['n1', 'n2']"),
        (call(DETACH, 10.4, volume_id="id", node_id="n1"), "two nodes worked on it at one time"),
        (call(ATTACH, 30.2, "FAILED_PRECONDITION", volume_id="id", node_id="n2"), "as out of order"),
    ],
)
def test_a_call_too_many_at_any_driver_is_found(more: Call, what: str) -> None:
    assert what in found(STEPS, CALLS, other=[more])


@pytest.mark.parametrize(
    ("index", "instead", "what"),
    [
        (1, step(ATTACH, "id", "n1", begin=10, codes="NOT_FOUND OK"), "with NOT_FOUND"),
        (1, step(ATTACH, "id", "n1", begin=10, over=math.inf, codes="UNAVAILABLE"), "has no outcome"),
        (1, step(ATTACH, "id", "n1", begin=10.3), "no driver answered ControllerPublishVolume ('id', 'n1') with OK"),
        (0, step(CREATE, "v", begin=0, codes="UNAVAILABLE OK", made="other"), "with other"),
    ],
)
def test_an_answer_that_no_driver_gave_in_the_time_of_the_step_is_found(index: int, instead: Step, what: str) -> None:
    assert what in found([*STEPS[:index], instead, *STEPS[index + 1 :]], CALLS)


def test_what_is_left_at_the_end_is_found() -> None:
    left = Left("n1/d", "v", "volumes id")
    assert judge([], {}, [left]) == [Finding("v", "left at the end at n1/d: volumes id")]


def test_a_history_of_a_volume_has_the_calls_of_its_caller_and_of_all_drivers_in_order() -> None:
    (lines,) = histories(STEPS, {"n1/d": CALLS}).values()
    assert [line.split()[0] for line in lines] == sorted((line.split()[0] for line in lines), key=float)
    assert lines[:2] == [
        "0.000 caller: CreateVolume v: UNAVAILABLE after 1.000 s",
        "0.100 n1/d: CreateVolume v: - (no end)",
    ]


def test_one_seed_plans_the_same_faults_and_no_two_of_one_target_at_one_time() -> None:
    targets = {
        kind: [kind, f"{kind}-2"] for kind in ("hub", "agent", "proxy", "vendor", "link", "api link", "api", "disk")
    }
    faults, again = (plan(random.Random(7), 3_000.0, targets) for _ in range(2))
    assert faults == again
    assert {it.whom for it in faults} == {name for names in targets.values() for name in names}
    for number, one in enumerate(faults):
        later = (it for it in faults[number + 1 :] if it.whom == one.whom)
        assert all(it.at_s > one.at_s + one.lasts_s for it in later)
