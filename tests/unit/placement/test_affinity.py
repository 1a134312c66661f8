"""On which nodes a volume may be used, as its PersistentVolume says."""

from typing import Any

import pytest

from cloud.nodes.fleet import Fleet
from cloud.placement.affinity import Affinity
from cloud.sources.source import Item, Source
from common.objects.objects import Ref, Stamp
from common.objects.topology import NODE_SEGMENT
from tests.kit.placed_nodes import DRIVER, fleet, report

REF = Ref("PersistentVolume", "", "pv-1")


@pytest.fixture
def two() -> Fleet:
    return fleet(report("n1", segments={"zone": "a"}), report("n2", segments={"zone": "b"}))


def volume(*terms: dict[str, Any], handle: str = "h", driver: str = DRIVER) -> Item:
    spec: dict[str, Any] = {"csi": {"driver": driver, "volumeHandle": handle}}
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": list(terms)}}
    return Item(Stamp("u", "1"), {"metadata": {"name": "pv-1"}, "spec": spec})


def term(key: str, operator: str, *values: str, part: str = "matchExpressions") -> dict[str, Any]:
    return {part: [{"key": key, "operator": operator, "values": list(values)}]}


def source(item: Item | None) -> Source:
    objects = Source()
    objects.update({REF: item})
    return objects


FIELD = term("metadata.name", "In", "n2", part="matchFields")


@pytest.mark.parametrize(
    ("terms", "named", "possible"),
    [
        ([], [], ["n1", "n2", "n3"]),
        ([{}], [], []),
        ([term("zone", "In", "b")], ["n2"], ["n2", "n3"]),
        ([term("zone", "In", "a", "b")], ["n1", "n2"], ["n1", "n2", "n3"]),
        ([term("zone", "In", "a"), term("zone", "In", "b")], ["n1", "n2"], ["n1", "n2", "n3"]),
        ([term("zone", "In", "c")], [], ["n3"]),
        ([term("zone", "NotIn", "a")], ["n2", "n3"], ["n2", "n3"]),
        ([term("zone", "DoesNotExist")], ["n3"], ["n3"]),
        ([term("kubernetes.io/hostname", "In", "n1")], ["n1"], ["n1"]),
        ([term(NODE_SEGMENT, "In", "n1")], ["n1"], ["n1"]),
        ([FIELD], ["n2"], ["n2"]),
        ([term("rack", "In", "r1")], [], ["n1", "n2", "n3"]),
        ([term("rack", "In", "r1") | FIELD], [], ["n2"]),
    ],
)
def test_a_volumes_affinity_names_nodes_and_rules_none_out_of_whose_label_nothing_is_known(
    terms: list[dict[str, Any]], named: list[str], possible: list[str]
) -> None:
    """Of n3 the vendor has told no topology, and of racks nobody has told anything."""
    zones = [report("n1", segments={"zone": "a"}), report("n2", segments={"zone": "b"}), report("n3", segments={})]
    nodes = fleet(*zones)
    affinity = Affinity(source(volume(*terms)))
    fit = affinity.fit("h", DRIVER, nodes)
    assert (fit.named, fit.possible) == (named, possible)
    assert [each.node for each in nodes if affinity.allows("h", DRIVER, each, nodes)] == possible


def a_node(name: str, **labels: str) -> tuple[Ref, Item]:
    known = {key.replace("_", "/"): value for key, value in labels.items()}
    return Ref("Node", "", name), Item(Stamp(name, str(known)), {"metadata": {"name": name, "labels": known}})


def test_the_labels_of_a_node_are_those_that_its_node_object_has(two: Fleet) -> None:
    """A kubelet's hostname need not be the node's name (`--hostname-override`, cloud providers)."""
    objects = source(volume(term("kubernetes.io/hostname", "In", "n1.example")))
    affinity = Affinity(objects)
    assert affinity.fit("h", DRIVER, two).possible == []
    objects.update(dict([a_node("n1", **{"kubernetes.io_hostname": "n1.example"}), a_node("n2")]))
    assert affinity.fit("h", DRIVER, two).named == ["n1"]
    assert affinity.fit("h", DRIVER, two).possible == ["n1", "n2"]  # which has yet to say what its hostname is
    objects.update(dict([a_node("n2", **{"kubernetes.io_hostname": "n1"})]))
    assert affinity.fit("h", DRIVER, two).possible == ["n1"]


def test_a_label_that_only_some_nodes_have_is_unknown_of_the_others(two: Fleet) -> None:
    objects = source(volume(term("rack", "In", "r1")))
    objects.update(dict([a_node("n1", rack="r1"), a_node("n2")]))
    affinity = Affinity(objects)
    fit = affinity.fit("h", DRIVER, two)
    assert (fit.named, fit.possible) == (["n1"], ["n1", "n2"])
    assert affinity.unknown_labels("h", DRIVER, two, fit.possible) == {"n2": ["rack"]}


def test_the_nodes_of_several_volumes_of_a_handle_are_those_of_each(two: Fleet) -> None:
    objects = source(volume(term("zone", "In", "b")))
    objects.update({Ref("PersistentVolume", "", "pv-2"): volume(term("zone", "In", "a"))})
    assert Affinity(objects).fit("h", DRIVER, two).possible == ["n1", "n2"]
    objects.update({Ref("PersistentVolume", "", "pv-2"): Item(Stamp("u", "2"), volume().body)})
    fit = Affinity(objects).fit("h", DRIVER, two)
    assert (fit.named, fit.possible) == (["n2"], ["n1", "n2"])


class Counted(Source):
    """Objects of which each look at a Node is counted."""

    looks = 0

    def body(self, ref: Ref) -> dict[str, Any] | None:
        self.looks += ref.kind == "Node"
        return super().body(ref)


@pytest.mark.parametrize(("key", "looks"), [(NODE_SEGMENT, 0), ("zone", 1), ("rack", 100)])
def test_only_nodes_that_a_volume_may_be_for_are_looked_at_and_each_once(key: str, looks: int) -> None:
    """A fleet has thousands of nodes, and every call of a volume that no record tells of asks. n99 hides its zone."""
    nodes = [report(f"n{i:02}", segments={"zone": f"n{i:02}"} if i < 99 else {}) for i in range(100)]
    objects = Counted()
    objects.update({REF: volume(term(key, "In", "n07"))})
    fit = Affinity(objects).fit("h", DRIVER, fleet(*nodes))
    assert fit.named == ([] if key == "rack" else ["n07"])
    assert objects.looks == looks


def test_volumes_of_other_drivers_and_handles_say_nothing(two: Fleet) -> None:
    affinity = Affinity(source(volume(term("zone", "In", "b"))))
    assert affinity.fit("other", DRIVER, two).named == []
    assert affinity.fit("h", "other.example", two).possible == ["n1", "n2"]


def test_a_volume_that_comes_changes_and_goes_is_followed(two: Fleet) -> None:
    objects = Source()
    affinity = Affinity(objects)
    objects.update({REF: volume(term("zone", "In", "b"))})
    assert affinity.fit("h", DRIVER, two).named == ["n2"]
    changed = volume(term("zone", "In", "a"), handle="h2")
    objects.update({REF: Item(Stamp("u", "2"), changed.body)})
    assert affinity.fit("h", DRIVER, two).named == []
    assert affinity.fit("h2", DRIVER, two).named == ["n1"]
    objects.update({REF: None})
    assert affinity.fit("h2", DRIVER, two).named == []
    assert not affinity._volumes._refs
