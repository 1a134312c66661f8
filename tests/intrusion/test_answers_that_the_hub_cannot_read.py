"""A hostile node answers creates so that the hub reads other ids in the answer than the caller does, or too much."""

from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.requests import create_at
from tests.kit.spoken_node import Site, report

DRIVER = "vendor.test"

STOLEN = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v-1")).SerializeToString()

OWN = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v-2")).SerializeToString()

DEEP = b"\xc3\x0c" * 200 + b"\xc4\x0c" * 200
"""Unknown groups (field 200), nested deeper than Python's protobuf reads (100), but not than Go's does."""


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ((STOLEN + DEEP,), "a message that the hub cannot read (not a CreateVolumeResponse)"),
        ((STOLEN, OWN), "more than one message"),
    ],
    ids=["too-deep", "two-messages"],
)
def test_a_create_hands_on_no_id_that_only_the_caller_reads(
    bodies: tuple[bytes, ...], why: str, short_dir: Path, tmp_path: Path
) -> None:
    zone = {"zone": "z1"}
    with Site(short_dir, tmp_path) as site:
        honest = site.told(site.node("n2"), report(DRIVER, "n2", segments=zone))
        sidecar = site.sidecar(DRIVER)
        honest.answers["CreateVolume"] = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v-1"))
        assert site.call(sidecar, "CreateVolume", create_at("pvc-1", zone)).ok
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief", segments=zone))
        thief.answers["CreateVolume"] = bodies
        stolen = site.call(sidecar, "CreateVolume", create_at("pvc-2", zone))
        assert thief.times_asked("CreateVolume") == 1
        told = f"edge node a-thief answered CreateVolume pvc-2 of driver {DRIVER} with {why}"
        assert (stolen.code, stolen.message.partition(";")[0]) == (Code.UNAVAILABLE, told)


def test_a_node_does_not_fill_the_hubs_disk_with_the_ids_of_what_it_made(short_dir: Path, tmp_path: Path) -> None:
    zone, volume = {"zone": "z1"}, csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v-1"))
    long = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v" * 900_000))
    many = csi.CreateVolumeGroupSnapshotResponse()
    many.group_snapshot.group_snapshot_id = "g-1"
    for number in range(10_000):
        many.group_snapshot.snapshots.add(snapshot_id=f"s-{number}", source_volume_id="v-1")
    with Site(short_dir, tmp_path) as site:
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief", segments=zone))
        sidecar = site.sidecar(DRIVER)
        thief.answers |= {"CreateVolume": volume, "CreateVolumeGroupSnapshot": many}
        assert site.call(sidecar, "CreateVolume", create_at("pvc-1", zone)).ok
        thief.answers["CreateVolume"] = long
        refused = site.call(sidecar, "CreateVolume", create_at("pvc-2", zone))
        assert (refused.code, "with ids of 900000 characters" in refused.message) == (Code.UNAVAILABLE, True)
        group = csi.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=["v-1"])
        refused = site.call(sidecar, "CreateVolumeGroupSnapshot", group)
        assert (refused.code, "with ids of 58893 characters" in refused.message) == (Code.UNAVAILABLE, True)
        assert sum(file.stat().st_size for file in (short_dir / "hub").glob("state.db*")) < 200_000
