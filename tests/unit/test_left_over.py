"""A left-over mount on its way from the agent to the hub."""

from dataclasses import replace

import pytest

from cloud.sync.fact_kinds import keep
from common.objects import left_over
from common.objects.left_over import MOST_BYTES, LeftOver
from common.objects.objects import Ref, encode_body
from common.pages.agent import PodVolumeStatus
from common.pages.json_form import time_of
from edge.reports.report import is_left_over, told_left_over

NODE = Ref("Node", "", "n1")
MOUNT = LeftOver(driver="d.csi", handle="v", pv="pv", pod="default/web", why="busy", since="2026-11-21T09:12:03Z")


def test_the_hub_reads_what_the_agent_writes() -> None:
    status = keep({"status": {"leftOver": left_over.write([MOUNT, LeftOver(driver="d.csi")])}}, NODE)["status"]
    assert left_over.read(status) == ([LeftOver(driver="d.csi"), MOUNT], 0)
    assert MOUNT.since_s == 1795252323.0


def test_an_agent_that_has_none_differs_from_an_older_agent() -> None:
    kept = keep({"status": {"leftOver": left_over.write([])}}, NODE)
    assert left_over.read(kept["status"]) == ([], 0)
    assert left_over.read(keep({"status": {"volumesInUse": ["v"]}}, NODE)["status"]) is None


def test_thousands_of_mounts_leave_the_fact_small_and_are_counted() -> None:
    mounts = [LeftOver(driver="d.csi", handle=f"v-{number}", why="x" * 5_000) for number in range(5_000)]
    told = left_over.write(mounts)
    assert len(encode_body(told)) < MOST_BYTES + 100
    assert told["more"] == 5_000 - len(told["volumes"]) > 4_000


@pytest.mark.parametrize("told", [[], {"volumes": [1]}, {"volumes": [{"driver": 1}]}, {"more": -1}])
def test_a_hostile_agents_words_are_refused(told: object) -> None:
    with pytest.raises(ValueError, match="leftOver"):
        keep({"status": {"leftOver": told}}, NODE)


def test_a_time_that_is_none_is_no_time() -> None:
    assert LeftOver(since="yesterday").since_s == 0.0


@pytest.mark.parametrize(
    ("state", "error", "is_told"),
    [
        ("left over", "", True),
        ("unpublishing", "the device is busy", True),
        ("unstaging", "the device is busy", True),
        ("unpublishing", "", False),
        ("published", "", False),
        ("uncertain", "no claim", False),
    ],
)
def test_an_agent_tells_of_mounts_that_do_not_go_by_themselves(state: str, error: str, is_told: bool) -> None:
    assert is_left_over(PodVolumeStatus(state=state, error=error)) is is_told


def test_an_entry_without_a_pod_has_none_in_the_fact() -> None:
    entry = PodVolumeStatus(state="left over", driver="d", handle="v")
    assert told_left_over(entry) == LeftOver(driver="d", handle="v")
    assert told_left_over(replace(entry, namespace="a", pod="web", since=time_of(60.0))) == LeftOver(
        driver="d", handle="v", pod="a/web", since="1970-01-01T00:01:00Z"
    )
