"""The binding: what controllers would fill in is filled in, and two that want one thing are named."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from cloud.sources.manifests.binding import Bound, ClaimStatus, NodeReports
from cloud.sources.manifests.binding import bind as bind_entries
from cloud.sources.manifests.pairs import Pairs
from common.objects.objects import Ref
from tests.kit.binding_cases import CASES, Case
from tests.kit.cluster_objects import attachment, claim, driver, entries, node, pod, storage_class, volume

DATA = Ref("PersistentVolumeClaim", "default", "data")
V = Ref("PersistentVolume", "", "v")


def bind(*objects: Any, told: NodeReports | None = None, last: Bound | None = None) -> Bound:
    return bind_entries(entries(*objects), told or NodeReports(), last or Bound())


def uid(bound: Bound, ref: Ref) -> str:
    return bound.items[ref].stamp.uid


def status(bound: Bound, ref: Ref = DATA) -> Any:
    return bound.items[ref].body["status"]


def assert_bound(bound: Bound, claim_ref: Ref = DATA, volume_ref: Ref = V) -> None:
    claim_body, volume_body = bound.items[claim_ref].body, bound.items[volume_ref].body
    assert claim_body["spec"]["volumeName"] == volume_ref.name
    assert claim_body["status"]["phase"] == volume_body["status"]["phase"] == "Bound"
    named = volume_body["spec"]["claimRef"]
    assert (named["namespace"], named["name"]) == (claim_ref.namespace, claim_ref.name)
    assert named["uid"] == uid(bound, claim_ref)


def test_a_claim_and_a_volume_are_bound_if_either_names_the_other() -> None:
    for written in (
        (claim("data", volume="v"), volume("v")),
        (claim("data"), volume("v", claim="default/data")),
        (claim("data", volume="v"), volume("v", claim="default/data")),
    ):
        bound = bind(*written)
        assert_bound(bound)
        assert status(bound) == {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
        assert bound.problems == {}


def test_the_claims_uid_is_filled_in_and_another_one_is_a_problem() -> None:
    right = {"namespace": "default", "name": "data", "uid": uid(bind(claim("data")), DATA)}
    assert_bound(bind(claim("data"), volume("v", claimRef=right)))
    bound = bind(claim("data", volume="v"), volume("v", claimRef={**right, "uid": "another"}))
    assert status(bound) == {"phase": "Pending"}
    assert list(bound.problems.values()) == [
        (
            "PersistentVolumeClaim default/data and PersistentVolume v are not bound: "
            "spec.claimRef.uid is not that of the claim"
        )
    ]


def test_of_two_claims_that_name_a_volume_that_which_it_names_has_it() -> None:
    bound = bind(claim("a", volume="v"), claim("data", volume="v"), volume("v", claim="default/data"))
    assert_bound(bound)
    assert list(bound.problems.values()) == [
        ("PersistentVolumeClaim default/a and PersistentVolume v are not bound: spec.claimRef names another claim")
    ]


def test_of_two_claims_that_name_a_volume_which_names_none_the_first_by_name_has_it() -> None:
    bound = bind(claim("z", volume="v"), claim("data", volume="v"), volume("v"))
    assert_bound(bound)
    assert list(bound.problems) == ["PersistentVolumeClaim default/z PersistentVolume v"]


def test_of_two_volumes_that_name_a_claim_one_is_bound() -> None:
    bound = bind(claim("data"), volume("w", claim="default/data"), volume("v", claim="default/data"))
    assert_bound(bound)
    assert list(bound.problems) == ["PersistentVolumeClaim default/data PersistentVolume w"]
    assert status(bound, Ref("PersistentVolume", "", "w")) == {"phase": "Available"}


def test_a_volume_and_a_claim_that_name_others_are_not_bound() -> None:
    bound = bind(claim("data", volume="w"), volume("v", claim="default/data"))
    assert list(bound.problems.values()) == [
        (
            "PersistentVolumeClaim default/data and PersistentVolume v are not bound: "
            "spec.volumeName names another volume"
        )
    ]
    bound = bind(claim("data", volume="v"), volume("v", claim="other/data"))
    assert list(bound.problems) == ["PersistentVolumeClaim default/data PersistentVolume v"]


def test_what_names_something_that_is_not_there_waits() -> None:
    bound = bind(claim("data", volume="v"), volume("w", claim="default/later"))
    assert status(bound) == {"phase": "Pending"}
    assert status(bound, Ref("PersistentVolume", "", "w")) == {"phase": "Available"}
    assert bound.problems == {}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_claim_gets_the_volume_that_kubernetes_would_give_it(case: Case) -> None:
    bound = bind(*case.objects())
    if case.has:
        assert_bound(bound, DATA, Ref("PersistentVolume", "", case.has))
        assert bound.problems == {}
    else:
        assert status(bound) == {"phase": "Pending"}


def test_a_claim_that_names_a_volume_which_does_not_match_says_why_and_one_being_deleted_is_no_match() -> None:
    bound = bind(*Case("", "", {"volumeName": "a", "accessModes": ["ReadWriteMany"]}).objects())
    (why,) = bound.problems.values()
    assert why.endswith(" are not bound: spec.accessModes of the volume lacks one of the claim's")
    leaving = volume("v")
    leaving["metadata"]["deletionTimestamp"] = "2030-01-31T12:00:00Z"
    assert status(bind(claim("data"), leaving)) == {"phase": "Pending"}


def test_a_claims_request_may_be_empty_or_a_plain_number() -> None:
    for odd in (None, {"storage": None}, {"storage": 1.5}):
        bound = bind(*Case("", "", {"resources": {"requests": odd}}).objects())
        assert_bound(bound, DATA, Ref(V.kind, "", "a"))


def test_a_pair_stays_bound_whatever_fits_better_later_also_after_a_restart() -> None:
    before = bind(claim("data"), volume("v", size="2Gi"))
    for last in (before, Bound(pairs=Pairs(**json.loads(json.dumps(asdict(before.pairs)))))):
        better, first, named = volume("a"), volume("v", size="2Gi", storageClassName="k"), claim("b", volume="v")
        bound = bind(claim("data"), named, first, better, last=last)
        assert_bound(bound)
        assert status(bound, Ref("PersistentVolume", "", "a")) == {"phase": "Available"}
        assert list(bound.problems) == ["PersistentVolumeClaim default/b PersistentVolume v"]


def test_a_claim_whose_volume_is_gone_is_lost_and_a_volume_whose_claim_is_gone_is_released_until_one_is_named() -> None:
    bound = bind(claim("data"), volume("v"))
    bound = bind(claim("data"), volume("w"), last=bound)
    assert status(bound) == {"phase": "Lost"}
    assert "has lost PersistentVolume v, " in bound.problems[str(DATA)]
    bound = bind(claim("data"), volume("v"), volume("w"), last=bound)
    assert_bound(bound)
    bound = bind(claim("next"), volume("v"), last=bound)
    assert status(bound, V) == {"phase": "Released"}
    assert status(bound, Ref("PersistentVolumeClaim", "default", "next")) == {"phase": "Pending"}
    bound = bind(claim("data"), claim("next"), volume("v"), last=bound)
    assert_bound(bound)
    named = (claim("data"), claim("next", volume="v"), volume("v", claim="default/next"))
    bound = bind(*named, last=bound)
    assert_bound(bound, Ref("PersistentVolumeClaim", "default", "next"))
    assert status(bound) == {"phase": "Lost"}


def test_a_class_that_waits_for_pods_binds_to_a_volume_for_their_nodes() -> None:
    waits = storage_class("k", volumeBindingMode="WaitForFirstConsumer")

    def local(name: str, node: str) -> Any:
        there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}}
        return volume(name, storageClassName="k", nodeAffinity=affinity)

    (asking,) = Case("", "", {"storageClassName": "k"}, ()).objects()
    written = (waits, asking, local("u", "n2"), local("v", "n1"))
    assert status(bind(*written)) == {"phase": "Pending"}
    assert_bound(bind(*written, pod("web", claims=("data",))))
    assert (
        status(bind(*written, pod("a", claims=("data",)), pod("b", node="n2", claims=("data",))))["phase"] == "Pending"
    )


def told(size: str, *, node: str = "n1", uid: str = "", **more: Any) -> NodeReports:
    return NodeReports(claims={DATA: (ClaimStatus(node, uid, {"capacity": {"storage": size}, **more}),)})


def test_a_size_that_is_written_as_the_claims_status_counts_until_a_node_tells_a_larger_one() -> None:
    written = (pod("web", claims=("data",)), claim("data", volume="v", status={"capacity": {"storage": "2Gi"}}))
    assert status(bind(*written, volume("v", size="3Gi")))["capacity"] == {"storage": "2Gi"}
    assert status(bind(*written, volume("v"), told=told("1Gi")))["capacity"] == {"storage": "2Gi"}
    assert status(bind(*written, volume("v"), told=told("3Gi")))["capacity"] == {"storage": "3Gi"}


def test_a_node_that_does_not_use_a_claim_or_means_another_one_says_nothing_of_it() -> None:
    written = (pod("web", node="n2", claims=("data",)), claim("data", volume="v"), volume("v"))
    assert status(bind(*written, told=told("5Gi", node="n1")))["capacity"] == {"storage": "1Gi"}
    assert status(bind(*written, told=told("5Gi", node="n2", uid="old")))["capacity"] == {"storage": "1Gi"}
    assert status(bind(*written, told=told("5Gi", node="n2")))["capacity"] == {"storage": "5Gi"}


def test_the_size_that_a_node_was_asked_for_is_not_that_which_the_claim_asks_for_now() -> None:
    asked = {"allocatedResources": {"storage": "3Gi"}}
    written = (pod("web", claims=("data",), node="n2"), claim("data", volume="v", status=asked), volume("v"))
    refused = told("1Gi", node="n2", allocatedResources={"storage": "10Gi"})
    assert status(bind(*written, told=refused))["allocatedResources"] == {"storage": "3Gi"}


def test_what_was_told_of_a_claims_former_volume_is_no_word_of_the_one_that_it_names_now() -> None:
    """As after a restore: the new volume is smaller, and grows later. With the old size it would never be expanded."""
    web = pod("web", claims=("data",))
    old = ClaimStatus("n1", "", {"capacity": {"storage": "10Gi"}, "conditions": ["old"]}, volume="old")
    restored = (web, claim("data", volume="v"), volume("v", size="1Gi"))
    second = bind(*restored, told=NodeReports(claims={DATA: (old,)}))
    assert status(second)["capacity"] == {"storage": "1Gi"}
    assert "conditions" not in status(second)
    new = ClaimStatus("n1", "", {"capacity": {"storage": "5Gi"}}, volume="v")
    third = bind(*restored, told=NodeReports(claims={DATA: (old, new)}))
    assert status(third)["capacity"] == {"storage": "5Gi"}


def test_of_several_nodes_the_largest_size_and_the_latest_state_count() -> None:
    users = (pod("a", claims=("data",)), pod("b", node="n2", claims=("data",)))
    statuses = (
        ClaimStatus("n1", "", {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "old"}}),
        ClaimStatus("n2", "", {"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "new"}}),
    )
    bound = bind(*users, claim("data", volume="v"), volume("v"), told=NodeReports(claims={DATA: statuses}))
    assert status(bound)["capacity"] == {"storage": "2Gi"}
    assert status(bound)["allocatedResourceStatuses"] == {"storage": "new"}


def test_a_node_that_pods_name_is_made_up_and_a_written_one_gets_its_host_name() -> None:
    bound = bind(pod("web", node="n1"), node("n2", zone="z"))
    n1, n2 = (bound.items[Ref("Node", "", name)].body["metadata"] for name in ("n1", "n2"))
    assert n1["labels"] == {"kubernetes.io/hostname": "n1"}
    assert n2["labels"] == {"kubernetes.io/hostname": "n2", "zone": "z"}


def test_a_node_has_the_labels_and_annotations_that_it_tells_of_itself_but_no_other_host_name() -> None:
    labels = {"topology/d": "a", "zone": "y", "kubernetes.io/hostname": "n2"}  # which would get it n2's volumes
    metadata = {"labels": labels, "annotations": {"nodeid": "1"}}
    bound = bind(
        node("n1", zone="z"), told=NodeReports(nodes={"n1": {"metadata": metadata}, "n9": {"metadata": metadata}})
    )
    body = bound.items[Ref("Node", "", "n1")].body
    assert body["metadata"]["labels"] == {"kubernetes.io/hostname": "n1", "topology/d": "a", "zone": "z"}
    assert body["metadata"]["annotations"] == {"nodeid": "1"}
    assert Ref("Node", "", "n9") not in bound.items


def test_a_pod_runs_as_the_default_service_account_unless_it_names_one() -> None:
    bound = bind(pod("a"), pod("b", serviceAccountName="own"))
    names = [bound.items[Ref("Pod", "default", name)].body["spec"]["serviceAccountName"] for name in ("a", "b")]
    assert names == ["default", "own"]


def test_attachments_and_drivers_are_as_they_are_written() -> None:
    written = entries(attachment("a", volume="v", attached=False), driver(attachRequired=False))
    bound = bind_entries(written, NodeReports(), Bound())
    assert {ref: entry.item for ref, entry in written.items()} == bound.items


def test_what_is_written_stays_as_it_is_and_what_stays_equal_is_made_once() -> None:
    written = entries(pod("web"), claim("data", volume="v"), volume("v"), node())
    before = {ref: repr(entry.item) for ref, entry in written.items()}
    first = bind_entries(written, NodeReports(), Bound())
    second = bind_entries(written, NodeReports(), first)
    assert before == {ref: repr(entry.item) for ref, entry in written.items()}
    assert all(second.items[ref] is item for ref, item in first.items.items())
