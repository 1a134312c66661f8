"""Which node a call goes to where each node has storage of its own, and what is kept of its outcome."""

import pytest

from cloud.claims.rules import SNAPSHOT, Thing
from cloud.placement.affinity import Affinity
from cloud.proxy.driver_settings import Mode
from cloud.sources.source import Item
from common.csi import csi_pb2 as csi
from common.csi.reports import ESSENTIAL_METHODS, NODE_GET_INFO, DriverReport
from common.errors import CallError
from common.objects.objects import Ref, Stamp
from common.objects.topology import NODE_SEGMENT
from common.status import Code
from tests.kit.placed_nodes import DRIVER, OK, Placed, Placing, affinity, create, delete, on, record, report, volumes

# -------------------- where something new goes --------------------


async def test_of_several_terms_the_first_one_with_a_connected_node_is_taken(world: Placed) -> None:
    world.away = {"n3"}
    assert (await world.ask("CreateVolume", create("pvc-1", on("n3"), on("n2"), on("n1")))).node == "n2"


async def test_a_term_whose_only_node_is_away_is_waited_for_and_nothing_is_claimed(world: Placed) -> None:
    world.away = {"n2"}
    with pytest.raises(CallError, match="is offline since"):
        await world.ask("CreateVolume", create("pvc-1", on("n2")))
    assert not world.holder()


async def test_a_topology_that_no_node_has_is_named(world: Placed) -> None:
    with pytest.raises(CallError, match=r"none of the nodes that run it \(n1, n2, n3\)"):
        await world.ask("CreateVolume", create("pvc-1", on("n9")))


async def test_of_several_nodes_none_is_guessed_and_the_remedy_is_named(world: Placed) -> None:
    with pytest.raises(CallError, match=r"--strict-topology.*WaitForFirstConsumer, or name the node with --node"):
        await world.ask("CreateVolume", create("pvc-1"))


async def test_a_node_whose_name_is_no_label_value_gets_no_volume(placed: Placing) -> None:
    world = placed(report("n" * 64))
    with pytest.raises(CallError, match="cannot be the value of a label"):
        await world.ask("CreateVolume", create("pvc-1"))


# -------------------- where something is --------------------


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("DeleteVolume", delete()),
        ("ControllerPublishVolume", csi.ControllerPublishVolumeRequest(volume_id="vol-1", node_id="id-of-n1")),
        ("ControllerUnpublishVolume", csi.ControllerUnpublishVolumeRequest(volume_id="vol-1")),
        ("ControllerExpandVolume", csi.ControllerExpandVolumeRequest(volume_id="vol-1")),
        ("ControllerModifyVolume", csi.ControllerModifyVolumeRequest(volume_id="vol-1")),
        ("ControllerGetVolume", csi.ControllerGetVolumeRequest(volume_id="vol-1")),
        ("ValidateVolumeCapabilities", csi.ValidateVolumeCapabilitiesRequest(volume_id="vol-1")),
        ("CreateSnapshot", csi.CreateSnapshotRequest(name="s", source_volume_id="vol-1")),
        ("ListSnapshots", csi.ListSnapshotsRequest(source_volume_id="vol-1")),
        ("CreateVolume", create("pvc-2", source="vol-1")),
    ],
)
async def test_a_call_goes_where_its_volume_is(world: Placed, method: str, request_: object) -> None:
    await world.has_made("n2")
    world.vendors.clear()
    assert (await world.ask(method, request_)).node == "n2"


async def test_a_copy_that_is_wanted_elsewhere_lets_the_scheduler_choose_again(world: Placed) -> None:
    await world.has_made("n2")
    with pytest.raises(CallError, match=r"volume vol-1 of driver d\.example is on edge node n2") as elsewhere:
        await world.ask("CreateVolume", create("pvc-2", on("n1"), source="vol-1"))
    assert elsewhere.value.code is Code.RESOURCE_EXHAUSTED
    assert not world.holder("pvc-2")


