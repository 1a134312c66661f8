"""Whatever stands in whichever field of an object: it is read or refused by name, and nothing breaks behind it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cloud.kinds import tokens
from cloud.kinds.table import KINDS
from cloud.sources.manifests.binding import Bound, NodeReports, bind
from cloud.sources.manifests.manifest_objects import BrokenFile, Entry, read_objects
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import read_fact
from common.objects.objects import Object, Ref, Stamp, encode_body
from tests.kit.cluster_objects import attachment, claim, driver, node, pod, secret, storage_class, volume
from tests.kit.trusting import TRUSTING

Path = tuple[str | int, ...]

ODD: tuple[Any, ...] = (
    None, {}, [], "", 0, -1, True, 1.5, 2**63, "x" * 300, "..", "a/b", "\x00", "\ud800", [None], {"a": None}, {"": {}},
    [[]], [{}], {"a": [1]}, {"storage": None}, "1Gi",
)  # fmt: skip

POD = pod(
    "web",
    claims=("c",),
    serviceAccountName="s",
    securityContext={
        "fsGroup": 7,
        "fsGroupChangePolicy": "Always",
        "seLinuxOptions": {"level": "s0"},
        "seLinuxChangePolicy": "Recursive",
    },
    initContainers=[{"name": "i", "restartPolicy": "Always"}],
    hostUsers=False,
)
POD["metadata"] |= {
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "finalizers": ["f"],
    "deletionTimestamp": "2030-01-31T12:00:00Z",
    "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}],
}
POD["spec"]["containers"][0] |= {
    "securityContext": {"privileged": True, "seLinuxOptions": {}},
    "volumeDevices": [{"name": "c"}],
}
POD["spec"]["volumes"] += [
    {
        "name": "i",
        "csi": {"driver": "d.example", "nodePublishSecretRef": {"name": "s"}, "volumeAttributes": {"a": "b"}},
    },
    {"name": "e", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {}}, "spec": claim("x")["spec"]}}},
]
POD["status"] = {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"terminated": {"finishedAt": "t"}}}]}

STATUS = {
    "phase": "Bound",
    "capacity": {"storage": "1Gi"},
    "allocatedResources": {"storage": "1Gi"},
    "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    "conditions": [{"type": "Resizing", "status": "True", "message": "m"}],
}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
OBJECTS: dict[str, Any] = {
    "Pod": POD,
    "PersistentVolumeClaim": claim("c", volume="v", status=STATUS),
    "PersistentVolume": volume(
        "v",
        claim="default/c",
        secrets={"nodeStageSecretRef": "default/s", "controllerExpandSecretRef": "default/s"},
        mountOptions=["ro"],
        nodeAffinity={"required": {"nodeSelectorTerms": [TERM]}},
    )
    | {"status": {"phase": "Bound"}},
    "VolumeAttachment": attachment("a", volume="v"),
    "CSIDriver": driver(),
    "StorageClass": storage_class("fast", offline="fence") | {"volumeBindingMode": "WaitForFirstConsumer"},
    tokens.KIND: {
        "apiVersion": tokens.API_VERSION,
        "kind": tokens.KIND,
        "metadata": {"name": "u", "namespace": "default"},
        "tokens": {"vault": {"token": "t", "expirationTimestamp": "2030-01-31T12:00:00Z"}},
        "problem": "no token",
    },
    "Secret": secret("s") | {"type": "Opaque", "data": {"a": "YQ=="}, "stringData": {"b": "c"}},
    "Node": node() | {"status": {"volumesAttached": [{"name": "a", "devicePath": ""}]}},
}

FACTS: dict[Ref, Any] = {
    Ref("CSINode", "", "n1"): {
        "spec": {"drivers": [{"name": "d.example", "nodeID": "7", "topologyKeys": ["z"], "allocatable": {"count": 3}}]}
    },
    Ref("Node", "", "n1"): {
        "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
        "status": {"volumesInUse": ["v"]},
    },
    Ref("PersistentVolumeClaim", "default", "c"): {"metadata": {"uid": "u"}, "status": STATUS},
    Ref("Event", "default", "e"): {
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web"},
        "source": {"component": "c"},
        "reason": "r",
        "count": 1,
    },
}


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The way to every part of a value."""
    yield path
    if isinstance(value, dict | list):
        for step, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(part, (*path, step))


def oddities(value: Any) -> Iterator[tuple[Any, str]]:
    """The value with each of its parts replaced by each odd one, and where."""
    for path in paths(value):
        for odd in ODD:
            if not path:
                yield odd, f"all of it is {odd!r:.40}"
                continue
            changed = copy.deepcopy(value)
            part = changed
            for step in path[:-1]:
                part = part[step]
            part[path[-1]] = odd
            yield changed, f"{path} is {odd!r:.40}"


def test_each_kind_that_a_node_gets_is_among_them() -> None:
    assert {*OBJECTS} == {*KINDS}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_with_anything_anywhere_is_served_or_refused_by_name(kind: str) -> None:
    others = [entry for name in OBJECTS if name != kind for entry in read_objects("o.json", as_json(OBJECTS[name]))]
    (whole,) = read_objects("m.json", as_json(OBJECTS[kind]))
    assert whole.ref.kind == kind
    for changed, where in oddities(OBJECTS[kind]):
        found, said = read(changed)
        if said:
            assert said.startswith("m.json:1: "), where
            assert len(said) < 500, where
            continue
        source = Source()
        bound = bind({entry.ref: entry for entry in [*others, *found]}, NodeReports(), Bound())
        source.update(bound.items, ready=True)
        closures = Closures(source, TRUSTING)
        for ref in closures.stamps("n1"):
            assert closures.read(ref) is not None, where
        for entry in found:  # what is kept of it is a whole object in itself
            (again,) = read_objects("again.json", encode_body(entry.item.body))
            assert again.item == entry.item, where


@pytest.mark.parametrize("ref", FACTS, ids=lambda ref: ref.kind)
def test_a_fact_with_anything_anywhere_is_kept_or_refused(ref: Ref) -> None:
    assert read_fact(Object(ref, Stamp("", "1"), encode_body(FACTS[ref])))
    for changed, where in oddities(FACTS[ref]):
        kept, said = read_told(ref, as_json(changed))
        assert len(said) < 500, where
        assert said or read_told(ref, encode_body(kept)) == (kept, ""), where


def read(written: Any) -> tuple[list[Entry], str]:
    """What a file holds, or why it is refused."""
    try:
        return read_objects("m.json", as_json(written)), ""
    except BrokenFile as broken:
        return [], str(broken)


def read_told(ref: Ref, body: bytes) -> tuple[Any, str]:
    """What is kept of a fact, or why it is refused."""
    try:
        return read_fact(Object(ref, Stamp("", "1"), body)), ""
    except ValueError as refused:
        return None, str(refused)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
