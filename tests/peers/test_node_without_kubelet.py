"""A node without a kubelet on a real control plane: its objects come from the API server, and what it tells goes there.

The hub runs with the permissions that deploy/ gives it, and no other.
"""

import contextlib
import json
import signal
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloud.kinds.nodes import PROBLEM
from common.objects.objects import Ref, Stamp
from edge.stores.sealing import load_sealer
from tests.kit.deployed import grants
from tests.kit.edge_node import NODE, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.peers.cluster_node import HUB, ClusterNode
from tests.kit.peers.control_plane import Asked, ControlPlane
from tests.kit.waiting import wait_for

Object = dict[str, Any]

KUBELETS = {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}
"""What a kubelet sets of its Node, and the hub does not."""

pytestmark = [needs_mounts, pytest.mark.slow]


@pytest.fixture
def node(short_dir: Path, tmp_path: Path, control_plane: ControlPlane) -> Iterator[ClusterNode]:
    with ClusterNode(short_dir, tmp_path, control_plane) as node:
        yield node


def create(plane: ControlPlane, *objects: Object) -> None:
    for each in objects:
        plane.api.create(each)


def test_an_event_tells_once_why_a_pod_whose_volumes_are_mounted_stays_pending(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api

    def told(name: str) -> list[Object]:
        found = api.get("Pod", name, namespace="default")
        assert found is not None
        events = api.all("Event", namespace="default")
        mine = [it for it in events if it["involvedObject"].get("uid") == found["metadata"]["uid"]]
        return [it for it in mine if it["reason"] == "VolumesMounted"]

    node.start()
    create(control_plane, *volume("data", node.make_volume("data")), pod("web", "data"))
    wait_for(lambda: told("web"), what="event", instead=node.tell)
    (event,) = told("web")
    assert event["message"].startswith(f"All volumes are mounted on node {NODE}. No kubelet runs there, ")

    node.agent.stop()
    node.restart_agent()
    node.bridge.hub.kill()
    node.bridge.hub.start()
    node.agent.wait_connected(connected=False)
    node.agent.wait_connected()
    create(control_plane, *volume("more", node.make_volume("more")), pod("other", "more"))
    wait_for(lambda: told("other"), what="event of the next pod", instead=node.tell)
    assert told("web") == [event]


def test_a_secret_is_read_by_name_and_one_that_may_not_be_read_is_named(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    node.start()
    secret = {"metadata": {"name": "storage-credentials", "namespace": "default"}, "stringData": {"password": "p"}}
    create(control_plane, {"apiVersion": "v1", "kind": "Secret", **secret})
    source = {"nodeStageSecretRef": {"name": "storage-credentials", "namespace": "default"}}
    create(control_plane, *volume("data", node.make_volume("data"), source=source), pod("web", "data"))

    wait_for(
        lambda: any("secrets" in it and "storage-credentials" in it for it in node.problems()),
        what="word about the missing permission",
        instead=node.tell,
    )
    assert not any("password" in it for it in node.problems())
    control_plane.apply(grants(secrets="storage-credentials"))
    node.wait_published("web", timeout_s=100.0)
    api.delete("Secret", "storage-credentials", namespace="default")


@pytest.mark.parametrize("kubelet", [False, True], ids=["the hub's Node", "a kubelet's Node"])
def test_the_node_and_a_pod_that_waits_say_what_must_be_solved_on_the_node(
    node: ClusterNode, control_plane: ControlPlane, kubelet: bool
) -> None:
    api = control_plane.api
    node.start()
    create(control_plane, *volume("data", node.make_volume("data")))
    # The hub makes it from what the agent tells: an agent that stops sooner has told nothing.
    api.wait_until("Node", NODE, bool, what="made by the hub")
    node.agent.stop()
    node.driver.process.signal(signal.SIGSTOP)
    create(control_plane, pod("web", "data"), pod("idle"))
    if kubelet:
        api.patch_status("Node", NODE, KUBELETS)
        node.start_agent("--registration=observe", wait=False)
        api.wait_until("Node", NODE, lambda it: not marks(it), what="without the hub's marks")
    else:
        node.restart_agent()
    told = f"the driver at {node.driver.socket} cannot be asked: "
    problem = api.wait_until("Node", NODE, lambda it: says(it) == "True", what="with its problem")
    (condition,) = [it for it in problem["status"]["conditions"] if it["type"] == PROBLEM]
    assert (condition["reason"], told in condition["message"]) == ("AgentToldProblems", True)
    wait_for(
        lambda: any(f"edge node {NODE} says: {told}" in it for it in api.events("web", namespace="default")),
        what="event of the pod",
        timeout_s=60.0,
        instead=node.tell,
    )
    assert not any("edge node" in it for it in api.events("idle", namespace="default"))

    node.driver.process.signal(signal.SIGCONT)
    api.wait_until("Node", NODE, lambda it: says(it) == "False", what="without a problem", timeout_s=90.0)


def says(node: Object) -> str:
    conditions = node["status"].get("conditions", ())
    return next((it["status"] for it in conditions if it["type"] == PROBLEM), "")


def test_while_the_api_server_is_away_a_node_that_knows_its_pods_goes_on(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    node.start()
    create(control_plane, *volume("data", node.make_volume("data")), pod("web", "data"))
    node.wait_published("web")
    node.agent.kill()
    node.wipe_mounts()
    control_plane.api_server.kill()
    try:
        node.restart_agent()
        node.wait_published("web")
        wait_for(lambda: any("Kubernetes" in it for it in node.problems()), what="word about it", instead=node.tell)
    finally:
        control_plane.api_server.start()
        control_plane.api_server.wait_until(control_plane.ready, what="being ready", timeout_s=180.0)
    wait_for(lambda: not node.problems(), what="end of the trouble", timeout_s=60.0, instead=node.tell)
    create(control_plane, *volume("more", node.make_volume("more")), pod("other", "more"))
    node.wait_published("other", timeout_s=60.0)


def test_a_driver_that_asks_for_tokens_gets_those_of_the_pods_service_account(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    audience = {"audience": "vault", "expirationSeconds": 600}
    node.start("--volume-republish-interval=2s", tokenRequests=[audience, {"audience": ""}], requiresRepublish=True)
    create(control_plane, *volume("data", node.make_volume("data")), pod("web", "data", serviceAccountName="default"))

    wait_for(
        lambda: any("Pod default/web" in it and "serviceaccounts" in it for it in node.problems()),
        what="word about the missing permission",
        instead=node.tell,
    )
    wait_for(
        lambda: any("cannot be created: Kubernetes" in it for it in api.events("web", namespace="default")),
        what="word about it to the pod's users",
        instead=node.tell,
    )
    control_plane.apply(grants(serviceAccountTokens="default"))
    node.wait_published("web", timeout_s=100.0)
    assert not [it for it in node.problems() if "default/web" in it]

    found = api.get("Pod", "web", namespace="default")
    assert found is not None
    uid = found["metadata"]["uid"]
    before = tokens_at(node, uid)
    for audience_of, token in before.items():
        review = api.review_token(token, audience=audience_of)
        assert review["authenticated"]
        assert review["user"]["username"] == "system:serviceaccount:default:default"
        assert review["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
    assert not stands_in_clear(node, *before.values())

    node.bridge.hub.kill()
    node.bridge.hub.start()
    wait_for(lambda: tokens_at(node, uid) != before, what="new tokens of a new hub", timeout_s=60.0, instead=node.tell)
    published = len(node.driver.calls("NodePublishVolume"))
    wait_for(lambda: len(node.driver.calls("NodePublishVolume")) > published, what="new publication with them")

    api.delete_now("Pod", "web", namespace="default")
    wait_for(lambda: not tokens_at(node, uid), what="end of the tokens", instead=node.tell)


def test_the_scheduler_puts_a_pod_on_the_node_by_itself_where_there_is_room(
    node: ClusterNode, control_plane: ControlPlane, scheduler: None
) -> None:
    api = control_plane.api
    node.start()
    known = api.wait_until("Node", NODE, lambda it: "cpu" in it["status"].get("allocatable", {}), what="with room")
    assert known["status"]["capacity"]["pods"] == "110"
    assert known["status"]["nodeInfo"]["kubeletVersion"].startswith("csi-bridge/")
    assert {"type": "Hostname", "address": NODE} in known["status"]["addresses"]

    arch = {"kubernetes.io/arch": known["metadata"]["labels"]["kubernetes.io/arch"], "kubernetes.io/hostname": NODE}
    create(control_plane, *volume("data", node.make_volume("data")))
    tolerations = [{"key": "csi-bridge.io/edge", "operator": "Exists"}]
    create(control_plane, unbound(pod("web", "data"), cpu="10m", nodeSelector=arch, tolerations=tolerations))
    create(control_plane, unbound(pod("large"), cpu="10k", tolerations=tolerations))
    create(control_plane, unbound(pod("stranger"), cpu="10m"))
    node.wait_published("web", timeout_s=60.0)
    found = api.get("Pod", "web", namespace="default")
    assert found is not None
    assert found["spec"]["nodeName"] == NODE

    def is_refused(name: str, why: str) -> bool:
        return any(why in it for it in api.events(name, namespace="default"))

    for name, why in (("large", "Insufficient cpu"), ("stranger", "untolerated taint")):
        wait_for(partial(is_refused, name, why), what=f"refusal: {why}", instead=partial(api.events, name))


def test_a_node_that_gets_a_kubelet_is_left_to_it(node: ClusterNode, control_plane: ControlPlane) -> None:
    api = control_plane.api
    node.start(driver_flags=())
    create(control_plane, *volume("data", node.make_volume("data")), pod("web", "data"))
    before = api.wait_until("CSINode", NODE, lambda it: bool(it["spec"]["drivers"]), what="with its driver")
    ids = "csi.volume.kubernetes.io/nodeid"
    api.wait_until("Node", NODE, is_ready, what="ready")
    made = api.wait_until("Node", NODE, lambda it: ids in it["metadata"]["annotations"], what="with its driver's id")
    assert made["metadata"]["annotations"]["csi-bridge.io/made-by"] == "hub"
    assert made["metadata"]["labels"]["csi-bridge.io/edge"] == "agent"
    assert {"key": "csi-bridge.io/edge", "value": "agent", "effect": "NoSchedule"} in made["spec"]["taints"]

    node.agent.stop()
    asked = len(control_plane.asked_by(HUB))
    node.start_agent("--registration=observe", wait=False)
    wait_for(lambda: "no kubelet has set an address" in str(node.problems()), what="wait", instead=node.problems)
    assert "csi-bridge.io/edge" in str(api.get("Node", NODE)["spec"]["taints"])
    api.patch_status("Node", NODE, KUBELETS)
    handed = api.wait_until("Node", NODE, lambda it: not marks(it), what="without the hub's marks")
    assert handed["metadata"]["annotations"][ids] == made["metadata"]["annotations"][ids]
    assert "csi-bridge.io/edge" not in handed["metadata"]["labels"]
    assert not [it for it in handed["spec"].get("taints", ()) if it["key"] == "csi-bridge.io/edge"]
    after = api.wait_until("CSINode", NODE, lambda it: not marks(it), what="without the hub's marks")
    assert after["spec"] == before["spec"]
    api.wait_until("Lease", NODE, lambda it: not marks(it), what="without the hub's mark", namespace="kube-node-lease")
    handing_over = ["nodes", "csinodes", "leases"]
    wait_for(
        lambda: [it.resource for it in written(control_plane, asked)][-3:] == handing_over, what="last audit line of it"
    )

    asked = len(control_plane.asked_by(HUB))
    create(control_plane, pod("other", "data"))
    for each in ("web", "other"):
        api.delete("Pod", each, namespace="default")
    api.patch("Node", NODE, {"metadata": {"labels": {"kubelet": "was-here"}}})
    api.delete("Node", NODE)
    node.bridge.hub.kill()
    node.bridge.hub.start()
    node.agent.wait_connected(connected=False)
    node.agent.wait_connected()
    wait_for(
        lambda: any("served by a kubelet" in it["msg"] for it in node.bridge.hub.lines()[-5:]),
        what="word of the agent's to the new hub",
        instead=node.bridge.hub.process.log_tail,
    )
    assert written(control_plane, asked) == []
    assert api.get("Node", NODE) is None


def written(plane: ControlPlane, since: int) -> list[Asked]:
    """What the hub wrote, but for its own Lease and its records."""
    asked = [it for it in plane.asked_by(HUB, since=since) if it.verb not in {"get", "list", "watch"}]
    return [it for it in asked if it.name != HUB and it.group != "csi-bridge.io" and it.resource != "configmaps"]


def marks(found: Object) -> list[str]:
    return [it for it in found["metadata"].get("annotations", {}) if it.startswith("csi-bridge.io/")]


def is_ready(found: Object) -> bool:
    return any((it["type"], it["status"]) == ("Ready", "True") for it in found["status"].get("conditions", ()))


def unbound(made: Object, *, cpu: str, **spec: Any) -> Object:
    del made["spec"]["nodeName"]
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "16Mi"}}
    made["spec"] |= spec
    return made


def tokens_at(node: ClusterNode, pod_uid: str) -> dict[str, str]:
    state = node.directory / NODE
    with contextlib.closing(sqlite3.connect(f"file:{state / 'edge.db'}?mode=ro", uri=True)) as database:
        row = database.execute("SELECT uid, version, body FROM objects WHERE name = ?", (pod_uid,)).fetchone()
    if row is None:
        return {}
    ref = Ref("ServiceAccountToken", "default", pod_uid)
    body = json.loads(load_sealer(state / "edge.key").unseal(ref, Stamp(row[0], row[1]), row[2]))
    return {audience: given["token"] for audience, given in body["tokens"].items()}


def stands_in_clear(node: ClusterNode, *tokens: str) -> list[str]:
    """Files of hub, agent and logs that hold one of these."""
    places = (node.directory / NODE, node.directory / "hub", node.logs)
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    return [str(path) for path in files for token in tokens if token.encode() in path.read_bytes()]
