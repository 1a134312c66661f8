"""Each kind: what is checked, what is kept, what it pulls in; and how a file with a mistake in it is named."""

import base64
import uuid
from typing import Any

import pytest

from cloud.kinds.table import KINDS
from cloud.sources.manifests.manifest_objects import BrokenFile, read_objects
from common.objects.objects import Ref
from tests.kit.cluster_objects import as_yaml, attachment, claim, driver, entries, node, pod, secret, volume


def body(written: Any) -> Any:
    """What is kept of an object."""
    (entry,) = entries(written).values()
    return entry.item.body


def needs(written: Any) -> list[str]:
    kept = body(written)
    return [str(ref) for ref in KINDS[kept["kind"]].needs(kept)]


def problem(text: str) -> str:
    with pytest.raises(BrokenFile) as failure:
        read_objects("m.yaml", text.encode())
    return str(failure.value)


def test_objects_without_namespace_and_uid_get_those_that_they_always_get() -> None:
    written = pod("web")
    del written["metadata"]["namespace"]
    (first,), (second,) = entries(written).values(), entries(written).values()
    assert first.ref == Ref("Pod", "default", "web")
    assert uuid.UUID(first.item.stamp.uid).version == 5
    assert first.item.stamp == second.item.stamp
    assert first.item.body["metadata"]["uid"] == first.item.stamp.uid


def test_a_uid_that_is_given_stays_and_a_resource_version_says_nothing() -> None:
    written = pod("web")
    written["metadata"] |= {"uid": "u-1", "resourceVersion": "7"}
    (first,) = entries(written).values()
    written["metadata"]["resourceVersion"] = "8"
    (second,) = entries(written).values()
    assert first.item.stamp.uid == "u-1"
    assert first.item.stamp == second.item.stamp


def test_a_version_is_another_one_when_anything_that_is_kept_is() -> None:
    (old,) = entries(volume("v", size="1Gi")).values()
    (new,) = entries(volume("v", size="2Gi")).values()
    assert old.item.stamp.uid == new.item.stamp.uid
    assert old.item.stamp.version != new.item.stamp.version


def test_lists_are_their_items() -> None:
    untyped = {"apiVersion": "v1", "kind": "List", "items": [pod("a"), node()]}
    found = [str(entry.ref) for entry in read_objects("m.yaml", as_yaml(untyped).encode())]
    assert found == ["Pod default/a", "Node n1"]


def test_kinds_that_no_node_needs_may_stand_beside_the_others() -> None:
    others = [
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"}} for kind in ("Deployment", "ConfigMap")
    ]
    assert [ref.name for ref in entries(*others, node())] == ["n1"]


