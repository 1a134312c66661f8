"""How a recording becomes the same from run to run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from common.csi import csi_pb2 as pb
from tests.peers.kubelet.normal_form import Record, normal_form
from tests.peers.kubelet.recorder import Call, Mark, Recording

if TYPE_CHECKING:
    from tests.peers.kubelet.normal_form import Step
    from tests.peers.kubelet.tree import Tree

NAMES = {"/tmp/x/root": "ROOT", "vol-1": "HANDLE(data)", "vol-2": "HANDLE(more)", "pv-1": "PV(data)", "u-1": "UID(a)"}


def stage(
    volume: str = "vol-1", *, status: str = "OK", before: Tree = frozenset(), after: Tree = frozenset(), **fields: Any
) -> Call:
    request = pb.NodeStageVolumeRequest(volume_id=volume, **fields)
    return Call("NodeStageVolume", request, 119.9, before, 0.0, 1.0, status, "words", after)


def capabilities() -> Call:
    return Call("NodeGetCapabilities", pb.NodeGetCapabilitiesRequest(), 120.0, None, 0.0, 1.0, "OK")


def stats() -> Call:
    request = pb.NodeGetVolumeStatsRequest(volume_id="vol-1", volume_path="/tmp/x/root/p")
    return Call("NodeGetVolumeStats", request, 120.0, None, 0.0, 1.0, "OK")


def formed(*events: Call | Mark, measures: bool = False) -> Record:
    return normal_form(
        Recording(list(events)), scenario="s", about="x", names=NAMES, notes={"of": "vol-1"}, measures=measures
    )


def steps(*events: Call | Mark, lane: str = "data") -> list[Step]:
    found: list[Step] = formed(*events)["lanes"][lane]
    return found


def test_this_runs_names_become_words_the_longest_first() -> None:
    path = "/tmp/x/root/pv-1/u-1"

    (step,) = steps(stage(staging_target_path=path))

    assert step["request"] == {"staging_target_path": "ROOT/PV(data)/UID(a)", "volume_id": "HANDLE(data)"}
    assert step["timeout"] == "120 s"
    assert formed()["notes"] == {"of": "HANDLE(data)"}


def test_secrets_are_told_by_their_digest_and_tokens_by_their_audience() -> None:
    tokens = json.dumps({"vault": {"token": "t0p", "expirationTimestamp": "2026"}})
    key = "csi.storage.k8s.io/serviceAccount.tokens"

    form = formed(stage(secrets={"password": "hunter2", key: tokens}, volume_context={key: tokens}))

    text = json.dumps(form)
    assert "hunter2" not in text
    assert "t0p" not in text
    request = form["lanes"]["data"][0]["request"]
    assert request["secrets"]["password"].startswith("secret of digest ")
    assert request["volume_context"][key] == '{"vault": ["expirationTimestamp", "token"]}'


def test_each_volume_has_its_own_calls_and_its_own_lines() -> None:
    both = frozenset({"x/PV(data) directory", "x/HANDLE(more) file", "x directory"})

    form = formed(stage("vol-1", after=both), stage("vol-2"), Mark("seen", 0.0, both))

    assert list(form["lanes"]) == ["data", "more", "shared"]
    assert form["lanes"]["data"][1] == {"tree": {"added": ["x/PV(data) directory"]}}
    assert [step.get("call") or step.get("mark") for step in form["lanes"]["more"] if "tree" not in step] == [
        "NodeStageVolume",
        "seen",
    ]
    assert form["lanes"]["shared"][0] == {"tree": {"added": ["x directory"]}}


def test_a_tree_is_told_as_its_changes() -> None:
    before, after = frozenset({"PV(data) old"}), frozenset({"PV(data) new"})

    assert steps(stage(before=before, after=after))[::2] == [
        {"tree": {"added": ["PV(data) old"]}},
        {"tree": {"added": ["PV(data) new"], "removed": ["PV(data) old"]}},
    ]


def test_a_call_that_fails_is_told_once_however_often_it_was_tried() -> None:
    once = steps(stage(status="INTERNAL"), stage())

    assert steps(*[stage(status="INTERNAL")] * 3, stage()) == once
    assert once[0]["times"] == "one or more"
    assert "times" not in once[1]


def test_retries_that_go_on_after_a_mark_are_not_told_again() -> None:
    failing, mark = stage(status="INTERNAL"), Mark("deleted", 0.0)

    assert steps(failing, mark, failing, failing) == steps(failing, mark)


def test_a_success_that_is_repeated_after_a_mark_is_told_as_several() -> None:
    found = steps(stage(), Mark("seen", 0.0), stage())

    assert [(step.get("call"), step.get("times")) for step in found] == [
        ("NodeStageVolume", "one or more"),
        (None, None),
    ]


def test_a_retry_that_finds_another_tree_is_another_step() -> None:
    left = frozenset({"PV(data) left"})

    found = steps(stage(status="INTERNAL"), stage(status="INTERNAL", before=left, after=left))

    assert [step.get("call") for step in found] == ["NodeStageVolume", None, "NodeStageVolume"]


def test_a_retry_that_changes_nothing_more_is_not_told_again() -> None:
    left = frozenset({"PV(data) left"})
    first, again = stage(status="INTERNAL", after=left), stage(status="INTERNAL", before=left, after=left)

    assert steps(first, again, again) == steps(first)


def test_a_success_that_finds_what_the_one_before_left_is_another_step() -> None:
    left = frozenset({"PV(data) left"})

    found = steps(stage(after=left), stage(before=left, after=left))

    assert [step.get("call") for step in found] == ["NodeStageVolume", None, "NodeStageVolume"]


def test_a_try_that_fails_is_told_alike_whether_it_was_the_last_or_not() -> None:
    left = frozenset({"PV(data) left"})
    first = (stage(after=left), stage("vol-1", status="INTERNAL", before=left, after=left))
    again = (stage(before=left, after=left), first[1])

    found = steps(*first, *again)

    assert found == steps(*first, *again * 2)
    assert [(step["status"], step.get("times", "")) for step in found if "call" in step] == [
        ("OK", ""),
        ("INTERNAL", "one or more"),
        ("OK", "one or more"),
        ("INTERNAL", "one or more"),
    ]


def test_the_try_that_works_is_told_as_one() -> None:
    failing, mark = stage(status="INTERNAL"), Mark("works again", 0.0)

    found = steps(stage(), failing, mark, stage())

    assert [step.get("times") for step in found] == [None, "one or more", None, None]


def test_a_cycle_of_calls_is_told_once() -> None:
    cycle = (stage(), stage(status="INTERNAL"))

    assert [step["status"] for step in steps(*cycle, *cycle, *cycle)] == ["OK", "INTERNAL"]


def test_a_time_out_of_which_questions_before_the_call_took_some_is_told_whole() -> None:
    call = stage()
    call.timeout_s = 118.4

    assert steps(call)[0]["timeout"] == "120 s"


def test_loop_devices_lose_their_numbers() -> None:
    (step,) = steps(stage(staging_target_path="/dev/loop17"))

    assert step["request"]["staging_target_path"] == "/dev/loop*"


def test_calls_that_only_ask_are_named_once_and_those_that_measure_where_it_matters() -> None:
    form = formed(capabilities(), capabilities(), stats(), stats(), measures=True)

    assert form["asked"] == ["NodeGetCapabilities"]
    assert form["lanes"] == {"shared": []}
    assert [step["call"] for step in form["measured"]] == ["NodeGetVolumeStats"]
    assert "measured" not in formed(stats())


def test_maps_are_sorted_whatever_order_they_were_sent_in() -> None:
    (step,) = steps(stage(publish_context={"b": "2", "a": "1"}))

    assert list(step["request"]["publish_context"]) == ["a", "b"]


def test_a_registration_after_a_mark_is_told_again() -> None:
    registered = Call("NodeGetInfo", pb.NodeGetInfoRequest(), 120.0, None, 0.0, 1.0, "OK")

    found = steps(registered, Mark("restarted", 0.0), registered, lane="shared")

    assert [step.get("call") for step in found] == ["NodeGetInfo", None, "NodeGetInfo"]
