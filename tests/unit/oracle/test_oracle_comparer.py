"""What the comparer tells of two records, and which of it the table of wanted differences covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.peers.kubelet.comparer import Difference, Kind, compare
from tests.peers.kubelet.differences import ACCEPTED, Accepted, Rule, unseen, unwanted
from tests.peers.kubelet.parity import Played, Row, grouped, table

if TYPE_CHECKING:
    from tests.peers.kubelet.normal_form import Record, Step


def record(*steps: Step, **fields: Any) -> Record:
    return {"scenario": "s", "about": "x", "asked": [], "lanes": {"data": list(steps)}, "notes": {}} | fields


def call(method: str, status: str = "OK", times: str = "", timeout: str = "120 s", **request: Any) -> Step:
    step: Step = {"call": method, "request": request, "timeout": timeout, "status": status}
    return step | ({"times": times} if times else {})


def tree(*added: str, removed: tuple[str, ...] = ()) -> Step:
    return {"tree": {"added": list(added), "removed": list(removed)}}


def told(kubelet: Record, ours: Record) -> list[tuple[str, str, str, str]]:
    return [(it.kind, it.where, it.kubelet, it.ours) for it in compare(kubelet, ours)]


STAGE, PUBLISH = call("NodeStageVolume"), call("NodePublishVolume")


def test_equal_records_have_no_difference() -> None:
    assert compare(record(tree("a"), STAGE), record(tree("a"), STAGE)) == []


def test_a_call_that_only_one_made_is_a_difference_and_those_after_it_still_line_up() -> None:
    assert told(record(STAGE, PUBLISH), record(PUBLISH)) == [("call", "start", "NodeStageVolume OK", "")]


def test_a_call_with_another_end_is_another_call() -> None:
    assert told(record(STAGE), record(call("NodeStageVolume", "INTERNAL"))) == [
        ("call", "start", "NodeStageVolume OK", ""),
        ("call", "start", "", "NodeStageVolume INTERNAL"),
    ]


def test_a_call_that_only_one_repeats_is_a_difference() -> None:
    repeated = call("NodeStageVolume", times="one or more")

    assert told(record(STAGE), record(repeated)) == [("call", "times of NodeStageVolume OK", "once", "one or more")]
    assert told(record(repeated), record(STAGE)) == [("call", "times of NodeStageVolume OK", "one or more", "once")]


def test_a_field_within_a_request_is_named_by_its_path() -> None:
    theirs = call("NodeStageVolume", volume_capability={"mount": {"fs_type": "ext4"}})
    ours = call("NodeStageVolume", volume_capability={"mount": {"fs_type": "xfs"}})

    assert told(record(theirs), record(ours)) == [
        ("field", "volume_capability.mount.fs_type of NodeStageVolume OK", "ext4", "xfs")
    ]


def test_an_empty_message_is_not_a_missing_one() -> None:
    theirs, ours = call("NodeStageVolume", volume_capability={"mount": {}}), call("NodeStageVolume")

    assert told(record(theirs), record(ours)) == [("field", "volume_capability.mount of NodeStageVolume OK", "{}", "")]


def test_another_time_out_is_a_difference() -> None:
    assert told(record(STAGE), record(call("NodeStageVolume", timeout="60 s"))) == [
        ("field", "timeout of NodeStageVolume OK", "120 s", "60 s")
    ]


def test_a_line_of_the_tree_is_told_once_for_as_long_as_it_differs() -> None:
    theirs = record(tree("dir 0750"), STAGE, PUBLISH, tree(removed=("dir 0750",)), {"mark": "gone"})
    ours = record(tree("dir 0755"), STAGE, PUBLISH, tree(removed=("dir 0755",)), {"mark": "gone"})

    assert told(theirs, ours) == [
        ("tree", "before NodeStageVolume OK", "dir 0750", ""),
        ("tree", "before NodeStageVolume OK", "", "dir 0755"),
    ]


def test_a_lane_that_only_one_has_is_told_call_by_call() -> None:
    theirs = record(STAGE)
    ours = record(STAGE) | {"lanes": {"data": [STAGE], "more": [PUBLISH]}}

    assert [(it.lane, it.ours) for it in compare(theirs, ours)] == [("more", "NodePublishVolume OK")]


def test_notes_are_compared_one_by_one() -> None:
    theirs = record(notes={"claim data": ["640Mi"], "same": 1})
    ours = record(notes={"claim data": ["512Mi"], "same": 1})

    assert told(theirs, ours) == [("note", "notes: claim data", '["640Mi"]', '["512Mi"]')]


def test_what_measures_is_compared_call_by_call() -> None:
    stats, health = call("NodeGetVolumeStats", volume_id="v"), call("NodeGetVolumeHealth", volume_id="v")

    assert told(record(measured=[stats]), record(measured=[stats])) == []
    assert [
        (it.where, it.kubelet[:28], it.ours[:29]) for it in compare(record(measured=[stats]), record(measured=[health]))
    ] == [
        ("measured", '{"call": "NodeGetVolumeStats', ""),
        ("measured", "", '{"call": "NodeGetVolumeHealth'),
    ]


def difference(**fields: Any) -> Difference:
    return Difference(
        **{"scenario": "s", "lane": "data", "kind": Kind.TREE, "where": "w", "kubelet": "k", "ours": "o"} | fields
    )


def test_an_entry_of_the_table_covers_what_it_names_and_nothing_else() -> None:
    rule = Rule(name="a rule", kubelet="does this", source="kubelet.go", why="It does that.")
    entry = Accepted(rule=rule, scenarios="s*", kind=Kind.TREE, kubelet="", ours="dir[1] *")

    assert unwanted([difference(kubelet="", ours="dir[1] 0750")], accepted=[entry]) == []
    for other in ({"kubelet": "k"}, {"ours": "dir1 0750"}, {"kind": Kind.CALL}, {"scenario": "t"}):
        left = difference(**{"kubelet": "", "ours": "dir[1] 0750"} | other)
        assert unwanted([left], accepted=[entry]) == [left]


def test_an_entry_that_covers_nothing_is_found() -> None:
    assert unseen([], accepted=ACCEPTED[:1]) == [ACCEPTED[0]]


def test_the_parity_table_says_equal_wanted_different_and_not_played() -> None:
    wanted = record(STAGE, scenario="node-killed-after-unstage")
    ours = record(STAGE, call("NodeUnstageVolume"), scenario="node-killed-after-unstage")

    text = table([
        (record(STAGE, scenario="same"), record(STAGE, scenario="same")),
        (wanted, ours),
        (record(STAGE, scenario="bad"), record(PUBLISH, scenario="bad")),
        (record(STAGE, scenario="later"), None),
    ])  # fmt: skip

    assert "| `same` | x | equal |" in text
    assert "| `node-killed-after-unstage` | x | as wanted: staged without a pod |" in text
    assert "| `bad` | x | **differs** (2) |" in text
    assert "| `later` | x | not played by the agent |" in text
    assert "Scenarios: 4, with 4 calls of the kubelet. Equal: 1. Different as wanted: 1." in text
    assert "Otherwise: `bad`, `later`." in text


def played(name: str, about: str, verdict: str = "equal") -> Played:
    return Played(name=name, about=about, calls=1, verdict=verdict)


def test_scenarios_that_differ_only_in_the_error_code_share_a_row() -> None:
    both = [
        played("stage-aborted-pod-deleted", "It answers ABORTED until the pod goes."),
        played("stage-internal-pod-deleted", "It answers INTERNAL until the pod goes."),
        played("stage-not-found-pod-deleted", "It answers NOT_FOUND until the pod goes."),
    ]

    assert grouped(both) == [
        Row(
            name="stage-*-pod-deleted",
            about="It answers ABORTED, INTERNAL or NOT_FOUND until the pod goes.",
            verdict="equal",
        )
    ]


def test_scenarios_with_another_verdict_or_another_story_keep_a_row_of_their_own() -> None:
    apart = [
        played("stage-aborted", "It answers ABORTED."),
        played("stage-internal", "It answers INTERNAL.", "**differs** (1)"),
        played("stage-unknown", "It answers UNKNOWN until it works."),
    ]

    assert [(row.name, row.about) for row in grouped(apart)] == [(one.name, one.about) for one in apart]
