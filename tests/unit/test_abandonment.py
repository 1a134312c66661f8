"""A node that is given up: what was its own storage, what of the cluster goes with it, and what its operator sees."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main
from cli.operators import abandon
from cli.operators.abandon import Progress
from cli.operators.operator_options import OperatorSettings
from cloud.claims.claim import Mark
from cloud.claims.rules import GROUP, SNAPSHOT, VOLUME, Thing
from cloud.kube.client import RESOURCES, KubeError
from cloud.nodes.unique_segments import UniqueSegments, unique_keys
from cloud.operators.cluster_release import GOES, ClusterRelease, Released
from cloud.operators.own_storage import own_contents, own_volumes
from cloud.parts.sync_part import NoSync, SyncPart
from cloud.sources.source import Item, Source
from common.errors import BridgeError, CallError, order_refused
from common.net.endpoint import hub_endpoint
from common.objects.objects import Ref, Stamp
from common.operator_orders import Abandon, Done, Forget, NodeStorage, OwnStorage
from tests.kit.fake_api import FakeApi
from tests.kit.hub_in_memory import Hub, report, running
from tests.kit.linked import cut
from tests.kit.memory_records import MemoryRecords
from tests.kit.placed_nodes import record
from tests.kit.waiting import settle


class Facts(NoSync):
    """The facts of nodes, which count how often they are forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def forget(self, node: str) -> None:
        self.forgotten.append(node)


