"""A hostile node claims the node id of another one, to block that node's detach or to let its volume go."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.csi.reports import NODE_GET_INFO, Answer, DriverReport
from tests.kit.cluster_objects import as_yaml, attachment, volume
from tests.kit.operator import by_hand
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.spoken_node import Site, report
from tests.kit.waiting import wait_for

DRIVER = "d.example"
VICTIM, VICTIM_ID = "n2", "id-of-n2"


def claiming(node: str, node_id: str) -> DriverReport:
    honest = report(DRIVER, node)
    info = csi.NodeGetInfoResponse(node_id=node_id).SerializeToString()
    return replace(honest, answers={**honest.answers, NODE_GET_INFO: Answer(0, body=info)})


def detach(site: Site, sidecar: Sidecar) -> Outcome:
    return site.call(
        sidecar,
        "ControllerUnpublishVolume",
        csi.ControllerUnpublishVolumeRequest(volume_id="h-pv-1", node_id=VICTIM_ID),
    )


@pytest.fixture
def site(short_dir: Path, tmp_path: Path) -> Iterator[Site]:
    """Node n1 serves, and the volume is attached to node n2."""
    manifests = short_dir / "manifests"
    manifests.mkdir()
    (manifests / "m.yaml").write_text(as_yaml(volume("pv-1"), attachment("csi-1", volume="pv-1", node=VICTIM)))
    with Site(short_dir, tmp_path, f"--manifests={manifests}") as site:
        wait_for(lambda: "h-pv-1" in by_hand("volumes", f"--hub=unix://{site.hub.uds}").stdout, what="the manifests")
        site.told(site.node("n1"), report(DRIVER, "n1"))
        yield site


def test_a_node_that_claims_anothers_id_and_leaves_blocks_no_detach_of_it(site: Site) -> None:
    site.told(site.node(VICTIM), report(DRIVER, VICTIM))
    thief = site.told(site.node("a-thief"), claiming("a-thief", VICTIM_ID))
    sidecar = site.sidecar(DRIVER, "--nodeid=n1")
    site.leave(thief)
    assert detach(site, sidecar).ok


def test_a_node_that_claims_anothers_id_frees_no_volume_of_it(site: Site) -> None:
    victim = site.told(site.node(VICTIM), report(DRIVER, VICTIM))
    site.told(site.node("a-thief"), claiming("a-thief", VICTIM_ID))
    sidecar = site.sidecar(DRIVER, "--nodeid=n1")
    assert detach(site, sidecar).ok
    site.leave(victim)
    assert "is not detached from node n2: it is offline since" in detach(site, sidecar).message