@pytest.mark.parametrize("method", ["DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot"])
async def test_a_group_that_nothing_tells_of_is_where_its_snapshots_are(world: Placed, method: str) -> None:
    """The snapshotter always names the snapshots, and groups cannot be listed."""
    for snapshot in ("s-1", "s-2"):
        record(world.store, DRIVER, "n2", Thing(SNAPSHOT, snapshot), f"CreateSnapshot {snapshot}")
    kind = getattr(csi, f"{method}Request")
    path = f"/csi.v1.GroupController/{method}"
    assert (await world.ask(path, kind(group_snapshot_id="g", snapshot_ids=["s-1", "s-2"]))).node == "n2"
    for snapshots in ([], ["s-1", "unknown"]):
        with pytest.raises(CallError, match="does not know which edge node"):
            await world.ask(path, kind(group_snapshot_id="other", snapshot_ids=snapshots))


async def test_volumes_on_several_nodes_are_no_group_even_if_the_node_of_another_one_is_not_known(
    world: Placed,
) -> None:
    method = "/csi.v1.GroupController/CreateVolumeGroupSnapshot"
    for node, volume in (("n1", "vol-1"), ("n2", "vol-2")):
        world.make(node, volume)
        await world.ask("CreateVolume", create(volume, on(node)))
    for asked in (["vol-1", "vol-2"], ["unknown", "vol-1", "vol-2"]):
        with pytest.raises(CallError, match="volume vol-1 is on n1; volume vol-2 is on n2") as several:
            await world.ask(method, csi.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=asked))
        assert several.value.code is Code.FAILED_PRECONDITION
    with pytest.raises(CallError, match="volume unknown"):
        await world.ask(method, csi.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=["unknown", "vol-1"]))
    assert not world.holder("CreateVolumeGroupSnapshot g")


async def test_one_id_on_two_nodes_is_a_conflict_that_the_calls_node_or_an_operator_settles(world: Placed) -> None:
    for node in ("n1", "n2"):
        world.know(node, "lv-1", f"CreateVolume pvc-{node}")
    with pytest.raises(CallError, match="volume lv-1 on several edge nodes") as conflict:
        await world.ask("DeleteVolume", delete("lv-1"))
    assert conflict.value.code is Code.FAILED_PRECONDITION
    asked = csi.ControllerPublishVolumeRequest(volume_id="lv-1", node_id="id-of-n2")
    assert (await world.ask("ControllerPublishVolume", asked)).node == "n2"
    await world.ask("DeleteVolume", delete("lv-1"), mode="", wanted="n1")
    assert not world.holder("pvc-n1")
    assert (await world.ask("DeleteVolume", delete("lv-1"))).node == "n2"


async def test_what_an_operator_makes_by_hand_is_found(world: Placed) -> None:
    world.make("n2", "by-hand")
    await world.ask("CreateVolume", create("mine"), mode="", wanted="n2")
    await world.restart()
    assert world.holder("mine") == "n2"
    assert (await world.ask("DeleteVolume", delete("by-hand"))).node == "n2"


async def test_an_operator_may_send_what_nobody_can_read(world: Placed) -> None:
    assert (await world.ask("CreateVolume", b"\xff", mode="", wanted="n2")).node == "n2"


async def test_an_unknown_id_goes_by_its_persistent_volume_or_else_by_the_calls_node(world: Placed) -> None:
    asked = csi.ControllerPublishVolumeRequest(volume_id="static", node_id="id-of-n3")
    assert (await world.ask("ControllerPublishVolume", asked)).node == "n3"
    world.placement.affinity = affinity("n2", handle="static")
    assert (await world.ask("ControllerPublishVolume", asked)).node == "n2"
    assert (await world.ask("DeleteVolume", delete("static"))).node == "n2"


async def test_a_volume_that_was_made_elsewhere_than_its_persistent_volume_says_is_a_conflict(
    world: Placed,
) -> None:
    await world.has_made("n1")
    world.placement.affinity = affinity("n2", "n3", handle="vol-1")
    with pytest.raises(CallError, match="n1; n2; n3"):
        await world.ask("DeleteVolume", delete())
    world.placement.affinity = affinity("n9", handle="vol-1")  # a node that nobody knows rules out none
    expand = csi.ControllerExpandVolumeRequest(volume_id="vol-1")
    assert (await world.ask("ControllerExpandVolume", expand)).node == "n1"
    world.placement.affinity = affinity("n1", "n2", handle="vol-1")
    assert (await world.ask("DeleteVolume", delete())).node == "n1"


