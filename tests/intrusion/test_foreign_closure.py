"""A node asks for the objects of another node, by every field that could name it: it gets its own alone."""

import contextlib
from pathlib import Path

import pytest

from common.messages import Chunk, Kind, Open, Priority
from common.objects.digest import digest_of
from common.objects.sync_messages import Differ, Digest, Held, HeldAll, Put, decode, encode
from common.objects.topology import NODE_SEGMENT
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.cluster_objects import as_yaml, claim, pod, secret, volume
from tests.kit.operator import hub_state
from tests.kit.stranger import HungUp, Stranger, hello

OBJECTS = """
apiVersion: v1
kind: Pod
metadata: {{name: web-{node}, namespace: default, uid: uid-{node}}}
spec:
  nodeName: {node}
  containers: [{{name: c, volumeMounts: [{{name: v}}]}}]
  volumes:
  - name: v
    csi: {{driver: vendor.test, nodePublishSecretRef: {{name: secret-{node}}}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: secret-{node}, namespace: default, uid: secret-uid-{node}}}
stringData: {{password: secret-of-{node}}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("claims", ["the node in the Open", "the subject of the Open", "objects that it holds"])
def test_a_node_is_sent_the_objects_of_no_other_node(
    bridge: Bridge, authority: Authority, tmp_path: Path, claims: str
) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    for node in ("n1", "n2"):
        (manifests / f"{node}.yaml").write_text(OBJECTS.format(node=node))
    hub = bridge.start_hub(*authority.hub().flags, f"--manifests={manifests}")
    subject, node = ("n2" if claims == "the subject of the Open" else ""), ("n2" if "node in" in claims else "")
    with Stranger(hub.address, tls=authority.edge("n1").client()) as stranger:
        stranger.greet(hello("edge", "n1"))
        stranger.frames(Open(1, Kind.SYNC, Priority.SYNC, subject, "", node, "", 0))
        stranger.frames(Chunk(1, 0, encode(Digest(1 << 20, digest_of({})))))
        found = objects(stranger, holds_foreign=claims == "objects that it holds")
    if claims != "objects that it holds":  # of these buckets the hub has not asked: it ends the link
        assert {put.name for put in found} >= {"web-n1", "secret-n1"}
    assert not [put.name for put in found if "n2" in put.name or b"secret-of-n2" in put.body]


def objects(stranger: Stranger, *, holds_foreign: bool) -> list[Put]:
    """Return what the hub sends, until the node has its Pod and its Secret, or the hub ends the link."""
    found: list[Put] = []
    with contextlib.suppress(HungUp):
        collect(stranger, found, holds_foreign=holds_foreign)
    return found


def collect(stranger: Stranger, found: list[Put], *, holds_foreign: bool) -> None:
    while not any(put.kind == "Secret" for put in found) or not any(put.kind == "Pod" for put in found):
        for frame in stranger.next_frames():
            if not isinstance(frame, Chunk) or frame.left:
                continue
            for message in decode(frame.payload):
                if isinstance(message, Differ) and message.buckets:
                    names = {"Secret": "secret-n2", "Pod": "web-n2"}
                    held = [Held(kind, "default", name, "u", "0") for kind, name in names.items()]
                    answer = [*(held if holds_foreign else []), HeldAll()]
                    stranger.frames(Chunk(1, 0, b"".join(map(encode, answer))))
                elif isinstance(message, Put):
                    found.append(message)


@pytest.mark.parametrize("why", ["the driver is not its own", "the segment is another node's"])
def test_a_node_that_draws_a_pod_gets_no_volume_and_no_secret_that_it_may_not_have(
    bridge: Bridge, authority: Authority, tmp_path: Path, why: str
) -> None:
    """The pod is bound to it, as the scheduler does after a false label, or somebody by mistake."""
    is_foreign_driver = why == "the driver is not its own"
    segment = {"key": NODE_SEGMENT, "operator": "In", "values": ["n2"]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [segment]}]}}}
    stolen = volume(
        "stolen",
        claim="default/stolen",
        driver="other.test" if is_foreign_driver else "vendor.test",
        secrets={"nodeStageSecretRef": "default/of-the-volume"},
        **({} if is_foreign_driver else affinity),
    )
    drawn = pod("drawn", claims=("stolen",)), claim("stolen", volume="stolen"), stolen
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "drawn.yaml").write_text(as_yaml(*drawn, secret("of-the-volume")))
    (manifests / "n1.yaml").write_text(OBJECTS.format(node="n1"))
    hub = bridge.start_hub(*authority.hub().flags, f"--manifests={manifests}")
    with Stranger(hub.address, tls=authority.edge("n1", drivers=["vendor.test"]).client()) as stranger:
        stranger.greet(hello("edge", "n1"))
        stranger.frames(Open(1, Kind.SYNC, Priority.SYNC, "", "", "", "", 0))
        stranger.frames(Chunk(1, 0, encode(Digest(1 << 20, digest_of({})))))
        found = objects(stranger, holds_foreign=False)  # the pod web-n1 and its Secret come last
        state = hub_state(hub.uds)
    assert {(put.kind, put.name) for put in found} >= {("Pod", "drawn"), ("Secret", "secret-n1")}
    assert not [put for put in found if put.name == "of-the-volume" or put.kind == "PersistentVolume"]
    shown = "node n1 gets nothing that PersistentVolume stolen needs: "
    assert [line.startswith(shown) for line in state["problems"]] == [True]
