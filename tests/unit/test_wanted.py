"""What is wanted: how pods and their objects become volumes, why some do not, and what is read again when."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.objects.objects import Object, Ref, Stamp
from edge.disk.layout import Layout
from edge.volumes import PodVolume, SecretRef, inline_handle
from edge.wanted.opt_in import OptIn
from edge.wanted.wanted import Wanted
from tests.kit.edge_volumes import (
    DRIVER,
    GI,
    NODE,
    FakeStore,
    attachment,
    persistent_claim,
    persistent_volume,
    pod,
    secret,
)

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z

POD = Ref("Pod", "default", "web")
CLAIM = Ref("PersistentVolumeClaim", "default", "data")


def driver(**spec: Any) -> dict[str, Any]:
    return {"kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": spec}


def a_node(**labels: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": NODE, "labels": labels}}


def store(*bodies: Mapping[str, Any]) -> FakeStore:
    made = FakeStore()
    for body in bodies:
        made.put(body)
    return made


NO_OPT_IN = OptIn({}, Layout(Path("/")))


def wanted(given: FakeStore, *, own_labels: dict[str, str] | None = None, selinux: bool = False) -> Wanted:
    labels = {} if own_labels is None else own_labels
    made = Wanted(given, node=NODE, own_labels=lambda: labels, selinux=selinux, opt_in=NO_OPT_IN, complain=print)
    made.load(NOW)
    return made


def volume(*bodies: Mapping[str, Any], selinux: bool = False) -> PodVolume:
    """The one volume of the one pod."""
    (found,) = wanted(store(*bodies), selinux=selinux).pods
    (one,) = found.volumes
    assert found.unresolved == {}
    return one


def why(*bodies: Mapping[str, Any]) -> str:
    """Why the one volume of the one pod cannot be resolved."""
    (found,) = wanted(store(*bodies)).pods
    (reason,) = found.unresolved.values()
    assert found.volumes == ()
    return reason


WEB = pod(claims=("data",))


# ---- resolved --------------------------------------------------------------------------------------------------------


def test_a_hub_that_does_not_tell_the_places_in_containers_leaves_them_out() -> None:
    container = {"name": "c", "volumeDevices": [{"name": "data"}]}
    block = pod(claims=("data",), devices=("data",), spec={"containers": [container]})
    assert volume(block, persistent_volume(volumeMode="Block"), persistent_claim()).uses == ()


@pytest.mark.parametrize(
    "body",
    [
        pod(claims=("data",), spec={"containers": [{"name": "c"}]}),
        pod(volumes=[{"name": "c", "configMap": {"name": "c"}}]),
    ],
    ids=["used by no container", "neither a claim nor CSI"],
)
def test_what_is_no_volume_of_a_container_and_a_driver_is_not_wanted(body: Mapping[str, Any]) -> None:
    (found,) = wanted(store(body)).pods
    assert (found.volumes, dict(found.unresolved)) == ((), {})


def test_each_call_gets_the_secret_that_its_volume_names_for_it() -> None:
    names = ("nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef")
    given = volume(
        WEB, persistent_volume(csi={it: {"namespace": "vault", "name": it} for it in names}), persistent_claim()
    )
    found = given.volume.stage_secret, given.volume.publish_secret, given.volume.expand_secret
    assert found == tuple(SecretRef("vault", it) for it in names)


def test_a_volume_has_the_sizes_of_its_claim() -> None:
    parts: dict[str, Any] = {
        "resources": {"requests": {"storage": "3Gi"}},
        "accessModes": ["ReadWriteMany"],
        "status": {
            "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        },
    }
    found = volume(WEB, PV, persistent_claim(**parts)).volume.claim
    assert found is not None
    assert (found.status_bytes, found.requested_bytes, found.allocated_bytes) == (GI, 3 * GI, 2 * GI)
    assert (found.resize_status, found.shared) == ("NodeResizePending", True)
    others = {"annotations": {"volume.kubernetes.io/node-expansion-not-required": "true"}}
    found = volume(WEB, PV, persistent_claim(metadata=others, **parts)).volume.claim
    assert found is not None
    assert not found.shared


def test_an_inline_volume_has_a_handle_of_its_own_and_its_secret_in_the_pods_namespace() -> None:
    csi = {"driver": DRIVER, "readOnly": True, "nodePublishSecretRef": {"name": "s", "namespace": "kube-system"}}
    given = volume(pod(volumes=[{"name": "tmp", "csi": csi}]), driver(volumeLifecycleModes=["Ephemeral"]))
    assert (given.read_only, given.volume.ephemeral) == (True, True)
    assert given.volume.handle == inline_handle("web-uid", "tmp")
    assert given.volume.publish_secret == SecretRef("default", "s")


def test_a_generic_ephemeral_volume_is_the_claim_that_its_pod_owns() -> None:
    given = pod(volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    owner = {"ownerReferences": [{"uid": "web-uid", "controller": True}]}
    claim = persistent_claim("web-scratch", metadata=owner)
    assert volume(given, persistent_volume("web-scratch"), claim).volume.name == "pv-web-scratch"
    assert "was not created for pod default/web" in why(
        given, persistent_volume("web-scratch"), persistent_claim("web-scratch")
    )


# ---- not resolved ----------------------------------------------------------------------------------------------------

PV = persistent_volume()
LEAVING = {"deletionTimestamp": "2023-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ((WEB,), "PVC default/data is not known to this node"),
        ((WEB, persistent_claim()), "PV pv-data is not known to this node"),
        ((WEB, PV, persistent_claim(status={"phase": "Pending"})), "PVC default/data is not bound"),
        ((WEB, PV, persistent_claim(volumeName="")), "PVC default/data is bound, but does not name its PV"),
        ((WEB, PV, persistent_claim(metadata=LEAVING)), "PVC default/data is being deleted"),
        (
            (WEB, persistent_volume(claimRef=None), persistent_claim()),
            "PV pv-data is not bound to PVC default/data yet: it has no claimRef",
        ),
        (
            (WEB, persistent_volume(claimRef={"uid": "other"}), persistent_claim()),
            "PV pv-data belongs to another PVC: its claimRef has the uid other, and PVC default/data has data-uid",
        ),
        (
            (WEB, {**PV, "spec": {**PV["spec"], "csi": None}}, persistent_claim()),
            "PV pv-data is not a CSI volume, and the agent mounts no others",
        ),
        (
            (WEB, persistent_volume(volumeMode="Block"), persistent_claim()),
            "volume data has volumeMode Block, but is listed in volumeMounts",
        ),
        (
            (pod(claims=("data",), devices=("data",)), PV, persistent_claim()),
            "volume data has volumeMode Filesystem, but is listed in volumeDevices",
        ),
        (
            (WEB, PV, persistent_claim(), driver(volumeLifecycleModes=["Ephemeral"])),
            "the CSIDriver object of d.csi does not allow the volume mode Persistent",
        ),
        (
            (pod(volumes=[{"name": "tmp", "csi": {"driver": DRIVER}}]),),
            "volume tmp is an inline volume of driver d.csi, whose CSIDriver object is missing",
        ),
        (
            (pod(volumes=[{"name": "tmp", "csi": {"driver": DRIVER}}]), driver()),
            (
                "volume tmp is an inline volume of driver d.csi, whose CSIDriver object does not list the volume mode "
                "Ephemeral"
            ),
        ),
    ],
)
def test_a_volume_that_is_not_ready_has_a_reason(bodies: tuple[Mapping[str, Any], ...], reason: str) -> None:
    assert why(*bodies) == reason


@pytest.mark.parametrize(
    "broken",
    [
        {**PV, "spec": {**PV["spec"], "capacity": {"storage": "much"}}},
        {**PV, "spec": {**PV["spec"], "csi": {"driver": DRIVER}}},
        {**PV, "spec": {**PV["spec"], "csi": "x"}},
        {**PV, "spec": {**PV["spec"], "nodeAffinity": {"required": {"nodeSelectorTerms": ["x"]}}}},
        {"kind": "PersistentVolume", "metadata": {"name": "pv-data"}},
    ],
)
def test_an_object_that_makes_no_sense_makes_its_volume_unresolved(broken: Mapping[str, Any]) -> None:
    assert "is malformed" in why(WEB, broken, persistent_claim())


@pytest.mark.parametrize("fs_type", ["../x", "/bin/sh", "-o", ".x", "ext4 x", "ext4\n", "a\0", "x" * 65, "\u00e9"])
def test_another_file_systems_type_is_handed_to_no_driver(fs_type: str) -> None:
    given = why(WEB, persistent_volume(csi={"fsType": fs_type}), persistent_claim())
    assert given.startswith("PV pv-data has the fsType ")
    assert given.isprintable()


@pytest.mark.parametrize("option", ["ro\nx", "a\0b", "\x7f", "\t"])
def test_a_mount_option_with_a_control_character_is_handed_to_no_driver(option: str) -> None:
    given = why(WEB, persistent_volume(mountOptions=["ro", option]), persistent_claim())
    assert given.startswith("PV pv-data has the mount option ")


@pytest.mark.parametrize("group", [-1, 1 << 31, 1 << 40, (1 << 32) - 1])
def test_an_fs_group_that_is_no_group_mounts_nothing(group: int) -> None:
    body = pod(claims=("data",), spec={"securityContext": {"fsGroup": group}})
    (found,) = wanted(store(body, persistent_volume(), persistent_claim())).pods
    assert found.volumes == ()
    assert f"the fsGroup {group} is not a group id" in found.unresolved[""]


def test_a_pod_that_makes_no_sense_is_not_gone() -> None:
    given = store()
    given.objects[POD] = Object(POD, Stamp("web-uid", "1"), b'{"spec": {"nodeName": "n1"}, "metadata": 3}')
    made = wanted(given)
    assert not made.is_gone("web-uid")
    (found,) = made.pods
    assert "is malformed" in found.unresolved[""]


# ---- affinity --------------------------------------------------------------------------------------------------------


def affinity(*terms: Mapping[str, Any]) -> dict[str, Any]:
    return persistent_volume(nodeAffinity={"required": {"nodeSelectorTerms": list(terms)}})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        (expression("zone", "In", "a", "b"), True),
        (expression("zone", "In", "b"), False),
        (expression("disks", "Gt", "3"), True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        ({}, False),
    ],
)
def test_a_volume_is_for_nodes_that_its_affinity_selects(term: Mapping[str, Any], fits: bool) -> None:
    (found,) = wanted(store(WEB, persistent_claim(), affinity(term), a_node(zone="a", disks="4"))).pods
    assert bool(found.volumes) is fits
    if not fits:
        assert found.unresolved["data"].startswith("PV pv-data is not for this node")


def test_what_the_drivers_say_of_the_node_counts_before_the_node_object_has_it() -> None:
    labels = {"rack": "1"}
    made = wanted(store(WEB, persistent_claim(), affinity(expression("rack", "In", "1"))), own_labels=labels)
    assert next(iter(made.pods)).volumes
    labels["rack"] = "2"
    assert made.update_labels(NOW) == {"web-uid"}
    assert not next(iter(made.pods)).volumes


# ---- SELinux ---------------------------------------------------------------------------------------------------------

LABELLED = pod(claims=("data",), spec={"securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}})
ALONE = persistent_volume(accessModes=["ReadWriteOncePod"])


def test_a_pods_label_is_handed_on_only_where_driver_volume_and_machine_agree() -> None:
    asked = driver(seLinuxMount=True)
    given = volume(LABELLED, ALONE, persistent_claim(), asked, selinux=True)
    assert given.selinux_context == "system_u:object_r:container_file_t:s0:c1,c2"
    assert volume(LABELLED, ALONE, persistent_claim(), asked).selinux_context == ""
    assert volume(LABELLED, ALONE, persistent_claim(), driver(), selinux=True).selinux_context == ""
    assert volume(LABELLED, PV, persistent_claim(), asked, selinux=True).selinux_context == ""


@pytest.mark.parametrize("options", [{"level": 's0",suid,dev,x="'}, {"level": "s0", "user": "u\nnone /etc"}])
def test_a_pods_label_is_no_way_to_other_mount_options(options: dict[str, str]) -> None:
    web = pod(claims=("data",), spec={"securityContext": {"seLinuxOptions": options}})
    (found,) = wanted(store(web, ALONE, persistent_claim(), driver(seLinuxMount=True)), selinux=True).pods
    assert "is no SELinux label" in found.unresolved["data"]


@pytest.mark.parametrize(("policy", "is_label"), [("MountOption", True), ("Recursive", False)])
def test_a_pod_that_wants_its_files_labelled_one_by_one_gets_no_mount_option(policy: str, is_label: bool) -> None:
    security = {**LABELLED["spec"]["securityContext"], "seLinuxChangePolicy": policy}
    web = pod(claims=("data",), spec={"securityContext": security})
    given = volume(web, ALONE, persistent_claim(), driver(seLinuxMount=True), selinux=True)
    assert bool(given.selinux_context) is is_label


# ---- gone ------------------------------------------------------------------------------------------------------------


def ended(name: str = "c") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {}}}


@pytest.mark.parametrize(
    ("status", "gone"),
    [
        ({"containerStatuses": [ended()]}, False),
        ({"containerStatuses": [ended(), {"name": "two", "state": {"running": {}}}]}, False),
        ({"containerStatuses": [ended(), ended("two")]}, False),
        ({"containerStatuses": [ended(), ended("two")], "initContainerStatuses": [ended("first")]}, True),
        ({"containerStatuses": [ended("x"), ended("y"), ended("z")]}, False),
    ],
)
def test_a_deleted_pod_is_gone_as_soon_as_each_of_its_containers_has_ended(
    status: Mapping[str, Any], gone: bool
) -> None:
    containers = {"containers": [{"name": "c"}, {"name": "two"}], "initContainers": [{"name": "first"}]}
    leaving = pod(metadata={"deletionTimestamp": "2023-11-14T22:13:50Z"}, spec=containers, status=status)
    assert wanted(store(leaving)).is_gone("web-uid") is gone


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_only_the_pods_that_use_an_object_are_resolved_again() -> None:
    given = store(
        *(body for n in range(20) for body in (pod(f"p{n}", claims=(f"c{n}",)), persistent_claim(f"c{n}"))),
        *(persistent_volume(f"c{n}") for n in range(20)),
    )
    made = wanted(given)
    given.put(persistent_volume("c7", size="5Gi"))
    given.reads = 0
    assert made.update([Ref("PersistentVolume", "", "pv-c7")], NOW) == {"p7-uid"}
    assert given.reads < 10


@pytest.mark.parametrize(
    "body",
    [
        attachment(),
        secret("s", a="b"),
        {"kind": "ServiceAccountToken", "metadata": {"namespace": "default", "name": "web-uid"}},
    ],
    ids=lambda body: body["kind"],
)
def test_what_the_calls_read_is_noticed_as_well(body: Mapping[str, Any]) -> None:
    csi = {"nodeStageSecretRef": {"namespace": "default", "name": "s"}}
    given = store(WEB, persistent_volume(csi=csi), persistent_claim(), driver(tokenRequests=[{"audience": "a"}]))
    made = wanted(given)
    ref = given.put(body)
    assert made.update([ref], NOW) == {"web-uid"}


def test_what_changes_nothing_that_is_wanted_is_no_change() -> None:
    given = store(WEB, PV, persistent_claim())
    made = wanted(given)
    given.put(persistent_claim(status={"conditions": [{"type": "x"}]}))
    assert made.update([CLAIM], NOW) == frozenset()
    given.put({**a_node(zone="a"), "status": {"volumesInUse": []}})
    assert made.update([Ref("Node", "", NODE)], NOW) == frozenset()


# ---- two pods with one uid: a manifest that was copied with it -------------------------------------------------------


def test_of_pods_with_one_uid_the_last_counts_and_the_others_when_it_goes() -> None:
    given = FakeStore()
    made = wanted(given)
    refs = [given.put(pod(name, uid="u")) for name in ("a", "b", "c")]
    for ref in refs:
        made.update([ref], 0.0)
    assert _name(made) == "c"

    for ref, left in ((refs[2], "b"), (refs[0], "b"), (refs[1], "")):
        given.drop(ref)
        made.update([ref], 0.0)
        assert _name(made) == left

    assert made._by_uid == {}


def _name(made: Wanted) -> str:
    found = made.of("u")
    return found.pod.name if found is not None else ""


# ---- what the disk does not give -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_start", [True, False])
def test_a_pod_that_the_disk_does_not_give_is_known_by_its_uid_and_holds_up_no_other(at_start: bool) -> None:
    refs = [Ref("Pod", "default", name) for name in ("a", "web", "z")]
    bodies = [pod(ref.name) for ref in refs]
    given = store(*bodies) if at_start else store()
    given.withheld = {POD}
    made = wanted(given)
    if not at_start:
        for body in bodies:
            given.put(body)
        assert made.update(refs, NOW) == {"a-uid", "web-uid", "z-uid"}
    assert not made.is_gone("web-uid")
    found = made.of("web-uid")
    assert found is not None
    assert found.unresolved == {"": "the disk does not give web"}
    assert [made.of(uid) is not None for uid in ("a-uid", "z-uid")] == [True, True]


def test_a_known_pod_that_the_disk_does_not_give_stays_as_it_was_and_is_told_of_once() -> None:
    given, said = store(WEB, persistent_claim(), PV), []
    made = Wanted(given, node=NODE, own_labels=dict, selinux=False, opt_in=NO_OPT_IN, complain=said.append)
    made.load(NOW)
    given.withheld = {POD}
    for _ in range(3):
        made.update([POD], NOW)
        made.read_again(NOW)
    assert next(iter(made.pods)).volumes
    assert said == ["Pod default/web cannot be read, and its earlier state counts: the disk does not give web"]
    given.drop(POD)
    given.withheld.clear()
    assert made.read_again(NOW) == {"web-uid"}
    assert (made.is_gone("web-uid"), made.has_unread) == (True, False)


def test_a_volume_whose_claim_the_disk_does_not_give_is_read_again() -> None:
    given = store(WEB, persistent_claim(), PV)
    given.withheld = {CLAIM}
    made = wanted(given)
    assert next(iter(made.pods)).unresolved == {"data": "the disk does not give data"}
    given.withheld.clear()
    assert made.read_again(NOW) == {"web-uid"}
    assert next(iter(made.pods)).volumes