class Site:
    """A hub with a cluster, and its node n1, which is away."""

    def __init__(self, world: Hub, source: Source, facts: Facts) -> None:
        self.world, self.source, self.facts = world, source, facts

    def add_volume(self, name: str, node: str) -> None:
        term = {"matchExpressions": [{"key": "csi-bridge.io/node", "operator": "In", "values": [node]}]}
        spec = {
            "csi": {"driver": "disk.example", "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        body = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}
        self.source.update({Ref("PersistentVolume", "", name): Item(Stamp(f"uid-{name}", "1"), body)})

    async def order(self, name: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        """The answer to an order, and its refusal."""
        said, status = await self.world.order(name, **arguments)
        return json.loads(b"".join(said) or b"{}"), status.message

    async def own_storage(self) -> tuple[dict[str, Any], str]:
        return await self.order("own-storage", node="n1")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    source, facts = Source(), Facts()
    source.update({}, ready=True)
    async with running(Hub(tmp_path, SyncPart(source=source, sync=facts))) as world:
        await world.edge()
        await world.nodes.report("n1", [report()])
        cut(world.links[-1])
        await settle()
        yield Site(world, source, facts)


async def test_the_hub_names_the_volumes_in_the_nodes_segment_that_no_other_node_made(site: Site) -> None:
    await site.order("deny", subject="n1")
    for name, node in (("own", "n1"), ("of-n2", "n2"), ("made-by-n2", "n1")):
        site.add_volume(name, node)
    record(site.world.placement.claims, "disk.example", "n2", Thing(VOLUME, "made-by-n2"), "CreateVolume v")
    answer, _ = await site.own_storage()
    assert answer == {"volumes": ["uid-own"], "snapshots": [], "groups": [], "is_known": True}


async def test_a_snapshot_of_storage_that_every_node_reaches_is_not_the_nodes_own(site: Site) -> None:
    await site.order("deny", subject="n1")
    for driver in ("disk.example", "nfs.example"):
        for made in (Thing(SNAPSHOT, "snap-1"), Thing(GROUP, "group-1")):
            record(site.world.placement.claims, driver, "n1", made, "CreateVolumeGroupSnapshot s")
    site.world.placement.elections.want("nfs.example")
    answer, _ = await site.own_storage()
    assert answer["snapshots"] == [{"driver": "disk.example", "id": "snap-1"}]
    assert answer["groups"] == [{"driver": "disk.example", "id": "group-1"}]


@pytest.mark.parametrize("order", ["own-storage", "abandon"])
async def test_a_node_that_may_come_back_is_not_abandoned(site: Site, order: str) -> None:
    refused = "edge node n1 is not abandoned: n1 may come back; first run csi-bridge deny n1"
    assert (await site.order(order, node="n1"))[1] == refused
    await site.order("deny", subject="serial=1A")  # its certificate alone
    assert (await site.order(order, node="n1"))[1] == refused
    await site.order("deny", subject="n1")
    assert (await site.order(order, node="n1"))[1] == ""
    await site.order("allow", subject="n1")
    assert (await site.order(order, node="n1"))[1] == refused
    assert len(site.facts.forgotten) == (order == "abandon")


@pytest.mark.parametrize("order", ["own-storage", "abandon"])
async def test_a_denied_node_whose_link_has_not_ended_yet_is_not_abandoned(
    site: Site, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.order("deny", subject="n1")
    monkeypatch.setattr(site.world.nodes, "is_connected", lambda name: name == "n1")
    refused = "edge node n1 is not abandoned: n1 is still connected; its links end at once, so try again"
    assert (await site.order(order, node="n1"))[1] == refused
    assert site.facts.forgotten == []


async def test_an_abandoned_node_is_forgotten_last_and_then_nothing_waits_for_its_things(site: Site) -> None:
    claims = site.world.placement.claims
    record(claims, "disk.example", "n1", Thing(VOLUME, "vol-1"), "CreateVolume v")
    await site.order("deny", subject="n1")
    await site.order("abandon", node="n1")
    assert site.facts.forgotten == ["n1"]
    assert (await site.own_storage())[0]["is_known"]
    assert (await site.world.forget("n1")).ok
    assert not (await site.own_storage())[0]["is_known"]
    for left in ({"n1": Mark.FORGOTTEN}, {}):
        assert claims.book("disk.example").marks == left
        await site.order("abandon", node="n1")


async def test_a_hub_that_has_not_read_the_volumes_names_none(site: Site) -> None:
    await site.order("deny", subject="n1")
    site.source.update({}, ready=False)
    assert "has not read all PersistentVolumes yet" in (await site.own_storage())[1]


async def test_a_hub_without_a_cluster_names_none(tmp_path: Path) -> None:
    async with running(Hub(tmp_path)) as world:
        site = Site(world, Source(), Facts())
        await site.order("deny", subject="n1")
        assert "follows no Kubernetes cluster" in (await site.own_storage())[1]


def test_without_a_kubeconfig_the_command_says_what_it_needs() -> None:
    answer = CliRunner().invoke(main.cli, ["forget", "n1", "--abandon-volumes"])
    assert answer.exit_code == 2
    assert "needs --kubeconfig: the hub may not delete volumes" in answer.stderr


def test_the_command_shows_changes_and_gives_up_three_minutes_after_the_last_one() -> None:
    volume, claim = (Released(kind, "x", GOES, "") for kind in ("PersistentVolume", "PersistentVolumeClaim"))
    progress = Progress(0.0)
    assert progress.note([volume, claim], 100.0) == ["goes: PersistentVolume x", "goes: PersistentVolumeClaim x"]
    assert progress.note([volume, claim], 200.0) == []
    assert progress.note([volume], 270.0) == []
    with pytest.raises(BridgeError, match=r"nothing has changed for 180 s; see what holds the objects above"):
        progress.note([volume], 451.0)


_HOST = "topology.disk.example/host"


def owner(driver: str, key: str, value: str) -> str:
    """Of a hub where n1 has reported the unique segment h1, and n2 the segment h2."""
    segments = UniqueSegments(MemoryRecords(), unique_keys(f"{_HOST},kubernetes.io/hostname"))
    segments.claim("n1", "d", {_HOST: "h1"})
    segments.claim("n2", "d", {_HOST: "h2"})
    segments.claim("n1", "d", {"kubernetes.io/hostname": "stranger"})  # which the hub does not know
    segments.claim("n1", "other", {_HOST: "h3"})
    return segments.owner(key, value, {"n1"}, driver)


def volume(name: str, *terms: dict[str, list[str]], handle: str = "", driver: str = "d") -> dict[str, Any]:
    """A PersistentVolume; each term has values by key."""
    wanted = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": values} for key, values in term.items()]}
        for term in terms
    ]
    spec: dict[str, Any] = {"csi": {"driver": driver, "volumeHandle": handle or name}}
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": wanted}}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("terms", "is_own"),
    [
        ([{"csi-bridge.io/node": ["n1"]}], True),
        ([{_HOST: ["h1"]}], True),
        ([{"kubernetes.io/hostname": ["n1"]}], True),
        ([{"zone": ["z"], _HOST: ["h1"]}], True),
        ([{"csi-bridge.io/node": ["n2"]}], False),
        ([{"kubernetes.io/hostname": ["stranger"]}], False),
        ([{_HOST: ["h3"]}], False),
        ([{_HOST: ["h1", "h2"]}], False),
        ([{_HOST: ["h1"]}, {_HOST: ["h2"]}], False),
        ([{_HOST: ["h1"]}, {"zone": ["z"]}], False),
        ([{"zone": ["z"]}], False),
        ([{_HOST: []}], False),
        ([], False),
    ],
)
def test_a_volume_is_of_a_node_if_each_term_needs_a_segment_of_this_node_alone(
    terms: list[dict[str, list[str]]], *, is_own: bool
) -> None:
    assert bool(own_volumes([volume("v", *terms)], "n1", owner)) is is_own


def test_a_volume_that_another_node_has_made_is_not_of_this_one() -> None:
    own = volume("v", {_HOST: ["h1"]})
    assert own_volumes([own], "n1", owner, {("d", "v")}) == []
    assert own_volumes([own], "n1", owner, {("d", "w"), ("e", "v")}) == [own]


def test_a_volume_of_no_csi_driver_is_left_alone() -> None:
    local = volume("v", {"kubernetes.io/hostname": ["n1"]})
    del local["spec"]["csi"]
    assert own_volumes([local], "n1", owner) == []


def content(name: str, *, handle: str = "", of: str = "", driver: str = "d") -> dict[str, Any]:
    source = {"volumeHandle": of} if of else {}
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "source": source},
        "status": {"snapshotHandle": handle},
    }


