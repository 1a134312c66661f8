"""Where the hub knows the volumes of the edge nodes to be."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cloud.parts.volume_report import report, report_placed
from cloud.sources.source import Source
from cloud.sync.fact_kinds import Fact, name_in_use
from common.objects.objects import Ref, Stamp
from common.objects.pod_fact import MOUNTED, RELEASED
from common.pages.hub import VolumeStatus
from tests.kit.cluster_objects import DRIVER, attachment, claim, entries, node, pod, volume

CLAIMED = (claim("data", volume="v"), volume("v", claim="default/data"))


def source(*objects: Any) -> Source:
    found = Source()
    found.update({ref: entry.item for ref, entry in entries(*objects).items()}, ready=True)
    return found


class Facts:
    """What each node told of its pods, and the nodes that list each volume as in use."""

    def __init__(self, in_use: Collection[str] = (), **told: Mapping[Ref, Fact]) -> None:
        self._in_use, self._told = in_use, told

    def nodes_using(self, volume: str) -> Collection[str]:
        return self._in_use if volume == name_in_use(DRIVER, "h-v") else ()

    def of(self, node: str) -> Mapping[Ref, Fact]:
        return self._told.get(node, {})


def told(objects: Source, name: str, status: str, *volumes: Any, uid: str = "", **more: str) -> dict[Ref, Fact]:
    """What a node tells of the volumes of the pod of this name; an older one gives no list of volumes."""
    ref = Ref("Pod", "default", name)
    body = objects.body(ref)
    assert body is not None
    conditions = [
        {"type": RELEASED, "status": "True"},
        {"type": MOUNTED, "status": status, **more},
    ]
    listed = [dict(zip(("name", "state", "reason"), it, strict=False)) for it in volumes]
    metadata = {"uid": uid or body["metadata"]["uid"]}
    status_told = {"conditions": conditions, **({"volumes": listed} if listed else {})}
    return {ref: Fact(Stamp("", "1"), {"metadata": metadata, "status": status_told})}


def lines(objects: Source, facts: Facts | None = None, **more: Any) -> list[tuple[Any, ...]]:
    placed = more.get("placed", {})
    return [(it.pv, it.node, it.state, it.error) for it in report(objects, facts or Facts(), placed)]


def test_an_entry_names_the_volume_its_claim_its_node_and_who_uses_it_there() -> None:
    objects = source(pod("web", claims=("data",)), *CLAIMED)
    assert list(report(objects, Facts(n1=told(objects, "web", "True")), {})) == [
        VolumeStatus(
            volume="h-v",
            driver=DRIVER,
            pv="v",
            claim="default/data",
            node="n1",
            state="mounted",
            pods=["default/web"],
            error="",
        )
    ]


def test_pods_use_the_volume_of_their_claim_and_not_that_of_an_earlier_one_of_its_name() -> None:
    before = volume("before", claim="default/data") | {"status": {"phase": "Released"}}
    before["spec"]["claimRef"]["uid"] = "of-the-claim-before"
    objects = source(pod("web", claims=("data",)), *CLAIMED, before)
    told_mounted = Facts(n1=told(objects, "web", "True"))
    assert lines(objects, told_mounted) == [("before", "", "released", ""), ("v", "n1", "mounted", "")]


def test_a_volume_that_nobody_uses_has_its_phase_for_a_state_and_the_node_that_its_affinity_names() -> None:
    expression = {"key": "csi-bridge.io/node", "operator": "In", "values": ["n7"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    free = volume("free", nodeAffinity=affinity)
    bound = volume("bound", claim="default/x") | {"status": {"phase": "Bound"}}
    assert lines(source(free, bound)) == [("bound", "", "bound", ""), ("free", "n7", "known", "")]


def bound(name: str, **wanted: list[str]) -> Any:
    """A volume that may be used where labels have one of these values; `_` in a key is a `/`."""
    expressions = [{"key": key.replace("_", "/"), "operator": "In", "values": it} for key, it in wanted.items()]
    return volume(name, nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}})


def test_the_node_that_an_affinity_names_is_the_one_whose_node_object_fits() -> None:
    """A kubelet's hostname need not be the node's name, and another node may be called so."""
    hostname = "kubernetes.io_hostname"
    objects = source(
        node("n1", **{"kubernetes.io/hostname": "n1.example", "zone": "a"}),
        node("n2", **{"kubernetes.io/hostname": "n1", "zone": "a"}),
        node("n3", zone="b"),
        bound("by-hostname", **{hostname: ["n1.example"]}),
        bound("by-label", zone=["b"]),
        bound("by-name-of-another", **{hostname: ["n1"]}),
        bound("by-segment", **{"csi-bridge.io_node": ["n1"]}),
        bound("by-two-labels", zone=["a"], **{hostname: ["n1"]}),
        bound("in-a-zone-of-two", zone=["a"]),
        bound("nowhere", zone=["c"]),
    )
    assert [(name, at) for name, at, _, _ in lines(objects)] == [
        ("by-hostname", "n1"),
        ("by-label", "n3"),
        ("by-name-of-another", "n2"),
        ("by-segment", "n1"),
        ("by-two-labels", "n2"),
        ("in-a-zone-of-two", ""),
        ("nowhere", ""),
    ]


def test_a_nodes_name_is_its_hostname_where_there_is_no_node_object() -> None:
    on_n1, on_n2 = (bound(f"on-{name}", **{"kubernetes.io_hostname": [name]}) for name in ("n1", "n2"))
    assert [(name, at) for name, at, _, _ in lines(source(node("n1"), on_n1, on_n2))] == [
        ("on-n1", ""),
        ("on-n2", "n2"),
    ]


def test_a_volume_that_nobody_uses_is_where_the_placement_knows_it_to_be() -> None:
    placed = {(DRIVER, "h-v"): ["n3"], ("e.example", "h-v"): ["n4"]}
    assert lines(source(volume("v")), placed=placed) == [("v", "n3", "known", ""), ("", "n4", "no PV", "")]


def test_without_any_objects_the_placement_alone_knows_where_volumes_are() -> None:
    first, second = report_placed({(DRIVER, "h-v"): ["n1", "n2"]})
    assert (first.volume, first.driver, first.node, first.state) == ("h-v", DRIVER, "n1", "known")
    assert second == replace(first, node="n2")


def test_a_volume_is_waited_for_until_the_node_tells_of_the_pod_itself() -> None:
    objects = source(pod("web", claims=("data",)), *CLAIMED)
    assert lines(objects) == [("v", "n1", "waiting", "")]
    of_another = Facts(n1=told(objects, "web", "True", uid="another"))
    assert lines(objects, of_another) == [("v", "n1", "waiting", "")]


def test_a_node_that_is_away_since_the_hubs_start_may_have_mounted_what_it_lists_as_in_use() -> None:
    objects = source(pod("web", claims=("data",)), *CLAIMED)
    assert lines(objects, Facts(in_use=["n1"])) == [("v", "n1", "unknown", "")]
    stages = told(objects, "web", "False", ("data", "waiting"))
    assert lines(objects, Facts(in_use=["n1"], n1=stages)) == [("v", "n1", "waiting", "")]


@pytest.mark.parametrize(
    ("phase", "entry"), [("Running", ("v", "n1", "mounted", "")), ("Succeeded", ("v", "", "known", ""))]
)
def test_a_kubelets_pod_has_its_volumes_while_it_runs_and_none_when_it_is_over(
    phase: str, entry: tuple[str, ...]
) -> None:
    user = pod("web", claims=("data",)) | {"status": {"phase": phase}}
    assert lines(source(user, *CLAIMED)) == [entry]


MOUNTED_DATA = ("data", "mounted")


@pytest.mark.parametrize(
    ("volumes", "first", "second"),
    [
        ([("data", "waiting", "disk on fire"), ("logs", "mounted")], ("error", "disk on fire"), ("mounted", "")),
        ([("data", "waiting", "a; logs: b"), ("logs", "waiting", "c")], ("error", "a; logs: b"), ("error", "c")),
        ([("data", "waiting"), ("logs", "unknown", "c")], ("waiting", ""), ("unknown", "c")),
        ([MOUNTED_DATA, ("logs", "of a later version", "c")], ("mounted", ""), ("unknown", "c")),
        ([MOUNTED_DATA, ("", "waiting", "no such pod")], ("mounted", ""), ("error", "no such pod")),
        ([MOUNTED_DATA], ("mounted", ""), ("waiting", "")),
    ],
)
def test_of_a_pods_volumes_each_has_its_own_state_and_reason(
    volumes: list[tuple[str, ...]], first: tuple[str, str], second: tuple[str, str]
) -> None:
    more = (claim("logs", volume="w"), volume("w", claim="default/logs"))
    objects = source(pod("web", claims=("data", "logs")), *CLAIMED, *more)
    found = lines(objects, Facts(n1=told(objects, "web", "False", *volumes)))
    assert found == [("v", "n1", *first), ("w", "n1", *second)]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"reason": "Waiting", "message": "data: a; logs: b"}, ("unknown", "data: a; logs: b")),
        ({"reason": "Waiting"}, ("unknown", "")),
        ({"reason": "Unmounting"}, ("unknown", "")),
        ({"reason": "Unmounted"}, ("waiting", "")),
    ],
)
def test_a_sentence_for_people_tells_no_volumes_state(condition: dict[str, str], expected: tuple[str, str]) -> None:
    """An older agent sends it, and no list of volumes."""
    objects = source(pod("web", claims=("data",)), *CLAIMED)
    assert lines(objects, Facts(n1=told(objects, "web", "False", **condition))) == [("v", "n1", *expected)]


def test_a_volume_that_one_pod_has_and_another_on_its_node_waits_for_is_mounted() -> None:
    objects = source(pod("a", claims=("data",)), pod("b", claims=("data",)), *CLAIMED)
    facts = told(objects, "a", "True", ("data", "mounted")) | told(objects, "b", "False", ("data", "unknown", "why"))
    assert lines(objects, Facts(n1=facts)) == [("v", "n1", "mounted", "why")]


def test_an_attachment_is_a_node_and_its_error_is_the_volumes() -> None:
    at_n2 = attachment("a", volume="v", node="n2")
    failed = attachment("b", volume="v", node="n3", attached=False)
    failed["status"]["attachError"] = {"message": "no such LUN"}
    stuck = attachment("c", volume="v", node="n4")
    stuck["status"]["detachError"] = {"message": "in use"}
    assert lines(source(*CLAIMED, at_n2, failed, stuck)) == [
        ("v", "n2", "attached", ""),
        ("v", "n3", "error", "not attached: no such LUN"),
        ("v", "n4", "error", "not detached: in use"),
    ]


def test_a_volume_shared_by_two_nodes_has_an_entry_for_each() -> None:
    objects = source(pod("a", claims=("data",)), pod("b", node="n2", claims=("data",)), *CLAIMED)
    facts = Facts(n1=told(objects, "a", "True"))
    assert lines(objects, facts) == [("v", "n1", "mounted", ""), ("v", "n2", "waiting", "")]


def test_a_claim_of_a_generic_ephemeral_volume_is_found_by_its_made_up_name() -> None:
    inline = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    user = pod("web", volumes=[inline])
    objects = source(user, claim("web-tmp", volume="v"), volume("v", claim="default/web-tmp"))
    assert lines(objects) == [("v", "n1", "waiting", "")]


def test_volumes_of_no_csi_driver_are_nobodys_business() -> None:
    other = volume("v")
    del other["spec"]["csi"]
    assert lines(source(other)) == []


def test_a_volume_without_a_pv_is_only_known_while_the_hub_still_reads_the_objects() -> None:
    objects = Source()
    assert [it.state for it in report(objects, Facts(), {(DRIVER, "h"): ["n1"]})] == ["known"]
    objects.update({}, ready=True)
    assert [it.state for it in report(objects, Facts(), {(DRIVER, "h"): ["n1"]})] == ["no PV"]
