"""The admission policies of the chart, on a real API server: each allows a request and refuses another one."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError

from tests.kit.deployed import hub_roles, of_kinds, policies, trial
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi
from tests.kit.peers.manifests import claim, node, pod
from tests.kit.waiting import wait_for

_MADE = {"csi-bridge.io/made-by": "hub"}
_RESIZERS = "volume.kubernetes.io/node-expansion-not-required"
_HOLD = {"key": "example.com/hold", "effect": "NoSchedule"}
_EFFECTIVE_S = 60.0


class User:
    """A user of the API server; each request returns its refusal, empty if it was allowed."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    def create(self, body: dict[str, Any]) -> str:
        return _refusal(lambda: self._api.create(body))

    def patch(self, kind: str, name: str, change: dict[str, Any], namespace: str | None = None) -> str:
        patch = self._api.patch_status if "status" in change else self._api.patch
        return _refusal(lambda: patch(kind, name, change, namespace=namespace))

    def end(self, kind: str, name: str, namespace: str | None = None) -> str:
        """Delete an object without grace."""
        return _refusal(lambda: self._api.delete(kind, name, namespace=namespace, grace_s=0))


def _refusal(request: Callable[[], object]) -> str:
    try:
        request()
    except DynamicApiError as error:
        return str(error.summary())
    return ""


@dataclass(frozen=True, slots=True)
class Users:
    """The hub, and the kubelet of the node k1."""

    hub: User
    kubelet: User


@pytest.fixture
def users(control_plane: ControlPlane) -> Iterator[Users]:
    """Users of an API server on which the policies are effective, with the Node k1 of a kubelet."""
    with _users(control_plane, policies()) as users:
        yield users


@pytest.fixture
def edgecore_users(control_plane: ControlPlane) -> Iterator[Users]:
    """The same with the policies for nodes with EdgeCore."""
    with _users(control_plane, policies({"hub": {"edgecoreNodes": True}})) as users:
        yield users


@contextmanager
def _users(control_plane: ControlPlane, made: list[dict[str, Any]]) -> Iterator[Users]:
    api = control_plane.api
    control_plane.apply(hub_roles())
    api.create(node("k1"))
    for each in made:
        api.create(each)
    with (
        closing(
            control_plane.api_for("system:serviceaccount:csi-bridge:csi-bridge-hub", "system:serviceaccounts")
        ) as hub,
        closing(control_plane.api_for("system:node:k1", "system:nodes")) as kubelet,
    ):
        users = Users(User(hub), User(kubelet))
        try:
            labels = (f"csi-bridge.io/look-{number}" for number in itertools.count())
            wait_for(lambda: _are_effective(users, next(labels)), what="effective policies", timeout_s=_EFFECTIVE_S)
            yield users
        finally:
            for each in made:
                api.delete(each["kind"], each["metadata"]["name"])
            for each in api.all("Node"):
                api.delete_now("Node", each["metadata"]["name"])


def _are_effective(users: Users, label: str) -> bool:
    """Whether the server has read the policies, which takes a moment. If not, the Node gets the label."""
    change: dict[str, Any] = {"metadata": {"labels": {label: ""}}}
    return all([users.hub.patch("Node", "k1", change), users.kubelet.patch("Node", "k1", change)])


def test_to_a_node_with_edgecore_the_hub_adds_labels_and_changes_nothing_else(
    edgecore_users: Users, control_plane: ControlPlane
) -> None:
    hub = edgecore_users.hub
    control_plane.api.create(node("e1", labels={"csi-bridge.io/edge": "kubeedge", "site": "north"}))
    assert hub.patch("Node", "e1", {"metadata": {"labels": {"topology.example/rack": "7"}}}) == ""
    assert hub.patch("Node", "e1", {"metadata": {"labels": {"csi-bridge.io/node": "e1"}}}) == ""

    refused = "to those with csi-bridge.io/edge=kubeedge it adds labels"
    for labels in (
        {"site": "south"},
        {"site": None},
        {"topology.example/rack": None},
        {"csi-bridge.io/hub": ""},
        {"csi-bridge.io/edge": None},
    ):
        assert refused in hub.patch("Node", "e1", {"metadata": {"labels": labels}})
    assert hub.patch("Node", "e1", {"metadata": {"labels": {"csi-bridge.io/edge": "agent"}}}) != ""
    assert refused in hub.patch("Node", "e1", {"metadata": {"annotations": _MADE}})
    assert refused in hub.patch("Node", "e1", {"metadata": {"finalizers": ["x.example/y"]}})
    assert refused in hub.patch("Node", "e1", {"spec": {"unschedulable": True}})
    assert refused in hub.patch("Node", "e1", {"status": {"volumesInUse": ["kubernetes.io/csi/d^v"]}})
    assert refused in hub.end("Node", "e1")

    rack = {"metadata": {"labels": {"topology.example/rack": "7"}}}
    assert refused in hub.patch("Node", "k1", rack)
    assert refused in hub.create(node("e2", labels={"csi-bridge.io/edge": "kubeedge"}))
    control_plane.api.create(node("e3", labels={"csi-bridge.io/edge": "kubeedge"}))
    assert refused in hub.patch("Node", "e3", {"metadata": {"labels": {"csi-bridge.io/node": "e1"}}})