async def test_an_id_that_was_deleted_here_and_has_a_persistent_volume_elsewhere_is_the_other_one(
    world: Placed,
) -> None:
    await world.has_made("n1")
    await world.ask("DeleteVolume", delete())
    world.placement.affinity = affinity("n2", handle="vol-1")
    assert (await world.ask("DeleteVolume", delete())).node == "n2"


async def test_a_persistent_volume_that_leaves_a_choice_is_not_gone_past(world: Placed) -> None:
    world.placement.affinity = affinity("n2", "n3", handle="static")
    asked = csi.ControllerUnpublishVolumeRequest(volume_id="static", node_id="id-of-n1")
    with pytest.raises(CallError, match="its PersistentVolume is for n2, n3, and n2, n3 cannot be asked for a list"):
        await world.ask("ControllerUnpublishVolume", asked)
    asked.node_id = "id-of-n3"
    assert (await world.ask("ControllerUnpublishVolume", asked)).node == "n3"


@pytest.mark.parametrize("key", [NODE_SEGMENT, "zone"])
async def test_the_first_node_that_comes_is_not_taken_for_the_one_that_a_persistent_volume_is_for(
    placed: Placing, key: str
) -> None:
    """Agents are rolled out one by one, or the hub's state directory is a new one."""
    world = placed(report("n1", segments={key: "n1"} if key == "zone" else None))
    world.placement.affinity = affinity("n2", handle="vol-2", key=key)
    with pytest.raises(CallError, match="its PersistentVolume is for none of the nodes that have reported the driver"):
        await world.ask("DeleteVolume", delete("vol-2"))


async def test_a_node_without_the_label_that_a_persistent_volume_asks_for_is_named(world: Placed) -> None:
    objects = volumes("r1", handle="static", key="rack")
    world.placement.affinity = Affinity(objects)
    with pytest.raises(
        CallError, match="its PersistentVolume is perhaps for n1, n2, n3, whose label rack the hub does not know"
    ):
        await world.ask("DeleteVolume", delete("static"))
    for node, labels in (("n1", {"rack": "r1"}), ("n2", {}), ("n3", {"rack": "r3"})):
        labelled = {"metadata": {"name": node, "labels": labels}}
        objects.update({Ref("Node", "", node): Item(Stamp(node, "1"), labelled)})
    with pytest.raises(
        CallError, match=r"is for n1 and perhaps for n2, whose label rack the hub does not know, and n1, n2 "
    ):
        await world.ask("DeleteVolume", delete("static"))


async def test_the_only_node_waits_until_every_persistent_volume_is_known(placed: Placing) -> None:
    world = placed(report("n1"))
    world.placement.affinity = affinity("n2", handle="another", ready=False)
    with pytest.raises(CallError, match="has not read every PersistentVolume yet"):
        await world.ask("DeleteVolume", delete("unknown"))
    world.make("n1")
    await world.ask("CreateVolume", create("pvc-1"))
    assert (await world.ask("DeleteVolume", delete())).node == "n1"
    assert (await world.ask("DeleteSnapshot", csi.DeleteSnapshotRequest(snapshot_id="s"))).node == "n1"


async def test_a_persistent_volume_bound_by_labels_that_the_hub_knows_nothing_of_leaves_the_only_node(
    placed: Placing,
) -> None:
    world = placed(report("n1"))
    world.placement.affinity = affinity("z1", handle="static", key="topology.kubernetes.io/zone")
    assert (await world.ask("DeleteVolume", delete("static"))).node == "n1"


async def test_a_node_is_not_the_only_one_while_the_hub_knows_things_of_another(world: Placed) -> None:
    await world.has_made("n2")
    for gone in ("n2", "n3"):
        del world.reports[gone]
    world.placement.changed(DRIVER)
    with pytest.raises(CallError, match="n1, n2 cannot be asked for a list"):
        await world.ask("DeleteVolume", delete("unknown"))
    await world.placement.forget("n2")
    assert (await world.ask("DeleteVolume", delete("unknown"))).node == "n1"


