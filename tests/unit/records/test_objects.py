"""Where records stand in objects of a cluster: whatever is written is read back, under names that Kubernetes takes."""

import json
import re

import pytest

from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.unique_segments import UniqueKeys, UniqueSegments
from cloud.records.objects import NODE, place_of, value_of
from cloud.records.records import Change, RecordKind, stored_bytes
from cloud.sync.fact_kinds import Fact
from cloud.sync.fact_table import FactTable
from cloud.trust.generations import MOST_PENDING, MOST_VOID
from common.csi.reports import NODE_GET_INFO, Answer, DriverReport
from common.net.peer import Peer as Shown
from common.objects.objects import Stamp
from common.objects.sole_use import sole_use
from common.observe.metrics import Metrics
from common.observe.version import introduce
from tests.kit.guarded import LEFT, Guarded
from tests.kit.linked import Peer, link_pair
from tests.kit.memory_records import MemoryRecords, as_read_back
from tests.kit.trusting import TRUSTING
from tests.kit.waiting import settle

BODIES = {
    (RecordKind.CLAIM, ("d.example", "CreateVolume größe/\u4e2d")): {
        "state": "made",
        "ids": [{"kind": "volume", "id": "a_b"}],
    },
    (RecordKind.TOKEN, ("5f",)): {"secret_hash": "aa", "made_at": 1.5, "drivers": ["a_b.csi"]},
    (RecordKind.DENIAL, ("node", "n1")): {"at": 1.0, "why": "stolen_keys"},
    (RecordKind.NODE, ("n1",)): {
        "drivers": [{"answers": {"/csi.v1.Node/NodeGetInfo": {"code": 0}}}],
        "certificate_end": 2.0,
    },
    (RecordKind.SEGMENTS, ("n1",)): {"segments": [{"key": "a.example/b_c", "value": "x_Y", "drivers": ["d"]}]},
    (RecordKind.CERTIFICATES, ("Node_1",)): {"certificates": [{"issued_at": 1.0, "pem": "-----BEGIN"}]},
    (RecordKind.FENCE, ("n1",)): {"in_use": ["pv_1"], "mark": "m"},
    (RecordKind.ELECTION, ("d.example",)): {"node": "n1", "epoch": 3, "any_Name": None},
    (RecordKind.OFFER, ("d.example",)): {"answers": {"GetPluginInfo": {"body": "aa=="}}},
    (RecordKind.MARK, ("incarnation",)): {"id": "x"},
}


@pytest.mark.parametrize(("kind", "key"), BODIES)
def test_a_record_is_read_back_from_its_object(kind: RecordKind, key: tuple[str, ...]) -> None:
    body = BODIES[kind, key]
    assert as_read_back(Change(kind, key, body)) == (kind, key, body)
    assert re.fullmatch(r"[a-z0-9][-a-z0-9.]{0,252}", place_of(kind, key).name)


def test_records_of_one_node_stand_in_one_object_and_those_of_two_keys_in_two() -> None:
    of_node = {
        place_of(kind, ("n1",)).name
        for kind in (RecordKind.NODE, RecordKind.SEGMENTS, RecordKind.CERTIFICATES, RecordKind.FENCE)
    }
    assert of_node == {"n1"}
    names = [place_of(RecordKind.CLAIM, key).name for key in (("d", "a b"), ("d a", "b"), ("d", "A b"), ("d", ""))]
    assert len(set(names)) == len(names)
    assert place_of(RecordKind.NODE, ("N1",)).name != place_of(RecordKind.NODE, ("n1",)).name


async def test_the_object_of_a_node_that_says_as_much_as_it_may_fits_into_etcd() -> None:
    """etcd takes 1.5 MiB, and the API server writes `<` with six bytes."""
    records = MemoryRecords()

    async def put_facts() -> None:
        for number in range(1_000):
            volume = {"driver": "d", "volumeHandle": f"{number}{'<' * 500}"}
            await table.put("n1", sole_use("d", f"{number}"), Fact(Stamp("u", "1"), {"spec": volume}))

    table = FactTable(records, TRUSTING, guarded_only=True)
    with pytest.raises(ValueError, match=r"node n1 sends more than 524288 bytes of facts about its volumes in use$"):
        await put_facts()

    link, _ = link_pair(Peer(), Peer(accepts=False), identity=Shown("10.0.0.1:7", local=False))
    await settle()
    key = "k" * 253 + "/" + "k" * 63
    segments = UniqueSegments(records, UniqueKeys((key,)))
    nodes = Nodes(records, segments, Metrics(), max_nodes=1)
    nodes.connect(introduce("edge", "n1", instance="i", boot=1), link)
    with pytest.raises(ValueError, match="and 262144 is the limit"):
        await nodes.report("n1", [report("<" * 50_000)])
    await nodes.report("n1", [report("<" * 43_500)])
    for number in range(256):
        segments.claim("n1", f"{number:0253}", {key: f"{number:063}"})
    assert "256 unique segments" in segments.why_not("n1", "d", {key: f"{0:063}"}, ())  # of one more driver
    records.put(segments.record("n1"))

    guarded = Guarded()
    for many, said in ((1_000, "the hub has no list of the volumes that it used"), (750, "it used 0")):
        guarded.agent("n1", *(f"{number:080}" for number in range(many)), away=LEFT)
        assert (await guarded.fence("n1", "<" * 1_000))[1].startswith(said)

    its = [{"generation": it, "state": "void", "pem": "x" * 4_096} for it in range(MOST_VOID + MOST_PENDING + 2)]
    records.put(Change(RecordKind.CERTIFICATES, ("n1",), {"certificates": its}))
    found = {**guarded.records.kept, **records.kept}
    fields = [value_of(*of, json.loads(body)) for of, body in found.items() if place_of(*of).resource is NODE]
    assert 1_000_000 < stored_bytes(fields) < 1_100_000


def report(message: str) -> DriverReport:
    return DriverReport("d", "n1", {NODE_GET_INFO: Answer(13, message)})