def test_the_hub_changes_only_its_own_nodes(users: Users, control_plane: ControlPlane) -> None:
    hub = users.hub
    taint = "has the taint csi-bridge.io/edge=agent:NoSchedule"
    assert taint in hub.create(node("own", annotations=_MADE))
    soft = {"taints": [{"key": "csi-bridge.io/edge", "value": "agent", "effect": "PreferNoSchedule"}]}
    assert taint in hub.create({**_made("own"), "spec": soft})
    assert hub.create(_made("own")) == ""
    control_plane.api.create(node("lent", labels={"csi-bridge.io/edge": "agent"}) | {"spec": {"taints": [_HOLD]}})
    change: dict[str, Any] = {"metadata": {"labels": {"topology.example/rack": "7"}}}
    in_use: dict[str, Any] = {"status": {"volumesInUse": ["kubernetes.io/csi/d^v"]}}
    for name in ("own", "lent"):
        assert hub.patch("Node", name, change) == ""
        assert hub.patch("Node", name, in_use) == ""

    told = {"type": "csi-bridge.io/StorageProblem", "status": "True", "reason": "AgentToldProblems", "message": "full"}
    assert hub.patch("Node", "k1", {"status": {"conditions": [told]}}) == ""

    refused = "the hub changes only Nodes that it made"
    ready = {**told, "type": "Ready"}
    assert refused in hub.patch("Node", "k1", {"status": {"conditions": [told, ready]}})
    assert refused in hub.patch("Node", "k1", {"status": {"conditions": [told], "capacity": {"cpu": "99"}}})
    assert refused in hub.patch("Node", "k1", {"metadata": {"finalizers": ["x.example/y"]}, "status": {}})
    assert refused in hub.patch("Node", "k1", change)
    assert refused in hub.patch("Node", "k1", in_use)
    assert refused in hub.patch("Node", "k1", {"metadata": {"annotations": _MADE}})
    assert refused in hub.end("Node", "k1")
    assert refused in hub.create(node("other"))
    assert refused in hub.create(node("other", labels={"csi-bridge.io/edge": "agent"}))
    for address in ({"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "k1"}):
        assert "no address but the Hostname" in hub.patch("Node", "own", {"status": {"addresses": [address]}})
    named: dict[str, Any] = {"status": {"addresses": [{"type": "Hostname", "address": "own"}]}}
    assert hub.patch("Node", "own", named) == ""
    pull = {"metadata": {"labels": {"csi-bridge.io/edge": "kubelet"}}}
    assert "only on a Node that it makes" in hub.patch("Node", "own", pull)
    places: list[dict[str, Any]] = [
        {"providerID": "aws:///zone/i-1"},
        {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]},
    ]
    for spec in places:
        made = _made("other")
        assert "no providerID and no podCIDR" in hub.create({**made, "spec": {**made["spec"], **spec}})
    for name, spec in itertools.product(("own", "lent"), (*places, {"unschedulable": True}, {"taints": None})):
        assert "changes nothing in the spec" in hub.patch("Node", name, {"spec": spec})
    assert hub.end("Node", "lent") == ""


@pytest.mark.parametrize("label", ["agent", "kubelet"])  # an operator has overwritten it (docs/on-kubernetes.md)
def test_the_hub_hands_a_node_over_once_a_kubelet_has_set_an_address(
    users: Users, control_plane: ControlPlane, label: str
) -> None:
    api, hub, early = control_plane.api, users.hub, "until a kubelet has set an address"
    own = _made("own")
    own["metadata"]["labels"] = {"csi-bridge.io/edge": "agent"}
    assert hub.create(own) == ""
    api.patch("Node", "own", {"metadata": {"labels": {"csi-bridge.io/edge": label}}})
    labels = {"csi-bridge.io/edge": None} if label == "agent" else {}
    unmade: dict[str, Any] = {"annotations": {"csi-bridge.io/made-by": None}, "labels": labels}
    hand_over = {"metadata": unmade, "spec": {"taints": None}}
    assert early in hub.patch("Node", "own", {"metadata": unmade})
    assert "changes nothing in the spec" in hub.patch("Node", "own", hand_over)
    api.patch_status("Node", "own", {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}})
    if label == "agent":  # else the hub would keep the Node by its label
        assert early in hub.patch("Node", "own", {"metadata": {**unmade, "labels": {}}})
    with_place = {**hand_over, "spec": {"taints": None, "providerID": "aws:///zone/i-1"}}
    assert "changes nothing in the spec" in hub.patch("Node", "own", with_place)
    assert hub.patch("Node", "own", hand_over) == ""
    assert "the hub changes only Nodes that it made" in hub.end("Node", "own")


