"""The doctor looks at a real API server, with the hub's own permissions and no others."""

import asyncio

from cli.doctor import cluster, permissions
from cli.doctor.finding import Finding, Level
from cloud.kube.client import connect
from common.pages.hub import NodeStatus
from tests.kit.deployed import driver_roles, hub_roles, policies
from tests.kit.pages import node
from tests.kit.peers import manifests
from tests.kit.peers.control_plane import ControlPlane


def reported(name: str, *drivers: str) -> NodeStatus:
    return node(name, drivers=list(drivers))


async def test_what_a_cluster_has_and_lacks_is_seen_with_the_hubs_permissions(
    control_plane: ControlPlane, namespace: str
) -> None:
    there, lacking = f"{namespace}.csi", f"{namespace}.other"
    for manifest in (manifests.csi_driver(there), manifests.csi_node(f"{namespace}-n1", drivers={there: "n1"})):
        await asyncio.to_thread(control_plane.api.create, manifest)
    await asyncio.to_thread(control_plane.apply, hub_roles())
    kubeconfig = str(await asyncio.to_thread(control_plane.service_account_kubeconfig, "csi-bridge", "csi-bridge-hub"))
    well = await cluster.examine(
        kubeconfig, [reported(f"{namespace}-n1", there)], {}, as_hub=True, limit_s=30.0, lease_in="csi-bridge"
    )
    assert [(name, finding.level) for name, finding in well] == [
        ("permissions", Level.OK), ("policies", Level.WARNING), ("CSIDriver", Level.OK), ("CSINode", Level.OK),
        ("StorageClass", Level.OK),
    ]  # fmt: skip
    assert "are missing: csi-bridge-hub-claims" in well[1][1].what
    local = {there: "local"}
    found = dict(
        await cluster.examine(kubeconfig, [reported(f"{namespace}-n1", there)], local, as_hub=False, limit_s=30.0)
    )
    keyless = found["CSINode"]
    assert (keyless.level, f"for {there} on {namespace}-n1" in keyless.what) == (Level.WRONG, True)
    nodes = [reported(f"{namespace}-n1", there, lacking), reported(f"{namespace}-n2", there)]
    found = dict(await cluster.examine(kubeconfig, nodes, {}, as_hub=False, limit_s=30.0))
    assert found["CSIDriver"].what == f"there is no CSIDriver {lacking}"
    assert found["CSINode"].what.startswith(
        f"the CSINode has no entry for {lacking} on {namespace}-n1, {there} on {namespace}-n2: "
    )


async def test_an_administrator_is_told_whether_the_admission_policies_are_there(control_plane: ControlPlane) -> None:
    async def finding() -> Finding:
        admin = str(control_plane.admin_kubeconfig())
        return dict(await cluster.examine(admin, [], {}, as_hub=False, limit_s=30.0))["policies"]

    missed = await finding()
    assert (missed.level, "are missing: csi-bridge-hub-claims" in missed.what) == (Level.WARNING, True)
    made = policies()
    try:
        for each in made:
            await asyncio.to_thread(control_plane.api.create, each)
        assert (await finding()).level is Level.OK
    finally:
        for each in made:
            await asyncio.to_thread(control_plane.api.delete, each["kind"], each["metadata"]["name"])


async def test_a_hub_whose_roles_are_gone_is_wrong_and_names_every_permission_that_it_lacks(
    control_plane: ControlPlane, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bare", "namespace": namespace}}
    await asyncio.to_thread(control_plane.api.create, account)
    kubeconfig = str(await asyncio.to_thread(control_plane.service_account_kubeconfig, namespace, "bare"))
    found = await cluster.examine(
        kubeconfig, [reported(f"{namespace}-n1", f"{namespace}.csi")], {}, as_hub=True, limit_s=30.0
    )
    name, first = found[0]
    assert (name, first.level) == ("permissions", Level.WRONG)
    for lacking in ("list csidrivers", "watch nodes", "patch pods/status", "patch leases.coordination.k8s.io"):
        assert lacking in first.what


async def test_the_sidecars_permissions_are_those_of_their_service_account(
    control_plane: ControlPlane, namespace: str
) -> None:
    await asyncio.to_thread(control_plane.apply, hub_roles())
    await asyncio.to_thread(control_plane.apply, driver_roles())
    levels = {}
    for account in ("csi-bridge-driver", "csi-bridge-hub"):
        kubeconfig = str(await asyncio.to_thread(control_plane.service_account_kubeconfig, "csi-bridge", account))
        async with connect(kubeconfig) as kube:
            sidecars = permissions.NEEDED.keys() - {permissions.HUB}
            levels[account] = {(await permissions.check(kube, it, "csi-bridge")).level for it in sidecars}
    assert levels == {"csi-bridge-driver": {Level.OK}, "csi-bridge-hub": {Level.WARNING}}
