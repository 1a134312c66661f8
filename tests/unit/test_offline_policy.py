"""The offline policy: an annotation's value, and an agent's word on it."""

import pytest

from cloud.sync.fact_kinds import keep
from common.objects import offline_policy
from common.objects.objects import Ref
from common.objects.offline_policy import ToldFence, flaw, is_fence


@pytest.mark.parametrize("value", ["", "FENCE", "fence ", "détaché", "x" * 10_000])
def test_any_other_value_counts_as_keep_and_is_told(value: str) -> None:
    asked = {offline_policy.ANNOTATION: value}
    assert not is_fence(asked)
    assert flaw(asked).endswith("it can be keep or fence, and counts as keep")
    assert len(flaw(asked)) < 200


@pytest.mark.parametrize(
    ("annotation", "parameter", "fences"),
    [
        (None, None, False),
        ("keep", None, False),
        ("fence", None, True),
        (None, "fence", True),
        (None, "keep", False),
        ("keep", "fence", False),
        ("fence", "keep", True),
        ("wrong", "fence", False),
        ("fence", "wrong", True),
    ],
)
def test_keep_is_the_default_and_the_annotation_wins_over_the_parameter(
    annotation: str | None, parameter: str | None, fences: bool
) -> None:
    annotations = {offline_policy.ANNOTATION: annotation} if annotation is not None else None
    parameters = {offline_policy.PARAMETER: parameter} if parameter is not None else {}
    assert is_fence(annotations, parameters) is fences
    assert bool(flaw(annotations, parameters)) is (annotation == "wrong")


def test_a_wrong_parameter_counts_as_keep_and_is_told_unless_an_annotation_wins() -> None:
    parameters = {offline_policy.PARAMETER: "fenced"}
    assert not is_fence(None, parameters)
    assert flaw(None, parameters) == (
        "the class parameter csi-bridge.io/offline is 'fenced'; it can be keep or fence, and counts as keep"
    )
    assert flaw({offline_policy.ANNOTATION: "keep"}, parameters) == ""


def test_what_an_agent_tells_is_read_as_it_was_written() -> None:
    told = offline_policy.write(60, 30, ["b", "a"], ["c"])
    assert told == {"leaseSeconds": 60, "watchdogSeconds": 30, "staged": ["a", "b"], "staging": ["c"]}
    assert offline_policy.read({"fence": told}) == ToldFence(
        lease_s=60, watchdog_s=30, staged=frozenset({"a", "b"}), staging=frozenset({"c"})
    )


@pytest.mark.parametrize("status", [{}, {"fence": {}}, {"fence": {"leaseSeconds": 60, "staged": ["a"]}}])
def test_an_agent_without_it_fences_nothing(status: dict[str, object]) -> None:
    assert offline_policy.read(status) is None


def test_the_hub_keeps_what_an_agent_tells() -> None:
    told = offline_policy.write(60, 30, ["v"], ["w"])
    assert keep({"status": {"fence": told}}, Ref("Node", "", "n1"))["status"]["fence"] == told


@pytest.mark.parametrize("told", [[], {"staged": 1}, {"staging": [{}]}, {"leaseSeconds": "long"}])
def test_a_hostile_agents_words_are_refused(told: object) -> None:
    with pytest.raises(ValueError, match="fence"):
        keep({"status": {"fence": told}}, Ref("Node", "", "n1"))
