"""An election on a real API server: by the labels of its Nodes, and told as events. `tests.chaos` has the faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.bridge import Bridge
from tests.kit.operator import by_hand, hub_state
from tests.kit.peers import manifests
from tests.kit.peers.cluster_node import DEPLOY, HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.processes import Supervisor
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


@pytest.mark.slow
def test_an_election_is_an_event_of_the_csidriver_and_of_the_node_and_goes_by_the_labels_of_the_cluster(
    short_dir: Path, supervisor: Supervisor, namespace: str, control_plane: ControlPlane
) -> None:
    api, name, label = control_plane.api, f"{namespace}.csi", "node-restriction.kubernetes.io/storage"
    control_plane.apply(DEPLOY / "base/hub-rbac.yaml")
    api.create(manifests.csi_driver(name, attachRequired=False))
    kubeconfig = control_plane.service_account_kubeconfig("csi-bridge", HUB)
    with Bridge(short_dir, supervisor.directory) as bridge, Vendor(short_dir / "v.sock", name=name) as vendor:
        hub = bridge.start_hub(f"--kubeconfig={kubeconfig}", f"--candidates={name}=label:{label}=nfs")
        for node in ("n1", "n2"):
            bridge.start_agent(node, vendor.socket)
        proxy = bridge.start_proxy(name, "--placement=shared")

        def election() -> dict[str, Any]:
            (found,) = hub_state(hub.uds)["elections"] or [{}]
            return dict(found)

        def give(node: str, value: str | None) -> None:
            api.wait_until("Node", node, bool, what="made by the hub")
            api.patch("Node", node, {"metadata": {"labels": {label: value}}})

        wait_for(lambda: election().get("unmatched"), what="election without a candidate", instead=election)
        assert f"nobody serves driver {name}" in by_hand("doctor", f"--hub=unix://{hub.uds}").stdout
        give("n2", "nfs")
        wait_for(lambda: election()["node"] == "n2", what="election of n2", instead=election)
        bridge.wait_routed(proxy.sidecar())
        give("n1", "nfs")
        wait_for(lambda: election()["standby"] == ["n1"], what="standby node", instead=election)
        give("n2", None)
        wait_for(lambda: election()["node"] == "n1", what="election of n1", instead=election)
        told = "NodeTookOver: edge node n1 serves driver"
        for about in (name, "n1"):
            wait_for(
                lambda about=about: [it for it in api.events(about, namespace="default") if it.startswith(told)],
                what=f"event of {about}",
                instead=lambda about=about: api.events(about, namespace="default"),
            )
        assert [it for it in api.events("n2", namespace="default") if it.startswith("NodeElected")]
        assert hub.logged("forbidden") == []