def test_the_hub_ends_only_deleted_pods_that_no_kubelet_runs(
    users: Users, control_plane: ControlPlane, namespace: str
) -> None:
    api, hub = control_plane.api, users.hub
    told: dict[str, Any] = {"status": {"conditions": [{"type": "csi-bridge.io/Mounted", "status": "True"}]}}
    taken: dict[str, Any] = {"status": {"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}}
    for name in ("waiting", "running", "kept"):
        api.create(pod(name, namespace=namespace, nodeName="k1"))
    api.patch_status("Pod", "running", taken, namespace=namespace)
    for name in ("waiting", "running"):
        api.delete("Pod", name, namespace=namespace)  # each has a grace period

    for change in ({"phase": "Failed"}, {"podIP": "192.0.2.1"}, {"conditions": [{"type": "Ready", "status": "True"}]}):
        assert "sets no other status of a pod" in hub.patch("Pod", "waiting", {"status": change}, namespace)
    assert hub.patch("Pod", "waiting", told, namespace) == ""
    assert hub.end("Pod", "waiting", namespace) == ""
    assert api.get("Pod", "waiting", namespace=namespace) is None

    for part in ({"labels": {"app": "shop"}}, {"annotations": {"a": "b"}}, {"finalizers": ["example.com/hold"]}):
        assert "no label, annotation, finalizer or owner" in hub.patch(
            "Pod", "kept", {"metadata": part, **told}, namespace
        )
    kubelets = "none that a kubelet has taken"
    assert kubelets in hub.end("Pod", "running", namespace)
    assert kubelets in hub.patch("Pod", "running", told, namespace)
    assert kubelets in hub.patch("Pod", "running", {"status": {"startTime": None}}, namespace)
    assert "that somebody else has deleted" in hub.end("Pod", "kept", namespace)
    assert "the hub starts no pod" in hub.patch("Pod", "kept", taken, namespace)


def test_the_hub_changes_only_csinodes_and_leases_that_it_made(users: Users, control_plane: ControlPlane) -> None:
    api, hub, refused = control_plane.api, users.hub, "CSINodes and node Leases that it made"
    body: dict[str, Any]
    where: dict[str, str]
    leases = {"namespace": "kube-node-lease"}
    csi_node = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {}, "spec": {"drivers": []}}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": leases}
    for body, where in ((csi_node, {}), (lease, leases)):
        kind, kubelets, own = body["kind"], {"name": "k1", **where}, {"name": "own", **where}
        api.create({**body, "metadata": kubelets})
        assert refused in hub.patch(kind, "k1", {"metadata": {"annotations": _MADE}}, **where)
        assert refused in hub.create({**body, "metadata": own})
        assert hub.create({**body, "metadata": {**own, "annotations": _MADE}}) == ""
        assert hub.patch(kind, "own", {"metadata": {"labels": {"a": "b"}}}, **where) == ""
        for name in ("k1", "own"):
            api.delete(kind, name, **where)


def test_the_hub_binds_and_loses_no_claim_and_makes_none_smaller(
    users: Users, control_plane: ControlPlane, namespace: str
) -> None:
    api, hub = control_plane.api, users.hub
    api.create(claim("data", namespace=namespace, storage_class="none"))
    api.patch_status("PersistentVolumeClaim", "data", _claim_status("2Gi", phase="Bound"), namespace=namespace)

    def told(status: dict[str, Any]) -> str:
        return hub.patch("PersistentVolumeClaim", "data", status, namespace)

    assert told(_claim_status("3Gi")) == ""
    assert "makes no claim smaller" in told(_claim_status("1Gi"))
    assert "binds and loses no claim" in told(_claim_status("4Gi", phase="Lost"))
    bound = {"pv.kubernetes.io/bind-completed": "yes"}  # of a claim without a volume the cluster then says Lost
    gone = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "0"}  # the garbage collector deletes its claims
    owned: dict[str, Any] = {"ownerReferences": [gone]}
    for part in ({"annotations": bound}, {"labels": {"a": "b"}}, {"finalizers": None}, owned):
        assert "no label, annotation, finalizer or owner" in told({"metadata": part, **_claim_status("3Gi")})
    assert told({"metadata": {"annotations": {_RESIZERS: "true"}}, **_claim_status("3Gi")}) == ""
    assert told({"metadata": {"annotations": {_RESIZERS: None}}, **_claim_status("3Gi")}) == ""