def test_a_snapshot_goes_with_its_volume_or_with_the_only_node_that_made_it() -> None:
    own, other = volume("v1", {_HOST: ["h1"]}), volume("v2", {_HOST: ["h2"]})
    contents = [
        content("of-own", of="v1"),
        content("of-other", of="v2"),
        content("of-another-driver", of="v1", driver="e"),
        content("made", handle="s1"),
        content("made-elsewhere", handle="s2"),
        (member := content("member-of-a-group")),
    ]
    # A status may have the id of the snapshot's group alone, and of a node that is lost nothing more comes.
    member["spec"]["source"] = {"snapshotHandle": "s1"}
    member["status"] = {"volumeGroupSnapshotHandle": "g1"}
    found = own_contents(contents, [own], [other], {("d", "s1")})
    assert [it["metadata"]["name"] for it in found] == ["of-own", "made", "member-of-a-group"]


def group(name: str, *of: str, handle: str = "", given: str = "", driver: str = "d") -> dict[str, Any]:
    source = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": given}} if given else {"volumeHandles": list(of)}
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "source": source},
        "status": {"volumeGroupSnapshotHandle": handle} if handle else None,
    }


def test_a_group_goes_with_any_of_its_volumes_or_with_the_only_node_that_made_it() -> None:
    own, other = volume("v1", {_HOST: ["h1"]}), volume("v2", {_HOST: ["h2"]})
    contents = [
        group("of-own", "gone", "v1"),
        group("of-other", "v2"),
        group("of-another-driver", "v1", driver="e"),
        group("made", handle="g1"),
        group("given", given="g1"),
        group("made-elsewhere", handle="g2"),
    ]
    found = own_contents(contents, [own], [other], {("d", "g1")})
    assert [it["metadata"]["name"] for it in found] == ["of-own", "made", "given"]


