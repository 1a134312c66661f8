"""The hub's permissions: it, or the doctor beside it, uses all that deploy/ gives it, and nothing is missing.

The admission policies of deploy/ are in force meanwhile.

One node lives through everything that makes the hub ask the API server for something; the API server's own log says
what it was.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.deployed import granted, grants, hub_roles, policies
from tests.kit.edge_node import NODE, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.operator import by_hand
from tests.kit.peers.cluster_node import HUB, ClusterNode
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

pytestmark = [needs_mounts, pytest.mark.slow]

Permission = tuple[str, str, str]  # a verb, an API group, a resource with its subresource


def _granted_by_hand() -> list[dict[str, Any]]:
    return grants(secrets="storage-credentials", serviceAccountTokens="default")


@pytest.fixture
def node(short_dir: Path, tmp_path: Path, control_plane: ControlPlane) -> Iterator[ClusterNode]:
    made = policies()
    for each in made:
        control_plane.api.create(each)
    try:
        with ClusterNode(short_dir, tmp_path, control_plane) as node:
            yield node
    finally:
        for each in made:
            control_plane.api.delete(each["kind"], each["metadata"]["name"])


def allowed() -> set[Permission]:
    """What the roles in deploy/ allow that are bound to the hub."""
    manifests = [*hub_roles(), *_granted_by_hand()]
    bound = [
        (it["roleRef"]["kind"], it["roleRef"]["name"])
        for it in manifests
        if it["kind"].endswith("RoleBinding") and HUB in [subject["name"] for subject in it["subjects"]]
    ]
    return granted(it for it in manifests if (it["kind"], it["metadata"]["name"]) in bound)


def _is_of_records(permission: Permission) -> bool:
    """Whether records need it. No node lives through all that makes the hub write or remove each kind of them."""
    verb, group, resource = permission
    return group == "csi-bridge.io" or resource == "configmaps" or (verb, resource) == ("delete", "leases")


def test_every_permission_of_the_hub_is_used_and_none_is_missing(
    node: ClusterNode, control_plane: ControlPlane, sidecars: Sidecars
) -> None:
    api = control_plane.api
    sidecars.install_snapshot_kinds()  # else the audit does not ask for group snapshots
    control_plane.apply(_granted_by_hand())
    before = len(control_plane.asked_by(HUB))

    def used() -> set[Permission]:
        asked = {(it.verb, it.group, it.resource) for it in control_plane.asked_by(HUB, since=before)}
        return asked - {("create", "authorization.k8s.io", "selfsubjectaccessreviews")}  # the doctor's; all users may

    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "p"}}
    api.create({**secret, "metadata": {"name": "storage-credentials", "namespace": "default"}})
    node.start(tokenRequests=[{"audience": "vault"}])
    source = {"nodeStageSecretRef": {"name": "storage-credentials", "namespace": "default"}}
    handle = node.make_volume("data")
    web = pod("web", "data", terminationGracePeriodSeconds=1, serviceAccountName="default")
    for each in [*volume("data", handle, source=source), web, *volume("lost", "nowhere"), pod("bad", "lost")]:
        api.create(each)
    node.wait_published("web", timeout_s=60.0)

    # The other pod may have an event as well, of what passes: this one's cause stays, and is told again.
    wait_for(lambda: api.events("bad", namespace="default"), what="event", timeout_s=60.0, instead=node.tell)
    time.sleep(1.1)  # an event's time is in whole seconds, and one of the same second says nothing new
    node.agent.kill()
    node.restart_agent()
    wait_for(lambda: ("patch", "", "events") in used(), what="the same event again", timeout_s=60.0, instead=node.tell)

    with Sidecar(node.driver.socket) as resizer:
        request = csi.ControllerExpandVolumeRequest(volume_id=handle, capacity_range={"required_bytes": 32 << 20})
        assert resizer.call("ControllerExpandVolume", request).ok
    api.patch("PersistentVolume", "pv-data", {"spec": {"capacity": {"storage": "32Mi"}}})
    pending = {"allocatedResources": {"storage": "32Mi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    api.patch_status("PersistentVolumeClaim", "data", {"status": pending}, namespace="default")
    api.wait_until(
        "PersistentVolumeClaim", "data", lambda it: bool(it["status"]["capacity"]["storage"] == "32Mi"),
        what="of 32 MiB", namespace="default",
    )  # fmt: skip

    api.wait_until("Pod", "web", lambda it: bool(it["status"].get("conditions")), what="told of", namespace="default")
    api.delete("Pod", "web", namespace="default")
    api.wait_gone("Pod", "web", namespace="default")
    api.wait_until("CSINode", NODE, lambda it: bool(it["spec"]["drivers"]), what="with its driver")
    api.delete_now("Pod", "bad", namespace="default")
    node.wait_clean()

    hub = f"--hub=unix://{node.bridge.hub.uds}"
    lease = ("patch", "coordination.k8s.io", "leases")
    wait_for(lambda: lease in used(), what="heartbeat after the first", timeout_s=60.0, instead=node.problems)
    assert by_hand("doctor", hub).stdout
    assert by_hand("audit", hub).returncode == 0
    node.agent.stop()
    wait_for(
        lambda: by_hand("forget", NODE, hub).returncode == 0,
        what="removal of the node",
        instead=node.problems,
    )
    api.wait_gone("Node", NODE)
    api.wait_gone("CSINode", NODE)
    wait_for(lambda: not node.problems(), what="end of all work", instead=node.problems)

    assert sorted(used() - allowed()) == []
    assert sorted(it for it in allowed() - used() if not _is_of_records(it)) == []