async def test_a_node_whose_vendor_does_not_answer_node_get_info_for_the_moment_is_not_ruled_out(
    placed: Placing,
) -> None:
    """Both would be final: a conflict, and the advice to schedule the pod anew."""
    zone = {"zone": "z1"}
    world = placed(report("n1", segments=zone), report("n2", segments=zone))
    await world.has_made("n1", zone)
    world.placement.affinity = affinity("z1", handle="vol-1", key="zone")
    told = world.reports["n1"].answers
    world.tell(DriverReport(DRIVER, "n1", {method: told[method] for method in told if method != NODE_GET_INFO}))
    expand = csi.ControllerExpandVolumeRequest(volume_id="vol-1")
    assert (await world.ask("ControllerExpandVolume", expand)).node == "n1"
    assert (await world.ask("CreateVolume", create("copy", zone, source="vol-1"))).node == "n1"


async def test_two_nodes_of_one_node_id_are_named(placed: Placing) -> None:
    world = placed(report("n1", node_id="copied"), report("n2", node_id="copied"))
    asked = csi.ControllerPublishVolumeRequest(volume_id="static", node_id="copied")
    with pytest.raises(CallError, match="n1, n2 all have the node id copied"):
        await world.ask("ControllerPublishVolume", asked)


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("DeleteVolume", csi.DeleteVolumeRequest(), "volume_id"),
        ("ControllerUnpublishVolume", csi.ControllerUnpublishVolumeRequest(node_id="id-of-n1"), "volume_id"),
        ("CreateVolume", create("", source="vol-1"), "name"),
        ("CreateSnapshot", csi.CreateSnapshotRequest(name="s"), "source_volume_id"),
        ("DeleteSnapshot", csi.DeleteSnapshotRequest(), "snapshot_id"),
    ],
)
async def test_a_request_without_the_field_that_any_vendor_needs_goes_to_no_node(
    world: Placed, method: str, request_: object, field: str
) -> None:
    with pytest.raises(CallError, match=f"^{method} needs the field {field}, which is empty$"):
        await world.ask(method, request_)
    assert not world.calls


async def test_the_only_nodes_vendor_says_itself_what_is_missing(placed: Placing) -> None:
    world = placed(report("n1"))
    assert (await world.ask("DeleteVolume", delete(""))).node == "n1"


async def test_an_unknown_id_goes_to_the_only_node_unless_others_may_be_forgotten(placed: Placing) -> None:
    world = placed(report("n1"))
    assert (await world.ask("DeleteVolume", delete("unknown"))).node == "n1"
    world.lost = "state.db was gone"
    with pytest.raises(CallError, match="has lost records"):
        await world.ask("DeleteVolume", delete("other"))


# -------------------- what concerns every node --------------------


async def test_one_nodes_part_is_never_given_for_the_whole(world: Placed) -> None:
    with pytest.raises(CallError, match="all 3 edge nodes"):
        await world.ask("Imagined")


# -------------------- the bridge's own segment --------------------


async def test_snapshots_are_treated_as_volumes(world: Placed) -> None:
    await world.has_made("n2")
    answer = csi.CreateSnapshotResponse(snapshot=csi.Snapshot(snapshot_id="snap-1"))
    world.vendors["n2"] = lambda _: (answer.SerializeToString(), OK)
    request = csi.CreateSnapshotRequest(name="s", source_volume_id="vol-1")
    request.accessibility_requirements.requisite.add().segments.update(on("n2"))
    asked = await world.ask("CreateSnapshot", request)
    snapshot = csi.CreateSnapshotResponse.FromString(asked.body).snapshot
    assert [dict(each.segments) for each in snapshot.accessible_topology] == [on("n2")]
    assert not csi.CreateSnapshotRequest.FromString(world.calls[-1][2]).HasField("accessibility_requirements")
    assert (await world.ask("CreateVolume", create("pvc-2", snapshot="snap-1"))).node == "n2"
    assert (await world.ask("DeleteSnapshot", csi.DeleteSnapshotRequest(snapshot_id="snap-1"))).node == "n2"