def test_what_no_node_needs_is_left_out() -> None:
    written = pod("web", claims=("data",), priority=7)
    written["metadata"] |= {
        "managedFields": [{}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "yes"},
    }
    written["spec"]["containers"][0] |= {"image": "i", "env": [{"name": "PASSWORD", "value": "hunter2"}]}
    written["spec"]["containers"][0]["volumeMounts"][0]["mountPropagation"] = "None"
    written["spec"]["volumes"].append({"name": "conf", "configMap": {"name": "conf"}})
    written["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [
            {"name": "c", "state": {"running": {}}},
            {"name": "d", "state": {"terminated": {"exitCode": 1, "message": "hunter2"}}},
        ],
    }
    kept = body(written)
    assert kept["metadata"].keys() == {"name", "namespace", "uid", "annotations"}
    assert kept["metadata"]["annotations"] == {"mine": "yes"}
    assert kept["spec"] == {
        "nodeName": "n1",
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    assert kept["status"] == {
        "phase": "Running",
        "containerStatuses": [{"name": "d", "state": {"terminated": {}}}],
    }


def test_a_node_is_its_labels_and_what_is_attached() -> None:
    written = node("n1", zone="z")
    written["spec"] = {"podCIDR": "10.0.0.0/24"}
    written["status"] = {"conditions": [{}], "volumesAttached": [{"name": "v", "devicePath": ""}]}
    kept = body(written)
    assert kept["metadata"]["labels"] == {"zone": "z"}
    assert kept["status"] == {"volumesAttached": [{"name": "v", "devicePath": ""}]}
    assert "spec" not in kept


def test_a_secret_has_all_as_data_and_plain_text_wins() -> None:
    written = secret("s", user="root", password="new")
    written["data"] = {"password": base64.b64encode(b"old").decode(), "key": "AAE=\n"}
    kept = body(written)
    assert {key: base64.b64decode(text) for key, text in kept["data"].items()} == {
        "user": b"root",
        "password": b"new",
        "key": b"\x00\x01",
    }
    assert "stringData" not in kept


def test_amounts_are_texts_however_they_are_written() -> None:
    written = volume("v")
    written["spec"]["capacity"]["storage"] = 1073741824
    assert body(written)["spec"]["capacity"] == {"storage": "1073741824"}


def test_a_claim_keeps_its_finalizers_and_the_state_of_its_growth() -> None:
    status = {"phase": "Bound", "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "x"}}
    written = claim("c", status=status)
    written["metadata"]["finalizers"] = ["kubernetes.io/pvc-protection"]
    kept = body(written)
    assert kept["status"] == status
    assert kept["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


def test_a_pod_needs_its_claims_and_what_its_own_volumes_name() -> None:
    inline = {"name": "i", "csi": {"driver": "i.example", "nodePublishSecretRef": {"name": "s"}}}
    generic = {"name": "g", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}
    written = pod("web", claims=("data",))
    written["spec"]["volumes"] += [inline, generic]
    assert needs(written) == [
        "CSIDriver i.example",
        "Secret default/s",
        "PersistentVolumeClaim default/data",
        "PersistentVolumeClaim default/web-g",
    ]


def test_a_volume_needs_the_secrets_of_node_calls_only() -> None:
    secrets = {
        field: f"kube-system/{field.lower()}"
        for field in (
            "nodeStageSecretRef",
            "nodePublishSecretRef",
            "nodeExpandSecretRef",
            "controllerPublishSecretRef",
            "controllerExpandSecretRef",
        )
    }
    written = volume("v", secrets=secrets)
    assert needs(written) == [
        "CSIDriver d.example",
        "Secret kube-system/nodestagesecretref",
        "Secret kube-system/nodepublishsecretref",
        "Secret kube-system/nodeexpandsecretref",
    ]
    assert "controllerPublishSecretRef" not in body(written)["spec"]["csi"]


def test_a_volume_of_no_csi_driver_needs_nothing() -> None:
    written = volume("v", hostPath={"path": "/x"})
    del written["spec"]["csi"]
    assert needs(written) == []
    assert needs(claim("c", volume="v")) == ["PersistentVolume v"]
    assert needs(claim("c")) == []
    assert needs(attachment("a", volume="v")) == needs(driver()) == needs(node()) == needs(secret("s")) == []


def changed(written: Any, path: str, value: Any) -> Any:
    """An object with one field set, or taken away (None)."""
    part = written
    *way, last = path.split(".")
    for step in way:
        part = part[int(step)] if step.isdecimal() else part.setdefault(step, {})
    if value is None:
        del part[last]
    else:
        part[last] = value
    return written


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (changed(pod("web"), "spec.nodeName", None), "Pod default/web: spec.nodeName is missing"),
        (changed(pod("web"), "spec.nodeName", "../x"), "Pod default/web: spec.nodeName must be a name"),
        (changed(pod("web"), "spec.containers", None), "Pod default/web: spec.containers is missing"),
        (changed(pod("web"), "spec.volumes", {}), "Pod default/web: spec.volumes must be a list"),
        (changed(pod("web"), "spec.volumes", ["a"]), "Pod default/web: spec.volumes[0] must be a mapping"),
        (
            changed(pod("web", claims=("a", "b")), "spec.volumes.1.name", "a"),
            "spec.volumes[1].name is that of an earlier",
        ),
        (changed(pod("web", claims=("a",)), "spec.volumes.0.persistentVolumeClaim", {}), "claimName is missing"),
        (changed(pod("web", claims=("a",)), "spec.volumes.0.ephemeral", {}), "volumeClaimTemplate is missing"),
        (changed(pod("web", claims=("a",)), "spec.volumes.0.csi", {}), "spec.volumes[0].csi.driver is missing"),
        (changed(pod("web"), "spec.securityContext", {"fsGroup": "7"}), "fsGroup must be a whole number"),
        (changed(pod("web"), "spec.securityContext", {"fsGroup": 2**63}), "fsGroup must be a whole number"),
        (changed(pod("web"), "metadata.labels", {"k" * 70: 1}), f"metadata.labels.{'k' * 60}… must be a text"),
        (changed(pod("web"), "metadata.name", None), "Pod without a name: metadata.name is missing"),
        (changed(pod("web"), "metadata.name", "Web"), "Pod default/Web: metadata.name must be a name"),
        (changed(pod("web"), "metadata.namespace", "a.b"), "metadata.namespace must be a name"),
        (changed(pod("web"), "metadata.uid", "../../etc"), "metadata.uid must be a UID"),
        (changed(pod("web"), "metadata.deletionTimestamp", "soon"), "metadata.deletionTimestamp must be a time"),
        (changed(pod("web"), "metadata.deletionGracePeriodSeconds", "30"), "Seconds must be a whole number"),
        (changed(pod("web"), "apiVersion", "v2"), "Pod default/web: apiVersion must be one of v1"),
        (changed(pod("web"), "apiVersion", None), "apiVersion is missing"),
        (
            changed(pod("web"), "kind", "Pods"),
            "kind is not one of the kinds that are read here (Pod, PersistentVolumeClaim,",
        ),
        (changed(pod("web"), "kind", None), "kind is missing"),
        (changed(node(), "metadata.namespace", "x"), "metadata.namespace must not be given"),
        (changed(claim("c"), "spec", None), "PersistentVolumeClaim default/c: spec is missing"),
        (changed(claim("c"), "spec.volumeMode", "block"), "volumeMode must be one of Filesystem, Block"),
        (changed(claim("c"), "spec.volumeName", ".."), "volumeName must be a name"),
        (changed(claim("c"), "status", {"capacity": {"storage": "many"}}), "storage must be a quantity such as 1Gi"),
        (changed(volume("v"), "spec.capacity", None), "PersistentVolume v: spec.capacity is missing"),
        (changed(volume("v"), "spec.capacity.storage", "hunter2"), "storage must be a quantity such as 1Gi"),
        (changed(volume("v"), "spec.accessModes", []), "spec.accessModes is empty"),
        (changed(volume("v"), "spec.accessModes", ["RWO"]), "spec.accessModes[0] must be one of ReadWriteOnce,"),
        (changed(volume("v"), "spec.csi.volumeHandle", ""), "spec.csi.volumeHandle is empty"),
        (changed(volume("v"), "spec.csi.driver", "a/b"), "spec.csi.driver must be a CSI driver's name"),
        (
            changed(volume("v"), "spec.csi.volumeAttributes", {"a": True}),
            "volumeAttributes.a must be a text (in quotes",
        ),
        (changed(volume("v"), "spec.csi.nodeStageSecretRef", {"name": "s"}), "nodeStageSecretRef.namespace is missing"),
        (changed(volume("v"), "spec.nodeAffinity", {"required": {}}), "nodeSelectorTerms is missing"),
        (changed(volume("v"), "spec.claimRef", {"name": "c"}), "spec.claimRef.namespace is missing"),
        (changed(attachment("a", volume="v"), "spec.source", None), "VolumeAttachment a: spec.source is missing"),
        (changed(attachment("a", volume="v"), "status.attached", "yes"), "status.attached must be true or false"),
        (changed(driver(), "spec.fsGroupPolicy", "file"), "fsGroupPolicy must be one of"),
        (changed(driver(), "spec.attachRequired", "no"), "attachRequired must be true or false"),
        (changed(secret("s"), "data", {"k": "%hunter2%"}), "Secret default/s: data.k must be base64"),
        ([pod("web")], "a document: it is not a Kubernetes object"),
    ],
)
def test_a_mistake_is_named_with_its_object_and_field_and_never_its_value(written: Any, said: str) -> None:
    text = problem(as_yaml(written))
    assert said in text
    assert text.startswith("m.yaml:")
    assert "hunter2" not in text


def test_a_mistake_is_named_with_the_line_of_the_field_or_of_what_lacks_it() -> None:
    text = as_yaml(node()) + "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n"
    assert problem(text + "  containers: [{name: c}]\n") == "m.yaml:11: Pod default/web: spec.nodeName is missing"
    broken = problem(text + "  nodeName: n\n  containers:\n  - name: 7\n")
    assert broken.startswith("m.yaml:14: Pod default/web: spec.containers[0].name must be a text")


def test_a_mistake_in_a_list_is_named_with_its_line() -> None:
    text = "kind: List\nitems:\n- kind: Node\n  apiVersion: v1\n  metadata: {name: n}\n- kind: Node\n  apiVersion: v2\n"
    assert problem(text).startswith("m.yaml:7: Node without a name: apiVersion must be one of v1")


def test_what_is_no_text_or_no_yaml_is_named_with_its_line() -> None:
    with pytest.raises(BrokenFile, match=r"^m.yaml:2: it is not UTF-8$"):
        read_objects("m.yaml", b"a: b\nc: \xff\n")
    assert problem("a: [").startswith("m.yaml:2: it is not valid YAML")
