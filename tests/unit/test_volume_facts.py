"""A volume fact: what the hub is told, how often, and in which words."""

from dataclasses import replace

from common.objects.objects import Ref
from edge.manager.facts import VolumeFacts
from edge.volumes import BoundClaim, Pod
from tests.kit.edge_volumes import FakeClock, FakeFacts

POD = Pod(uid="u", namespace="ns", name="web")
CLAIM = BoundClaim(
    namespace="ns", name="data", uid="c", volume="pv", status_bytes=1 << 30, resize_status="NodeResizePending"
)
REF = Ref("PersistentVolumeClaim", "ns", "data")


def facts() -> tuple[VolumeFacts, FakeFacts, FakeClock]:
    store, clock = FakeFacts(), FakeClock()
    return VolumeFacts(store, node="n1", clock=clock), store, clock


def test_an_event_names_whom_it_is_about_and_who_says_it() -> None:
    told, store, _ = facts()
    told.tell_pod(POD, "FailedMount", "no")
    ((ref, body),) = store.kept.items()
    assert (ref.kind, ref.namespace) == ("Event", "ns")
    assert ref.name.startswith("web.")
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "web", "uid": "u"}
    assert (body["reason"], body["message"], body["type"], body["count"]) == ("FailedMount", "no", "Warning", 1)
    assert body["source"] == {"component": "csi-bridge-edge", "host": "n1"}


async def test_the_same_cause_is_the_same_event_told_seldom_and_counted() -> None:
    told, store, clock = facts()
    for _ in range(10):
        told.tell_pod(POD, "FailedMount", "no")
        await clock.turn(60)
    assert len(store.kept) == 1
    assert [body["count"] for _, body in store.told] == [1, 6]
    assert store.told[0][1]["firstTimestamp"] == store.told[1][1]["firstTimestamp"]


def test_another_cause_is_another_event() -> None:
    told, store, _ = facts()
    told.tell_pod(POD, "FailedMount", "no")
    told.tell_pod(POD, "FailedMount", "never")
    assert len(store.kept) == 2


def test_two_nodes_that_say_the_same_of_one_claim_tell_two_events() -> None:
    store = FakeFacts()
    for node in ("n1", "n2"):
        VolumeFacts(store, node=node, clock=FakeClock()).tell_claim(CLAIM, "FileSystemResizeSuccessful", "done")
    assert sorted(body["source"]["host"] for body in store.kept.values()) == ["n1", "n2"]


def test_an_event_about_an_object_with_the_longest_name_has_a_name_that_kubernetes_takes() -> None:
    told, store, _ = facts()
    told.tell_pod(Pod(uid="u", namespace="ns", name="a" * 235 + "." + "b" * 17), "FailedMount", "x" * 5000)
    ((ref, body),) = store.kept.items()
    assert len(ref.name) <= 253
    assert ".." not in ref.name
    assert len(body["message"]) == 1024


def test_a_thousand_causes_are_remembered_and_no_more() -> None:
    told, _, _ = facts()
    for number in range(1500):
        told.tell_pod(POD, "FailedMount", str(number))
    assert len(vars(told)["_causes"]) == 1000


def test_what_is_told_of_a_claim_is_all_of_it() -> None:
    told, store, _ = facts()
    told.expanding(CLAIM)
    assert store.kept[REF]["metadata"] == {"namespace": "ns", "name": "data", "uid": "c"}
    assert store.kept[REF]["spec"] == {"volumeName": "pv"}
    assert store.kept[REF]["status"] == {
        "capacity": {"storage": "1Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
        "conditions": [],
    }
    told.expanded(CLAIM, 2 << 30)
    assert store.kept[REF]["status"] == {
        "capacity": {"storage": "2Gi"},
        "allocatedResourceStatuses": {},
        "conditions": [],
    }


def test_what_begins_or_fails_names_the_size_that_was_asked_for() -> None:
    told, store, _ = facts()
    claim = replace(CLAIM, allocated_bytes=3 << 30)
    told.expanding(claim)
    assert store.kept[REF]["status"]["allocatedResources"] == {"storage": "3Gi"}
    told.not_expanded(claim, "no", infeasible=True)
    assert store.kept[REF]["status"]["allocatedResources"] == {"storage": "3Gi"}
    told.expanded(CLAIM, 3 << 30)
    assert "allocatedResources" not in store.kept[REF]["status"]


async def test_a_refusal_that_lasts_keeps_its_time() -> None:
    told, store, clock = facts()
    told.not_expanded(CLAIM, "no", infeasible=False)
    first = store.kept[REF]
    (condition,) = first["status"]["conditions"]
    assert condition["type"] == "NodeResizeError"
    assert condition["message"] == "the volume could not be expanded on its node: no"
    assert first["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}
    await clock.turn(100)
    told.not_expanded(CLAIM, "no", infeasible=False)
    assert store.kept[REF] == first
    told.not_expanded(CLAIM, "never", infeasible=True)
    assert store.kept[REF]["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
