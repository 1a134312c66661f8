"""The storage of one node: which volumes and snapshots no other node has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cloud.abandon.own_storage import own_contents, own_groups, own_volumes
from cloud.unique_segments import UniqueSegments, unique_keys

if TYPE_CHECKING:
    from cloud.store import StoredSegment

_HOST = "topology.disk.example/host"


class NoStore:
    def segments(self) -> list[StoredSegment]:
        return []

    def save_segment(self, segment: StoredSegment) -> None:
        pass

    def drop_segment(self, segment: StoredSegment) -> None:
        pass


def owner(driver: str, key: str, value: str) -> str:
    """Of a hub where n1 has reported the unique segment h1, and n2 the segment h2."""
    segments = UniqueSegments(NoStore(), unique_keys(f"{_HOST},kubernetes.io/hostname"))
    segments.claim("n1", "d", {_HOST: "h1"})
    segments.claim("n2", "d", {_HOST: "h2"})
    segments.claim("n1", "d", {"kubernetes.io/hostname": "stranger"})  # which the hub does not know
    segments.claim("n1", "other", {_HOST: "h3"})
    return segments.owner(key, value, {"n1"}, driver)


def volume(name: str, *terms: dict[str, list[str]], handle: str = "", driver: str = "d") -> dict[str, Any]:
    """A PersistentVolume; each term has values by key."""
    wanted = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": values} for key, values in term.items()]}
        for term in terms
    ]
    spec: dict[str, Any] = {"csi": {"driver": driver, "volumeHandle": handle or name}}
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": wanted}}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("terms", "is_own"),
    [
        ([{"csi-bridge.io/node": ["n1"]}], True),
        ([{_HOST: ["h1"]}], True),
        ([{"kubernetes.io/hostname": ["n1"]}], True),
        ([{"zone": ["z"], _HOST: ["h1"]}], True),
        ([{"csi-bridge.io/node": ["n2"]}], False),
        ([{"kubernetes.io/hostname": ["stranger"]}], False),
        ([{_HOST: ["h3"]}], False),
        ([{_HOST: ["h1", "h2"]}], False),
        ([{_HOST: ["h1"]}, {_HOST: ["h2"]}], False),
        ([{_HOST: ["h1"]}, {"zone": ["z"]}], False),
        ([{"zone": ["z"]}], False),
        ([{_HOST: []}], False),
        ([], False),
    ],
)
def test_a_volume_is_of_a_node_if_each_term_needs_a_segment_of_this_node_alone(
    terms: list[dict[str, list[str]]], *, is_own: bool
) -> None:
    assert bool(own_volumes([volume("v", *terms)], "n1", owner)) is is_own


def test_a_volume_that_another_node_has_made_is_not_of_this_one() -> None:
    own = volume("v", {_HOST: ["h1"]})
    assert own_volumes([own], "n1", owner, {("d", "v")}) == []
    assert own_volumes([own], "n1", owner, {("d", "w"), ("e", "v")}) == [own]


def test_a_volume_of_no_csi_driver_is_left_alone() -> None:
    local = volume("v", {"kubernetes.io/hostname": ["n1"]})
    del local["spec"]["csi"]
    assert own_volumes([local], "n1", owner) == []


def content(name: str, *, handle: str = "", of: str = "", driver: str = "d") -> dict[str, Any]:
    source = {"volumeHandle": of} if of else {}
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "source": source},
        "status": {"snapshotHandle": handle},
    }


def test_a_snapshot_goes_with_its_volume_or_with_the_only_node_that_made_it() -> None:
    own, other = volume("v1", {_HOST: ["h1"]}), volume("v2", {_HOST: ["h2"]})
    contents = [
        content("of-own", of="v1"),
        content("of-other", of="v2"),
        content("of-another-driver", of="v1", driver="e"),
        content("made", handle="s1"),
        content("made-elsewhere", handle="s2"),
    ]
    found = own_contents(contents, [own], [other], {("d", "s1")})
    assert [it["metadata"]["name"] for it in found] == ["of-own", "made"]


def group(name: str, *of: str, handle: str = "", given: str = "", driver: str = "d") -> dict[str, Any]:
    source = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": given}} if given else {"volumeHandles": list(of)}
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "source": source},
        "status": {"volumeGroupSnapshotHandle": handle} if handle else None,
    }


def test_a_group_goes_with_any_of_its_volumes_or_with_the_only_node_that_made_it() -> None:
    own, other = volume("v1", {_HOST: ["h1"]}), volume("v2", {_HOST: ["h2"]})
    contents = [
        group("of-own", "gone", "v1"),
        group("of-other", "v2"),
        group("of-another-driver", "v1", driver="e"),
        group("made", handle="g1"),
        group("given", given="g1"),
        group("made-elsewhere", handle="g2"),
    ]
    found = own_groups(contents, [own], [other], {("d", "g1")})
    assert [it["metadata"]["name"] for it in found] == ["of-own", "made", "given"]


def test_a_handle_that_two_nodes_have_says_nothing_of_a_snapshot() -> None:
    own, other = volume("v1", {_HOST: ["h1"]}, handle="same"), volume("v2", {_HOST: ["h2"]}, handle="same")
    assert own_contents([content("c", of="same")], [own], [other], ()) == []
