"""Fields of a CSIDriver do on both kinds of node what their documentation says; other tests show the others."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.csi import csi_pb2 as csi
from tests.e2e.cluster import Cluster, Driver
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import NODE_ONLY, OWN, SAN, WATCHED
from tests.kit.needs import needs_kubernetes
from tests.kit.peers.kube_api import KubeApi
from tests.kit.testdriver.call_log import Call
from tests.kit.waiting import let_pass, wait_for

SHOWN_ELSEWHERE = {
    "attachRequired": "in the records of the real kubelet, which the agent's are like (no-attach)",
    "fsGroupPolicy": "there (fs-group-file, fs-group-none, fs-group-with-fs-type)",
    "podInfoOnMount": "there (pod-info)",
    "requiresRepublish": "there (republish)",
    "seLinuxMount": "there: without SELinux it changes nothing (selinux-mount)",
    "storageCapacity": "the scheduler's and the provisioner's: it concerns topology",
    "preventPodSchedulingIfMissing": "the scheduler's, alpha and off: it looks at CSINode, which is written",
}
"""Fields that this module leaves to others, and why."""

SHOWN_HERE = {
    "nodeAllocatableUpdatePeriodSeconds",
    "serviceAccountTokenInSecrets",
    "tokenRequests",
    "volumeLifecycleModes",
}

_FOLLOWED_S = 2.0
_REASON_LIMIT_S = 60.0
_TWICE_S = 45.0
"""For two periods of 10 s: less than the minute after which a driver is asked whatever its CSIDriver says."""
_AUDIENCE = "https://storage.example"

nodes = pytest.mark.parametrize("node", ["k1", OWN])


class Fields:
    """The spec of the watched driver's CSIDriver, which a test changes and finds as it was."""

    def __init__(self, driver: Driver, api: KubeApi) -> None:
        self.driver = driver
        self._api = api
        self._changed: dict[str, object] = {}

    def set(self, **fields: object) -> None:
        """Change fields; None takes one away."""
        self._changed.update(dict.fromkeys(fields))
        self._api.patch("CSIDriver", self.driver.name, {"spec": fields})
        # Kubelets and hub follow it; nothing tells when they have.
        let_pass(_FOLLOWED_S)

    def put_back(self) -> None:
        if self._changed:
            self.set(**self._changed | dict(self.driver.vendor.csi_driver))


@pytest.fixture
def fields(cluster: Cluster) -> Iterator[Fields]:
    fields = Fields(cluster.driver(WATCHED), cluster.api)
    yield fields
    fields.put_back()


def publications(cluster: Cluster, tenant: Tenant, node: str, pod: str) -> list[csi.NodePublishVolumeRequest]:
    found = tenant.pod(pod)
    assert found is not None
    calls = cluster.node(node).recorders[WATCHED.name].recording.calls("NodePublishVolume", "OK")
    requests: list[csi.NodePublishVolumeRequest] = [call.request for call in calls]  # type: ignore[misc]  # by method
    return [request for request in requests if found["metadata"]["uid"] in request.target_path]


def _published(driver: Driver, node: str) -> list[Call]:
    return driver.on[node].calls("NodePublishVolume")


@needs_kubernetes("1.36")
def test_every_field_of_this_kubernetes_is_shown_somewhere(cluster: Cluster) -> None:
    document = cluster.api.openapi("apis/storage.k8s.io/v1")
    known = document["components"]["schemas"]["io.k8s.api.storage.v1.CSIDriverSpec"]["properties"]

    assert set(known) == SHOWN_HERE | set(SHOWN_ELSEWHERE)


@nodes
def test_without_the_lifecycle_mode_ephemeral_an_inline_volume_is_refused_with_the_reason(
    cluster: Cluster, tenant: Tenant, node: str
) -> None:
    driver = cluster.driver(SAN)
    inline = {"scratch": {"driver": driver.name, "volumeAttributes": {"size": "16Mi"}}}
    pod = tenant.start_pod("web", node, inline=inline, wait=False)

    wait_for(
        lambda: "Ephemeral" in cluster.node(node).why(pod),
        what="the reason",
        timeout_s=_REASON_LIMIT_S,
        instead=lambda: tenant.tell("web"),
    )
    assert not any(pod["metadata"]["uid"] in call.fields["target_path"] for call in _published(driver, node))


@nodes
def test_a_driver_without_a_controller_gives_inline_volumes_and_needs_nothing_in_the_cloud(
    cluster: Cluster, tenant: Tenant, node: str
) -> None:
    vendor = replace(NODE_ONLY, name=f"only-{node}.csi")
    tenant.api.create(vendor.manifest())
    driver = cluster.node(node).add_vendor(vendor, state=None)
    cluster.plane.wait_registered(vendor.name, node)
    inline = {"scratch": {"driver": vendor.name, "volumeAttributes": {"size": "16Mi"}}}
    tenant.start_pod("web", node, inline=inline)
    tenant.write("web", "scratch/file", "hello")
    assert tenant.read("web", "scratch/file") == "hello"
    tenant.delete_pod("web")
    wait_for(lambda: not driver.directories(), what="the end of the volume", instead=driver.directories)


@nodes
@pytest.mark.parametrize(
    "in_secrets",
    [pytest.param(False, id="in the context"), pytest.param(True, id="in the secrets", marks=needs_kubernetes("1.35"))],
)
def test_token_requests_give_the_driver_the_pods_tokens(
    cluster: Cluster, tenant: Tenant, fields: Fields, node: str, in_secrets: bool
) -> None:
    tenant.grant(serviceAccountTokens="default")
    fields.set(tokenRequests=[{"audience": _AUDIENCE}], serviceAccountTokenInSecrets=in_secrets)
    tenant.claim("data", fields.driver)
    tenant.start_pod("web", node, "data", serviceAccountName="default")

    (request,) = publications(cluster, tenant, node, "web")
    there, elsewhere = request.volume_context, request.secrets
    if in_secrets:
        there, elsewhere = elsewhere, there
    key = "csi.storage.k8s.io/serviceAccount.tokens"
    assert key not in elsewhere
    token = json.loads(there[key])[_AUDIENCE]
    assert token["expirationTimestamp"]
    review = tenant.api.review_token(token["token"], audience=_AUDIENCE)
    assert review["user"]["username"] == f"system:serviceaccount:{tenant.namespace}:default"
    assert review["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["web"]


@needs_kubernetes("1.35")
@nodes
def test_node_allocatable_is_asked_for_again_in_its_period(
    cluster: Cluster, tenant: Tenant, fields: Fields, node: str
) -> None:
    fields.set(nodeAllocatableUpdatePeriodSeconds=10)
    tenant.claim("data", fields.driver)
    tenant.start_pod("web", node, "data")
    asked = cluster.node(node).recorders[WATCHED.name].recording
    before = len(asked.calls("NodeGetInfo"))

    wait_for(lambda: len(asked.calls("NodeGetInfo")) > before + 1, what="NodeGetInfo, twice", timeout_s=_TWICE_S)
    csi_node = tenant.api.get("CSINode", node)
    assert csi_node is not None
    (entry,) = (it for it in csi_node["spec"]["drivers"] if it["name"] == fields.driver.name)
    assert entry["allocatable"] == {"count": 5}