def test_a_node_sets_no_label_by_which_the_bridge_chooses_nodes(users: Users, control_plane: ControlPlane) -> None:
    def label(name: str, value: str | None) -> str:
        return users.kubelet.patch("Node", "k1", {"metadata": {"labels": {name: value}}})

    assert label("site.example/rack", "7") == ""
    assert label("csi-bridge.io/node", "k1") == ""
    assert "is the node's own name" in label("csi-bridge.io/node", "k2")
    refused = "a node may not change labels csi-bridge.io/"
    assert refused in label("csi-bridge.io/edge", "kubelet")
    assert refused in label("csi-bridge.io/hub", "")
    control_plane.api.patch("Node", "k1", {"metadata": {"labels": {"csi-bridge.io/edge": "kubelet"}}})
    assert refused in label("csi-bridge.io/edge", None)
    assert refused in label("csi-bridge.io/edge", "agent")
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert users.kubelet.patch("Node", "k1", ready) == ""


def test_only_images_named_by_their_digests_run_in_the_bridges_namespaces(
    control_plane: ControlPlane, namespace: str
) -> None:
    api, edges = control_plane.api, "csi-bridge-edge"
    control_plane.apply(of_kinds(trial(), "Namespace", of=edges))
    for where in (edges, namespace):
        api.wait_until("ServiceAccount", "default", bool, what="of pods", namespace=where)
    admin, tag, pinned = User(api), "registry.example/x:1", f"registry.example/x:1@sha256:{'5' * 64}"
    assert admin.create(pod("older", namespace=edges, nodeName="k1", image=tag)) == ""
    digests = dict.fromkeys(("cloud", "edge"), f"sha256:{'5' * 64}")
    values = {"admissionPolicies": {"digests": True}, "images": {"digests": digests}}
    made = [it for it in policies(values) if it["metadata"]["name"] == "csi-bridge-digests"]
    for each in made:
        api.create(each)
    try:
        tags = (pod(f"look-{number}", namespace=edges, nodeName="k1", image=tag) for number in itertools.count())
        wait_for(lambda: admin.create(next(tags)), what="effective policy", timeout_s=_EFFECTIVE_S)

        assert admin.create(pod("pinned", namespace=edges, nodeName="k1", image=pinned)) == ""
        assert admin.create(pod("elsewhere", namespace=namespace, nodeName="k1", image=tag)) == ""
        refusal = f"name these images by their digests: {tag}"
        assert refusal in admin.create(pod("tag", namespace=edges, nodeName="k1", image=tag))
        init = {"initContainers": [{"name": "i", "image": tag}]}
        assert refusal in admin.create(pod("init", namespace=edges, nodeName="k1", image=pinned, **init))
        assert admin.patch("Pod", "older", {"metadata": {"labels": {"a": "b"}}}, edges) == ""
        change = {"spec": {"containers": [{"name": "c", "image": tag}]}}
        assert refusal in admin.patch("Pod", "pinned", change, edges)
    finally:
        for each in made:
            api.delete(each["kind"], each["metadata"]["name"])
        for each in api.all("Pod", namespace=edges):
            api.delete_now("Pod", each["metadata"]["name"], namespace=edges)


def _made(name: str) -> dict[str, Any]:
    """Return a Node as the hub makes it."""
    taint = {"key": "csi-bridge.io/edge", "value": "agent", "effect": "NoSchedule"}
    return {**node(name, annotations=_MADE), "spec": {"taints": [taint]}}


def _claim_status(size: str, **status: str) -> dict[str, Any]:
    return {"status": {"capacity": {"storage": size}, **status}}