def test_a_handle_that_two_nodes_have_says_nothing_of_a_snapshot() -> None:
    own, other = volume("v1", {_HOST: ["h1"]}, handle="same"), volume("v2", {_HOST: ["h2"]}, handle="same")
    assert own_contents([content("c", of="same")], [own], [other], ()) == []


_PROTECTION = "kubernetes.io/pvc-protection"
_PROVISIONER = "external-provisioner.volume.kubernetes.io/finalizer"
_ATTACHER = "external-attacher/d-example"


class BoundVolume:
    """A cluster with the volume `pv` of node n1, its claim default/data with a pod on n1, and its attachment there."""

    def __init__(self, *, policy: str = "Delete") -> None:
        self.api = FakeApi()
        spec = {
            "csi": {"driver": "d.example", "volumeHandle": "vol-1"},
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "default", "name": "data", "uid": "uid-data"},
        }
        self.put("PersistentVolume", "pv", spec=spec, status={"phase": "Bound"}, finalizers=[_PROVISIONER, _ATTACHER])
        self.put("PersistentVolumeClaim", "data", "default", spec={"volumeName": "pv"}, finalizers=[_PROTECTION])
        attached = {"nodeName": "n1", "source": {"persistentVolumeName": "pv"}}
        self.put("VolumeAttachment", "va", spec=attached, finalizers=[_ATTACHER])
        self.put("Node", "n1", annotations={"csi-bridge.io/made-by": "hub"})
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        self.put("Pod", "web", "default", spec={"nodeName": "n1", "volumes": volumes})
        self.put("Pod", "elsewhere", "default", spec={"nodeName": "n2", "volumes": volumes})
        self.api.asked.clear()

    def put(
        self, kind: str, name: str, namespace: str = "", *, spec: Any = None, status: Any = None, **meta: Any
    ) -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **meta}
        self.api.put({"kind": kind, "metadata": metadata, "spec": spec or {}, "status": status or {}})

    async def run(self) -> dict[str, str]:
        """One pass. Returns the fates by kind."""
        return {it.kind: it.fate for it in await self.whole(is_dry=False)}

    async def whole(self, *, is_dry: bool) -> list[Released]:
        known = NodeStorage(volumes=["uid-pv"], snapshots=[], groups=[], is_known=True)
        return await ClusterRelease(self.api, "n1").run(known, is_dry=is_dry)

    async def has(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        try:
            return await self.api.get(RESOURCES[kind], name, namespace)
        except KubeError:
            return None

    async def end_claim(self) -> None:
        """Kubernetes ends the pod and the claim, and the volume is Released."""
        self.api.drop("Pod", "web", "default")
        self.api.drop("PersistentVolumeClaim", "data", "default")
        body = await self.has("PersistentVolume", "pv")
        assert body is not None
        self.api.put({**body, "status": {"phase": "Released"}})

    def changes(self) -> list[str]:
        """The requests that changed something, without Events."""
        return [it for it in self.api.asked if it.split()[0] in {"delete", "patch", "create"} and "events" not in it]

    def events(self) -> int:
        return sum(it.startswith("create events") for it in self.api.asked)


async def test_a_dry_run_names_all_objects_and_changes_nothing() -> None:
    cluster = BoundVolume()
    found = await cluster.whole(is_dry=True)
    assert [(it.kind, it.name, it.fate) for it in found] == [
        ("Node", "n1", "goes"),
        ("Pod", "default/web", "goes"),
        ("PersistentVolumeClaim", "default/data", "goes"),
        ("VolumeAttachment", "va", "goes"),
        ("PersistentVolume", "pv", "goes"),
    ]
    assert cluster.changes() == []
    assert cluster.events() == 0


async def test_only_once_the_claim_is_gone_attachment_and_volume_follow_without_the_sidecars_finalizers() -> None:
    cluster = BoundVolume()
    fates = await cluster.run()
    assert cluster.changes() == ["delete persistentvolumeclaims data"]
    assert fates["VolumeAttachment"] == fates["PersistentVolume"] == "goes"
    await cluster.end_claim()
    fates = await cluster.run()
    assert fates["VolumeAttachment"] == fates["PersistentVolume"] == "released"
    assert cluster.changes()[1:] == [
        "delete volumeattachments va",
        "patch volumeattachments va",
        "delete persistentvolumes pv",
        "patch persistentvolumes pv",
    ]
    assert await cluster.has("PersistentVolume", "pv") is None


async def test_each_object_gets_one_event() -> None:
    cluster = BoundVolume()
    for _ in range(3):
        await cluster.run()
    await cluster.end_claim()
    await cluster.run()
    found = {it["involvedObject"]["kind"] for it in (await cluster.api.list(RESOURCES["Event"], limit=0)).items}
    assert found == {"Pod", "PersistentVolumeClaim", "VolumeAttachment", "PersistentVolume"}


async def test_a_retained_volume_stays_and_its_claim_and_attachment_go() -> None:
    cluster = BoundVolume(policy="Retain")
    await cluster.run()
    await cluster.end_claim()
    assert await cluster.run() == {"Node": "goes", "VolumeAttachment": "released", "PersistentVolume": "stays"}
    volume = await cluster.has("PersistentVolume", "pv")
    assert volume["metadata"]["finalizers"] == [_PROVISIONER, _ATTACHER]


async def test_a_finalizer_of_kubernetes_stays_for_kubernetes() -> None:
    cluster = BoundVolume()
    body = await cluster.has("PersistentVolume", "pv")
    metadata = {**body["metadata"], "finalizers": ["kubernetes.io/pv-protection", _PROVISIONER]}
    cluster.api.put({**body, "metadata": metadata})
    await cluster.end_claim()
    assert (await cluster.run())["PersistentVolume"] == "goes"
    left = await cluster.has("PersistentVolume", "pv")
    assert left["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    assert left["metadata"]["deletionTimestamp"]


async def test_a_volume_that_the_hub_does_not_name_and_a_claim_that_was_made_since_stay() -> None:
    cluster = BoundVolume()
    cluster.put("PersistentVolume", "other", spec={"persistentVolumeReclaimPolicy": "Delete"})
    await cluster.end_claim()
    cluster.put("PersistentVolumeClaim", "data", "default", uid="uid-new", spec={"volumeName": "pv-new"})
    await cluster.run()
    assert await cluster.has("PersistentVolume", "pv") is None
    assert await cluster.has("PersistentVolume", "other") is not None
    assert await cluster.has("PersistentVolumeClaim", "data", "default") is not None


async def test_a_pass_that_breaks_off_at_any_request_is_continued_by_the_next_ones() -> None:
    for number in range(1, 20):
        cluster = BoundVolume()
        await cluster.run()
        await cluster.end_claim()
        left = [number]

        async def break_off(_verb: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KubeError("a request", 0, "", "the command was killed")

        cluster.api._fail = break_off  # type: ignore[method-assign]  # it dies between two requests
        try:
            await cluster.run()
        except KubeError:
            for _ in range(2):
                await cluster.run()
        assert await cluster.has("PersistentVolume", "pv") is None
        assert await cluster.has("VolumeAttachment", "va") is None


async def test_the_command_lets_the_hub_forget_the_node_and_then_give_up_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[object] = []

    async def give_order(_: OperatorSettings, order: object, _answer: object) -> NodeStorage | Done:
        if isinstance(order, OwnStorage):
            return NodeStorage(volumes=[], snapshots=[], groups=[], is_known=True)
        given.append(order)
        return Done(said=[])

    monkeypatch.setattr(abandon, "give_order", give_order)
    settings = OperatorSettings(hub=hub_endpoint("unix:///hub"), timeout_s=10.0, max_message_bytes=65_536)
    await abandon._to_the_end(settings, "n2", ClusterRelease(BoundVolume().api, "n2"))
    assert given == [Abandon(node="n2"), Forget(node="n2"), Abandon(node="n2")]


async def test_the_command_asks_before_each_pass_and_stops_when_the_node_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = iter([NodeStorage(volumes=["uid-pv"], snapshots=[], groups=[], is_known=True)])

    async def give_order(_: OperatorSettings, order: object, _answer: object) -> NodeStorage | Done:
        if not isinstance(order, OwnStorage):
            assert order == Abandon(node="n1")
            return Done(said=[])
        if (storage := next(said, None)) is None:
            raise order_refused(f"edge node {order.node} is not abandoned", "it may come back")
        return storage

    monkeypatch.setattr(abandon, "give_order", give_order)
    monkeypatch.setattr(abandon, "_PAUSE_S", 0.0)
    monkeypatch.setattr(abandon, "_PATIENCE_S", 0.0)
    settings = OperatorSettings(hub=hub_endpoint("unix:///hub"), timeout_s=10.0, max_message_bytes=65_536)
    cluster = BoundVolume()
    with pytest.raises(CallError, match="edge node n1 is not abandoned: it may come back"):
        await abandon._to_the_end(settings, "n1", ClusterRelease(cluster.api, "n1"))
    assert await cluster.has("PersistentVolume", "pv") is not None


async def test_while_a_node_that_the_hub_did_not_make_is_there_nothing_changes() -> None:
    cluster = BoundVolume()
    cluster.put("Node", "n1", annotations={})
    (node,) = [it for it in await cluster.whole(is_dry=True) if it.kind == "Node"]
    assert (node.fate, node.why) == ("blocks", "the hub did not make Node n1; first run kubectl delete node n1")
    with pytest.raises(BridgeError, match="is not abandoned: the hub did not make Node n1"):
        await cluster.run()
    assert cluster.changes() == []


@pytest.mark.parametrize(("policy", "fate"), [("Delete", "released"), ("Retain", "stays")])
async def test_a_snapshot_goes_and_its_content_if_it_is_not_retained(policy: str, fate: str) -> None:
    cluster = BoundVolume()
    spec = {
        "driver": "d.example",
        "deletionPolicy": policy,
        "source": {"volumeHandle": "vol-1"},
        "volumeSnapshotRef": {"namespace": "default", "name": "snap", "uid": "uid-snap"},
    }
    bound = ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]
    cluster.put("VolumeSnapshotContent", "c", spec=spec, finalizers=bound)
    cluster.put("VolumeSnapshot", "snap", "default")
    fates = await cluster.run()
    assert (fates["VolumeSnapshot"], fates["VolumeSnapshotContent"]) == ("released", fate)


async def test_a_group_goes_before_its_members() -> None:
    cluster = BoundVolume()
    for kind, name, source in (
        ("VolumeSnapshot", "member", {"volumeHandle": "vol-1"}),
        ("VolumeGroupSnapshot", "group", {"volumeHandles": ["vol-1"]}),
    ):
        ref = {"namespace": "shop", "name": name, "uid": f"uid-{name}"}
        spec = {"driver": "d.example", "deletionPolicy": "Delete", "source": source}
        group = "group" if name == "group" else ""
        bound = f"{group}snapshot.storage.kubernetes.io/volume{group}snapshotcontent-bound-protection"
        content = {**spec, f"volume{'Group' if group else ''}SnapshotRef": ref}
        cluster.put(f"{kind}Content", f"{name}-content", spec=content, finalizers=[bound])
        cluster.put(kind, name, "shop", finalizers=["the-controller's"])
    dry = await cluster.whole(is_dry=True)
    assert {it.kind for it in dry} >= {"VolumeGroupSnapshot", "VolumeGroupSnapshotContent"}
    fates = await cluster.run()
    assert cluster.changes()[:6] == [
        "delete volumegroupsnapshots group",
        "delete volumegroupsnapshotcontents group-content",
        "patch volumegroupsnapshotcontents group-content",
        "delete volumesnapshots member",
        "delete volumesnapshotcontents member-content",
        "patch volumesnapshotcontents member-content",
    ]
    assert (fates["VolumeGroupSnapshot"], fates["VolumeGroupSnapshotContent"]) == ("goes", "released")
