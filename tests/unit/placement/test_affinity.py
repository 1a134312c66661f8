"""On which nodes a volume may be used, as its PersistentVolume says."""

from __future__ import annotations

from typing import Any

import pytest

from cloud.placement.affinity import Affinity
from cloud.placement.fleet import Fleet, Fleets
from cloud.sync.source import Item, Objects
from common.objects import Ref, Stamp
from common.topology import NODE_SEGMENT
from tests.unit.placement.world import DRIVER, World, report

REF = Ref("PersistentVolume", "", "pv-1")


@pytest.fixture
def fleet() -> Fleet:
    class Nodes(World):
        def __init__(self) -> None:
            self.reports = {
                "n1": report("n1", segments={"zone": "a"}),
                "n2": report("n2", segments={"zone": "b"}),
            }

    return Fleets(Nodes()).of(DRIVER)


def volume(*terms: dict[str, Any], handle: str = "h", driver: str = DRIVER) -> Item:
    spec: dict[str, Any] = {"csi": {"driver": driver, "volumeHandle": handle}}
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": list(terms)}}
    return Item(Stamp("u", "1"), {"metadata": {"name": "pv-1"}, "spec": spec})


def term(key: str, operator: str, *values: str, part: str = "matchExpressions") -> dict[str, Any]:
    return {part: [{"key": key, "operator": operator, "values": list(values)}]}


def source(item: Item | None) -> Objects:
    objects = Objects()
    objects.update({REF: item})
    return objects


@pytest.mark.parametrize(
    ("terms", "nodes"),
    [
        ([], None),
        ([term("zone", "In", "b")], ["n2"]),
        ([term("zone", "In", "a", "b")], ["n1", "n2"]),
        ([term("zone", "In", "a"), term("zone", "In", "b")], ["n1", "n2"]),
        ([term("zone", "NotIn", "a")], ["n2"]),
        ([term("zone", "Exists")], ["n1", "n2"]),
        ([term("zone", "DoesNotExist")], None),
        ([term("zone", "Gt", "1")], None),
        ([term("kubernetes.io/hostname", "In", "n1")], ["n1"]),
        ([term(NODE_SEGMENT, "In", "n1")], ["n1"]),
        ([term("metadata.name", "In", "n2", part="matchFields")], ["n2"]),
        ([{**term("zone", "In", "a"), **term("metadata.name", "In", "n2", part="matchFields")}], None),
        ([{}], None),
        ([term("zone", "In", "c")], None),
    ],
)
def test_a_volumes_affinity_names_its_nodes(fleet: Fleet, terms: list[dict[str, Any]], nodes: list[str] | None) -> None:
    assert Affinity(source(volume(*terms))).nodes("h", DRIVER, fleet) == nodes


def test_volumes_of_other_drivers_and_handles_say_nothing(fleet: Fleet) -> None:
    affinity = Affinity(source(volume(term("zone", "In", "b"))))
    assert affinity.nodes("other", DRIVER, fleet) is None
    assert affinity.nodes("h", "other.example", fleet) is None


def test_a_volume_that_comes_changes_and_goes_is_followed(fleet: Fleet) -> None:
    objects = Objects()
    affinity = Affinity(objects)
    objects.update({REF: volume(term("zone", "In", "b"))})
    assert affinity.nodes("h", DRIVER, fleet) == ["n2"]
    changed = volume(term("zone", "In", "a"), handle="h2")
    objects.update({REF: Item(Stamp("u", "2"), changed.body)})
    assert affinity.nodes("h", DRIVER, fleet) is None
    assert affinity.nodes("h2", DRIVER, fleet) == ["n1"]
    objects.update({REF: None})
    assert affinity.nodes("h2", DRIVER, fleet) is None
    assert not affinity._by_handle
