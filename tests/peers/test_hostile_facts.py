"""A hostile node tells Kubernetes drivers and segments of others, so that the scheduler sends it their pods."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.csi.reports import encode_reports
from common.messages import Chunk, Kind, Open, Priority
from common.objects.objects import Object, Ref, Stamp, encode_body
from tests.kit.bridge import Bridge
from tests.kit.deployed import hub_roles
from tests.kit.fact_teller import FactTeller
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi
from tests.kit.spoken_node import report
from tests.kit.stranger import Stranger

pytestmark = pytest.mark.slow

ZONE = "topology.vendor.test/zone"
NODE_IDS = "csi.volume.kubernetes.io/nodeid"
_REPORTS = 3


def told(driver: str, zone: str) -> list[Object]:
    """The facts of a node that has a driver with a zone."""
    entry = {"name": driver, "nodeID": "thief", "topologyKeys": [ZONE]}
    node: dict[str, Any] = {
        "metadata": {"labels": {ZONE: zone}, "annotations": {NODE_IDS: json.dumps({driver: "thief"})}},
        "status": {"capacity": {"cpu": "64", "memory": "1Ti", "pods": "110"}},
    }
    facts = {"Node": node, "CSINode": {"spec": {"drivers": [entry]}}}
    return [
        Object(Ref(kind, "", "thief"), Stamp("", f"{driver} {zone}"), encode_body(body)) for kind, body in facts.items()
    ]


def test_a_node_gets_no_driver_and_no_label_in_kubernetes_that_its_reports_do_not_bear_out(
    short_dir: Path, tmp_path: Path, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    control_plane.apply(hub_roles())
    kubeconfig = control_plane.service_account_kubeconfig("csi-bridge", HUB)
    with (
        Bridge(short_dir, tmp_path) as bridge,
        Stranger(bridge.start_hub(f"--kubeconfig={kubeconfig}").address) as thief,
    ):
        teller = FactTeller(thief, "thief")
        own = encode_reports([report("vendor.test", "thief", segments={ZONE: "z1"})])
        thief.frames(Open(_REPORTS, Kind.REPORT, Priority.CONTROL, "", "", "", "", 0), Chunk(_REPORTS, 0, own))

        assert teller.tell(*told("other.test", "z2")) == ["", ""]
        api.wait_until("Node", "thief", lambda it: "cpu" in it["status"].get("capacity", {}), what="of the node")
        assert not api.wait_until("CSINode", "thief", bool, what="of the node")["spec"].get("drivers")
        assert "other.test" not in _read(api, "annotations").get(NODE_IDS, "")

        assert teller.tell(*told("vendor.test", "z2")) == ["", ""]
        api.wait_until("CSINode", "thief", lambda it: bool(it["spec"].get("drivers")), what="with its own driver")
        assert ZONE not in _read(api, "labels")

        assert teller.tell(*told("vendor.test", "z1")) == ["", ""]
        api.wait_until("Node", "thief", lambda it: it["metadata"]["labels"].get(ZONE) == "z1", what="with its zone")
    api.delete_now("Node", "thief")


def _read(api: KubeApi, what: str) -> dict[str, str]:
    found = api.get("Node", "thief")
    assert found is not None
    return found["metadata"].get(what) or {}
