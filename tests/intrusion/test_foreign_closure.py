"""A node asks for the objects of another node, by every field that could name it: it gets its own alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from common.digest import Digest as Sums
from common.messages import Chunk, Kind, Open, Priority
from common.sync_messages import Differ, Digest, Held, HeldAll, Put, decode, encode
from tests.kit.stranger import HungUp, Stranger, hello

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.bridge import Bridge
    from tests.kit.certificates import Authority

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
        stranger.frames(Chunk(1, 0, encode(Digest(1 << 20, Sums().sums()))))
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
