"""Where records stand in objects of a cluster: whatever is written is read back, under names that Kubernetes takes."""

from __future__ import annotations

import re

import pytest

from cloud.records.objects import place_of
from cloud.records.records import Change, Kind
from tests.kit.memory_records import as_read_back

BODIES = {
    (Kind.CLAIM, ("d.example", "CreateVolume größe/\u4e2d")): {
        "state": "made",
        "ids": [{"kind": "volume", "id": "a_b"}],
    },
    (Kind.TOKEN, ("5f",)): {"secret_hash": "aa", "made_at": 1.5, "drivers": ["a_b.csi"]},
    (Kind.DENIAL, ("node", "n1")): {"at": 1.0, "why": "stolen_keys"},
    (Kind.NODE, ("n1",)): {"drivers": [{"answers": {"/csi.v1.Node/NodeGetInfo": {"code": 0}}}], "certificate_end": 2.0},
    (Kind.SEGMENTS, ("n1",)): {"segments": [{"key": "a.example/b_c", "value": "x_Y", "drivers": ["d"]}]},
    (Kind.CERTIFICATES, ("Node_1",)): {"certificates": [{"issued_at": 1.0, "pem": "-----BEGIN"}]},
    (Kind.FENCE, ("n1",)): {"in_use": ["pv_1"], "mark": "m"},
    (Kind.ELECTION, ("d.example",)): {"node": "n1", "epoch": 3, "any_Name": None},
    (Kind.OFFER, ("d.example",)): {"answers": {"GetPluginInfo": {"body": "aa=="}}},
    (Kind.MARK, ("incarnation",)): {"id": "x"},
}


@pytest.mark.parametrize(("kind", "key"), BODIES)
def test_a_record_is_read_back_from_its_object(kind: Kind, key: tuple[str, ...]) -> None:
    body = BODIES[kind, key]
    assert as_read_back(Change(kind, key, body)) == (kind, key, body)
    assert re.fullmatch(r"[a-z0-9][-a-z0-9.]{0,252}", place_of(kind, key).name)


def test_records_of_one_node_stand_in_one_object_and_those_of_two_keys_in_two() -> None:
    of_node = {place_of(kind, ("n1",)).name for kind in (Kind.NODE, Kind.SEGMENTS, Kind.CERTIFICATES, Kind.FENCE)}
    assert of_node == {"n1"}
    names = [place_of(Kind.CLAIM, key).name for key in (("d", "a b"), ("d a", "b"), ("d", "A b"), ("d", ""))]
    assert len(set(names)) == len(names)
    assert place_of(Kind.NODE, ("N1",)).name != place_of(Kind.NODE, ("n1",)).name
