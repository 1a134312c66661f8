"""A hostile node with a good certificate reports another node's driver, to get that node's creates and volumes."""

from pathlib import Path

from common.csi import csi_pb2 as csi
from common.objects.topology import NODE_SEGMENT
from common.status import Code
from tests.kit.requests import create_at
from tests.kit.spoken_node import Site, report

DRIVER = "vendor.test"
HOST = "topology.vendor.test/host"
SECRETS = {"key": "s3cret"}


def wanted(name: str, segments: dict[str, str]) -> csi.CreateVolumeRequest:
    """A CreateVolume with secrets."""
    return create_at(name, segments, secrets=SECRETS)


def volume(id_: str) -> csi.CreateVolumeResponse:
    return csi.CreateVolumeResponse(volume=csi.Volume(volume_id=id_))


def test_a_node_cannot_take_the_creates_of_the_node_whose_segment_it_claims(short_dir: Path, tmp_path: Path) -> None:
    with Site(short_dir, tmp_path) as site:
        honest = site.told(site.node("n2"), report(DRIVER, "n2"))
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief", segments={NODE_SEGMENT: "n2"}))
        sidecar = site.sidecar(DRIVER, "--placement=local")
        honest.answers["CreateVolume"], thief.answers["CreateVolume"] = volume("v-1"), volume("v-of-the-thief")
        outcome = site.call(sidecar, "CreateVolume", wanted("pvc-1", {NODE_SEGMENT: "n2"}))
        assert thief.asked == []
        assert outcome.answer.volume.volume_id == "v-1"
        assert site.state(thief)["refused"] == {
            DRIVER: "its topology says csi-bridge.io/node=n2, which belongs to edge node n2"
        }


def test_a_segment_that_an_operator_lists_belongs_to_the_first_node_that_had_it(
    short_dir: Path, tmp_path: Path
) -> None:
    with Site(short_dir, tmp_path, f"--unique-topology={HOST}") as site:
        honest = site.told(site.node("n2"), report(DRIVER, "n2", segments={HOST: "h2"}))
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief", segments={HOST: "h2"}))
        sidecar = site.sidecar(DRIVER)
        honest.answers["CreateVolume"], thief.answers["CreateVolume"] = volume("v-1"), volume("v-of-the-thief")
        assert site.call(sidecar, "CreateVolume", wanted("pvc-1", {HOST: "h2"})).answer.volume.volume_id == "v-1"
        site.leave(honest)
        away = site.call(sidecar, "CreateVolume", wanted("pvc-2", {HOST: "h2"}))
        assert (away.code, thief.asked) == (Code.UNAVAILABLE, [])
        assert site.state(thief)["refused"] == {DRIVER: f"its topology says {HOST}=h2, which belongs to edge node n2"}


def test_a_create_never_hands_on_the_id_of_another_nodes_volume(short_dir: Path, tmp_path: Path) -> None:
    zone = {"zone": "z1"}
    with Site(short_dir, tmp_path) as site:
        honest = site.told(site.node("n2"), report(DRIVER, "n2", segments=zone))
        sidecar = site.sidecar(DRIVER)
        honest.answers["CreateVolume"] = volume("v-1")
        assert site.call(sidecar, "CreateVolume", wanted("pvc-1", zone)).ok
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief", segments=zone))
        thief.answers["CreateVolume"] = volume("v-1")
        stolen = site.call(sidecar, "CreateVolume", wanted("pvc-2", zone))
        assert thief.times_asked("CreateVolume") == 1
        told = (
            f"edge node a-thief answered CreateVolume pvc-2 of driver {DRIVER} with volume v-1, which edge node n2 has"
        )
        assert (stolen.code, stolen.message.partition(";")[0]) == (Code.UNAVAILABLE, told)
        assert site.state(thief)["problems"] == [stolen.message]
        assert site.call(sidecar, "DeleteVolume", csi.DeleteVolumeRequest(volume_id="v-1")).ok
        assert (honest.times_asked("DeleteVolume"), thief.times_asked("DeleteVolume")) == (1, 0)


def test_a_create_never_reports_a_volume_on_another_node(short_dir: Path, tmp_path: Path) -> None:
    with Site(short_dir, tmp_path, f"--unique-topology={HOST}") as site:
        site.told(site.node("n2"), report(DRIVER, "n2", segments={HOST: "h2"}))
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief", segments={HOST: "h1"}))
        sidecar = site.sidecar(DRIVER)
        answer = volume("v-9")
        answer.volume.accessible_topology.add().segments.update({HOST: "h2"})
        thief.answers["CreateVolume"] = answer
        outcome = site.call(sidecar, "CreateVolume", wanted("pvc-1", {HOST: "h1"}))
        assert thief.times_asked("CreateVolume") == 1
        assert (outcome.code, outcome.message.partition(" with ")[2].partition(";")[0]) == (
            Code.UNAVAILABLE,
            "a volume for edge node n2, and not for itself",
        )