@pytest.mark.parametrize("told", [None, {"zone": "b"}])
async def test_of_local_storage_a_vendor_that_tells_no_topology_of_a_volume_has_it_told(
    placed: Placing, told: dict[str, str] | None
) -> None:
    """docs/csi-contract.md#a-local-volume-says-where-it-is: without a nodeAffinity the pod lands anywhere."""
    world = placed(report("n1", segments={"zone": "a"}), report("n2", segments={"zone": "b"}))
    terms = [csi.Topology(segments=told)] if told is not None else []
    answer = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v", accessible_topology=terms))
    world.vendors["n1"] = lambda _: (answer.SerializeToString(), OK)
    asked = await world.ask("CreateVolume", create("pvc-1", {"zone": "a"}))
    volume = csi.CreateVolumeResponse.FromString(asked.body).volume
    assert [dict(each.segments) for each in volume.accessible_topology] == [told or {"zone": "a"}]
    asked = await world.ask("CreateVolume", create("pvc-1", {"zone": "a"}), mode=Mode.AUTO)
    assert asked.body == answer.SerializeToString()  # the vendor may mean what it says


# -------------------- modes --------------------


async def test_without_a_topology_of_the_vendors_auto_guesses_no_node(world: Placed) -> None:
    with pytest.raises(CallError, match="the call names none"):
        await world.ask("CreateVolume", create("pvc-1", on("n2")), mode=Mode.AUTO)


async def test_pinned_goes_to_the_node_that_is_named_and_changes_nothing(world: Placed) -> None:
    asked = create("pvc-1", on("n2"))
    assert (await world.ask("CreateVolume", asked, mode=Mode.PINNED, wanted="n1")).node == "n1"
    assert world.calls[0][2] == asked.SerializeToString()
    assert not world.holder()


async def test_a_node_of_another_version_does_not_take_the_others_volumes_from_them(placed: Placing) -> None:
    """One whose vendor has no topology yet, and one whose vendor describes itself in more than can be reported."""
    world = placed(report("n1", segments={"zone": "a"}), report("n2", segments={"zone": "b"}))
    world.make("n1")
    await world.ask("CreateVolume", create("pvc-1", {"zone": "a"}), mode=Mode.AUTO)
    world.tell(report("n3"), DriverReport(DRIVER, "n4", {}))
    assert (await world.ask("DeleteVolume", delete(), mode=Mode.AUTO)).node == "n1"
    assert (await world.ask("CreateVolume", create("pvc-2", on("n3")), mode=Mode.AUTO)).node == "n3"
    told = world.placement.report(DRIVER, "", Mode.AUTO)
    assert told.answers.keys() >= set(ESSENTIAL_METHODS)


async def test_of_a_driver_known_by_its_name_alone_nothing_is_told(placed: Placing) -> None:
    world = placed(DriverReport(DRIVER, "n1", {}))
    assert world.placement.report(DRIVER, "", Mode.LOCAL) is None


async def test_the_only_nodes_own_topology_is_the_vendors_to_judge_where_nothing_is_known_of_it(
    placed: Placing,
) -> None:
    """A vendor whose controller is a socket of its own does not answer NodeGetInfo there."""
    world = placed(report("n1", segments={}))
    assert (await world.ask("CreateVolume", create("pvc-1"), mode=Mode.AUTO)).node == "n1"
    assert (await world.ask("CreateVolume", create("pvc-2", {"zone": "a"}), mode=Mode.AUTO)).node == "n1"


# -------------------- lost records --------------------


async def test_a_loss_makes_a_create_wait_unless_one_node_alone_is_allowed(placed: Placing) -> None:
    world = placed(report("n1"), report("n2"), lost="state.db was gone")
    with pytest.raises(CallError, match=r"state\.db was gone"):
        await world.ask("CreateVolume", create("pvc-1", on("n1"), on("n2")))
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n2"


async def test_after_a_loss_a_create_with_a_choice_waits_though_one_node_alone_is_back(placed: Placing) -> None:
    world = placed(report("n1"), lost="state.db was gone")
    with pytest.raises(CallError, match=r"state\.db was gone"):
        await world.ask("CreateVolume", create("pvc-1", on("n1"), on("n2")))
