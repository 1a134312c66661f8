"""The doctor looks at a real API server, with the hub's own permissions and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cli.doctor import cluster, permissions
from cli.doctor.finding import Level, perform
from cloud.kube import connect
from tests.kit.pages import node

if TYPE_CHECKING:
    from common.pages.hub import NodeStatus
    from tests.kit.peers.control_plane import ControlPlane

DEPLOY = Path(__file__).parents[2] / "deploy"


def reported(name: str, *drivers: str) -> NodeStatus:
    """A node as the hub tells of it."""
    return node(name, drivers=list(drivers))


async def test_what_a_cluster_has_and_lacks_is_seen_with_the_hubs_permissions(
    control_plane: ControlPlane, namespace: str
) -> None:
    there, lacking = f"{namespace}.csi", f"{namespace}.other"
    for manifest in (
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": there}},
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": f"{namespace}-n1"},
            "spec": {"drivers": [{"name": there, "nodeID": "n1", "topologyKeys": []}]},
        },
    ):
        await asyncio.to_thread(control_plane.api.create, manifest)
    await asyncio.to_thread(control_plane.apply, DEPLOY / "cloud" / "base" / "hub-rbac.yaml")
    kubeconfig = str(await asyncio.to_thread(control_plane.service_account_kubeconfig, "csi-bridge", "csi-bridge-hub"))
    well = await cluster.examine(kubeconfig, [reported(f"{namespace}-n1", there)], as_hub=True, limit_s=30.0)
    # Other tests leave labelled nodes in this cluster.
    assert [(result.name, result.finding.level) for result in well if result.name != "edge nodes"] == [
        ("permissions", Level.OK), ("CSIDriver", Level.OK), ("CSINode", Level.OK), ("topology", Level.OK),
        ("StorageClass", Level.OK), ("clock", Level.OK),
    ]  # fmt: skip
    local = {there: "local"}
    found = await cluster.examine(kubeconfig, [reported(f"{namespace}-n1", there)], local, limit_s=30.0)
    (topology,) = (result.finding for result in found if result.name == "topology")
    assert (topology.level, f"for {there} on {namespace}-n1" in topology.what) == (Level.WRONG, True)
    nodes = [reported(f"{namespace}-n1", there, lacking), reported(f"{namespace}-n2", there)]
    missing, csi_node, *_ = await cluster.examine(kubeconfig, nodes, limit_s=30.0)
    assert missing.finding.what == f"there is no CSIDriver {lacking}"
    assert csi_node.finding.what.startswith(
        f"the CSINode has no entry for {lacking} on {namespace}-n1, {there} on {namespace}-n2: "
    )


async def test_a_hub_whose_roles_are_gone_is_wrong_and_names_every_kind_that_it_cannot_list(
    control_plane: ControlPlane, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bare", "namespace": namespace}}
    await asyncio.to_thread(control_plane.api.create, account)
    kubeconfig = str(await asyncio.to_thread(control_plane.service_account_kubeconfig, namespace, "bare"))
    found = await cluster.examine(
        kubeconfig, [reported(f"{namespace}-n1", f"{namespace}.csi")], as_hub=True, limit_s=30.0
    )
    first = found[0].finding
    assert (found[0].name, first.level) == ("permissions", Level.WRONG)
    for kind in ("csidrivers", "nodes", "persistentvolumes", "persistentvolumeclaims", "volumeattachments", "pods"):
        assert kind in first.what


async def test_the_sidecars_permissions_are_those_of_their_service_account(
    control_plane: ControlPlane, namespace: str
) -> None:
    await asyncio.to_thread(control_plane.apply, DEPLOY / "cloud" / "base" / "hub-rbac.yaml")
    await asyncio.to_thread(control_plane.apply, DEPLOY / "cloud" / "driver" / "rbac.yaml")
    levels = {}
    for account in ("csi-bridge-driver", "csi-bridge-hub"):
        kubeconfig = str(await asyncio.to_thread(control_plane.service_account_kubeconfig, "csi-bridge", account))
        async with connect(kubeconfig) as kube:
            checks = await permissions.checks_of(kube, "csi-bridge", f"{namespace}-no-such-pod")
            levels[account] = {result.finding.level for result in await perform(checks, limit_s=30.0)}
    assert levels == {"csi-bridge-driver": {Level.OK}, "csi-bridge-hub": {Level.WARNING}}
