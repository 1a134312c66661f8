"""Hostile and outdated nodes of a driver: refused reports, foreign ids, capabilities that one node lacks."""

import logging
from dataclasses import replace

import pytest
from google.protobuf.message import Message

from cloud.claims.rules import VOLUME, Thing
from cloud.proxy.driver_settings import Mode
from common.csi import csi_pb2 as csi
from common.csi.reports import CONTROLLER_GET_CAPABILITIES, DriverReport
from common.errors import CallError
from common.status import Code
from tests.kit.placed_nodes import (
    DRIVER,
    OK,
    RPC,
    Placed,
    Placing,
    create,
    delete,
    on,
    record,
    report,
    volumes,
)

ZONE = {"zone": "z"}
BASIC = (RPC.CREATE_DELETE_VOLUME, RPC.PUBLISH_UNPUBLISH_VOLUME, RPC.GET_CAPACITY)
MORE = (
    *BASIC,
    RPC.EXPAND_VOLUME,
    RPC.CLONE_VOLUME,
    RPC.CREATE_DELETE_SNAPSHOT,
    RPC.PUBLISH_READONLY,
    RPC.MODIFY_VOLUME,
    RPC.SINGLE_NODE_MULTI_WRITER,
    RPC.GET_VOLUME,
)


def zoned(node: str, *capabilities: int) -> DriverReport:
    return report(node, segments=ZONE, capabilities=capabilities or MORE)


@pytest.fixture
async def zone(placed: Placing) -> Placed:
    """Three nodes in one zone."""
    return placed(*(zoned(node) for node in ("n1", "n2", "n3")))


def refuse(world: Placed, node: str) -> None:
    """The hub refuses the reports of a node from now on."""
    world.refused[node] = "so it is"
    world.placement.changed(DRIVER)


def told(world: Placed) -> set[int]:
    """The controller's capabilities that sidecars are told."""
    found = world.placement.report(DRIVER, "", Mode.AUTO)
    body = found.answers[CONTROLLER_GET_CAPABILITIES].body
    return {it.rpc.type for it in csi.ControllerGetCapabilitiesResponse.FromString(body).capabilities}


# -------------------- refused reports --------------------


async def test_a_create_goes_past_a_refused_node(zone: Placed) -> None:
    refuse(zone, "n1")
    assert (await zone.ask("CreateVolume", create("pvc-1", ZONE))).node == "n2"
    zone.away = {"n2", "n3"}
    with pytest.raises(CallError, match="is offline since"):
        await zone.ask("CreateVolume", create("pvc-2", ZONE))


async def test_a_create_whose_name_a_refused_node_holds_waits_for_it(zone: Placed) -> None:
    zone.refuse("n1", Code.UNAVAILABLE)
    await zone.ask("CreateVolume", create("pvc-1", ZONE))
    refuse(zone, "n1")
    for _ in range(2):
        with pytest.raises(CallError, match="edge node n1 gets no call"):
            await zone.ask("CreateVolume", create("pvc-1", ZONE))
    assert zone.holder() == "n1"


async def test_a_call_about_a_volume_of_a_refused_node_goes_nowhere(zone: Placed) -> None:
    await zone.has_made("n1", ZONE)
    refuse(zone, "n1")
    with pytest.raises(CallError, match="gets no call"):
        await zone.ask("DeleteVolume", delete())
    assert zone.places() == ["n1"]


async def test_a_refused_node_is_still_a_reason_not_to_guess(placed: Placing) -> None:
    world = placed(report("n1"), report("n2"))
    refuse(world, "n2")
    with pytest.raises(CallError, match="the call names none"):
        await world.ask("DeleteVolume", delete(), mode=Mode.PINNED)
    with pytest.raises(CallError, match="n1, n2 cannot be asked for a list"):
        await world.ask("DeleteVolume", delete())
    await world.placement.inventories.settled()
    assert {node for node, *_ in world.calls} <= {"n1"}


async def test_of_a_refused_node_no_proxy_driver_is_told_anything(zone: Placed) -> None:
    refuse(zone, "n1")
    assert zone.placement.report(DRIVER, "n1", Mode.AUTO) is None
    assert zone.placement.report(DRIVER, "n2", Mode.AUTO) == zoned("n2")


async def test_a_capacity_is_that_of_the_only_node_that_is_not_refused(zone: Placed) -> None:
    for node in ("n1", "n3"):
        refuse(zone, node)
    asked = csi.GetCapacityRequest(accessible_topology=csi.Topology(segments=ZONE))
    assert (await zone.ask("GetCapacity", asked)).status.ok
    assert [node for node, *_ in zone.calls] == ["n2"]


# -------------------- foreign ids --------------------


async def test_a_create_hands_on_no_id_that_another_node_has_made(
    zone: Placed, caplog: pytest.LogCaptureFixture
) -> None:
    zone.know("n2", "vol-1", "CreateVolume pvc-0")
    zone.make("n1", "vol-1")
    for _ in range(2):
        with pytest.raises(CallError, match=r"edge node n1 answered CreateVolume pvc-1 .* which edge node n2 has"):
            await zone.ask("CreateVolume", create("pvc-1", ZONE))
    assert (zone.places(), zone.holder()) == (["n2"], "n1")
    assert (await zone.ask("DeleteVolume", delete())).node == "n2"
    (sentence,) = zone.placement.conflicts("n1")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [sentence]
    await zone.has_made("n1", ZONE, volume="vol-2")
    assert (zone.placement.conflicts("n1"), zone.places("vol-2")) == ([], ["n1"])


async def test_a_conflict_ends_when_its_node_is_forgotten_or_answers_with_a_final_error(zone: Placed) -> None:
    zone.know("n2", "vol-1", "CreateVolume pvc-0")
    zone.make("n1", "vol-1")
    for name in ("pvc-1", "pvc-2"):
        with pytest.raises(CallError, match="which edge node n2 has"):
            await zone.ask("CreateVolume", create(name, ZONE))
    zone.refuse("n1", Code.INVALID_ARGUMENT)
    await zone.ask("CreateVolume", create("pvc-1", ZONE))
    assert len(zone.placement.conflicts("n1")) == 1
    await zone.placement.forget("n1")
    assert zone.placement.conflicts("n1") == []


async def test_of_a_node_that_answers_with_foreign_ids_again_and_again_the_newest_conflicts_are_kept(
    zone: Placed,
) -> None:
    zone.know("n2", "vol-1", "CreateVolume pvc-0")
    zone.make("n1", "vol-1")
    for number in range(1, 26):
        with pytest.raises(CallError, match="which edge node n2 has"):
            await zone.ask("CreateVolume", create(f"pvc-{number}", ZONE))
    kept = zone.placement.conflicts("n1")
    assert (len(kept), "CreateVolume pvc-6 " in kept[0], "CreateVolume pvc-25 " in kept[-1]) == (20, True, True)


async def test_an_id_that_another_node_only_lists_or_has_deleted_is_handed_on(zone: Placed) -> None:
    things = [Thing(VOLUME, "vol-1")]
    await zone.store.record_list(DRIVER, "n2", VOLUME, things, began=zone.now, at=0.0)
    zone.know("n3", "vol-1", "CreateVolume pvc-0")
    await zone.ask("DeleteVolume", delete(), mode="", wanted="n3")
    zone.make("n1", "vol-1")
    assert (await zone.ask("CreateVolume", create("pvc-1", ZONE))).status.ok


async def test_a_retry_of_a_create_gets_its_own_id_even_if_another_node_has_the_same(zone: Placed) -> None:
    await zone.has_made("n1", ZONE)
    zone.know("n2", "vol-1", "CreateVolume pvc-0")
    assert (await zone.ask("CreateVolume", create("pvc-1", ZONE))).status.ok


async def test_with_shared_storage_two_nodes_may_name_one_volume(placed: Placing) -> None:
    world = placed(report("n1"), report("n2"))
    world.know("n2", "vol-1", "CreateVolume pvc-0")
    world.make("n1", "vol-1")
    for mode in (Mode.PINNED, ""):
        assert (await world.ask("CreateVolume", create(), mode=mode, wanted="n1")).status.ok


async def test_what_an_operator_makes_by_hand_takes_no_other_nodes_id(zone: Placed) -> None:
    zone.know("n2", "vol-1", "CreateVolume pvc-0")
    zone.make("n1", "vol-1")
    with pytest.raises(CallError, match="which edge node n2 has"):
        await zone.ask("CreateVolume", create("by-hand"), mode="", wanted="n1")
    assert zone.places() == ["n2"]


async def test_a_create_hands_on_no_volume_that_a_vendor_without_topology_gives_to_another_node(world: Placed) -> None:
    """The hub puts its own topology into the answer, after it has looked at the vendor's."""
    answer = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="vol-1"))
    answer.volume.accessible_topology.add().segments.update(on("n2"))
    world.vendors["n1"] = lambda _: (answer.SerializeToString(), OK)
    with pytest.raises(CallError, match="a volume for edge node n2, and not for itself"):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    assert (world.places(), world.holder()) == ([], "n1")


async def test_a_create_hands_on_no_id_whose_persistent_volume_is_for_another_node(placed: Placing) -> None:
    world = placed(report("n1"), report("n2"), source=volumes("n2", handle="vol-1"))
    world.make("n1", "vol-1")
    with pytest.raises(CallError, match="which edge node n2 has"):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    world.make("n2", "vol-1")
    assert (await world.ask("CreateVolume", create("pvc-2", on("n2")))).status.ok


# -------------------- capabilities --------------------


async def test_a_tie_of_capabilities_keeps_the_earlier_ones_also_after_a_restart(placed: Placing) -> None:
    world = placed(zoned("n1"))
    assert told(world) == set(MORE)
    world.tell(zoned("a-late", *BASIC))
    assert told(world) == set(MORE)
    await world.restart()
    assert told(world) == set(MORE)
    world.tell(zoned("a-late-2", *BASIC))
    assert told(world) == set(BASIC)


async def test_once_no_node_has_a_driver_its_offer_is_forgotten(zone: Placed) -> None:
    assert told(zone) == set(MORE)
    zone.reports.clear()
    zone.placement.changed(DRIVER)
    assert zone.placement.report(DRIVER, "", Mode.LOCAL) is None
    assert zone.offers.kept == {}


async def test_a_refused_node_and_one_that_tells_its_name_alone_have_no_vote(zone: Placed) -> None:
    zone.reports["n2"] = zoned("n2", *BASIC)
    zone.reports["n3"] = replace(zoned("n3"), answers={})
    refuse(zone, "n2")
    assert told(zone) == set(MORE)


async def test_one_node_does_not_change_how_a_drivers_volumes_are_placed(placed: Placing) -> None:
    world = placed(report("n1"))
    assert (await world.ask("CreateVolume", create(), mode=Mode.AUTO)).node == "n1"
    world.tell(report("a-liar", segments=ZONE))
    with pytest.raises(CallError, match="the call names none"):
        await world.ask("CreateVolume", create("pvc-2", ZONE), mode=Mode.AUTO)


def requests() -> list[tuple[str, Message, str]]:
    """Calls about vol-1 of n1, each with the capability that it needs."""
    clone = create("pvc-1", ZONE, source="vol-1")
    modify = create("pvc-1", ZONE)
    modify.mutable_parameters["iops"] = "9"
    writer = create("pvc-1", ZONE)
    writer.volume_capabilities.add().access_mode.mode = csi.VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER
    publish = csi.ControllerPublishVolumeRequest(volume_id="vol-1", node_id="id-of-n1", readonly=True)
    return [
        ("CreateVolume", clone, "CLONE_VOLUME"),
        ("CreateVolume", modify, "MODIFY_VOLUME"),
        ("CreateVolume", writer, "SINGLE_NODE_MULTI_WRITER"),
        ("CreateSnapshot", csi.CreateSnapshotRequest(name="s", source_volume_id="vol-1"), "CREATE_DELETE_SNAPSHOT"),
        ("ControllerPublishVolume", publish, "PUBLISH_READONLY"),
        ("ControllerExpandVolume", csi.ControllerExpandVolumeRequest(volume_id="vol-1"), "EXPAND_VOLUME"),
        ("ControllerGetVolume", csi.ControllerGetVolumeRequest(volume_id="vol-1"), "GET_VOLUME"),
    ]


@pytest.mark.parametrize(("method", "request_", "needed"), requests())
async def test_a_node_that_lacks_an_offered_capability_is_not_asked_for_it_and_the_code_is_not_final(
    zone: Placed, method: str, request_: Message, needed: str
) -> None:
    zone.know("n1", "vol-1", "CreateVolume pvc-0")
    zone.refuse("n1", Code.UNAVAILABLE)
    if method == "CreateVolume":
        await zone.ask("CreateVolume", create("pvc-1", ZONE))  # n1 holds the name
    zone.tell(zoned("n1", *BASIC))
    before = len(zone.calls)
    told = zone.send(method, request_)
    with pytest.raises(CallError) as refused:
        await told.result()
    assert told.node == "n1"  # whose failure it is on the hub's pages, although it was not asked
    assert refused.value.code is Code.UNAVAILABLE
    assert str(refused.value) == (
        f"{method} needs the capability {needed}, which driver d.example has on most of its edge nodes and lacks on "
        f"n1; run the same version of the driver there"
    )
    assert len(zone.calls) == before


@pytest.mark.parametrize("method", ["DeleteVolume", "ControllerUnpublishVolume", "DeleteSnapshot"])
async def test_deletions_and_unpublications_always_reach_the_node(zone: Placed, method: str) -> None:
    zone.know("n1", "vol-1", "CreateVolume pvc-0")
    record(zone.store, DRIVER, "n1", Thing("snapshot", "s-1"), "CreateSnapshot s")
    zone.tell(report("n1", segments=ZONE, capabilities=()))
    about = {"snapshot_id": "s-1"} if method == "DeleteSnapshot" else {"volume_id": "vol-1"}
    request = getattr(csi, f"{method}Request")(**about)
    assert (await zone.ask(method, request)).node == "n1"


async def test_a_create_goes_past_a_node_that_lacks_a_capability_for_it(zone: Placed) -> None:
    zone.tell(report("n1", segments=ZONE, capabilities=()))
    assert (await zone.ask("CreateVolume", create("pvc-1", ZONE))).node == "n2"


async def test_a_pinned_call_is_sent_whatever_the_node_lacks(zone: Placed) -> None:
    zone.tell(zoned("n1", *BASIC))
    asked = csi.ControllerExpandVolumeRequest(volume_id="vol-1")
    for mode in (Mode.PINNED, ""):
        assert (await zone.ask("ControllerExpandVolume", asked, mode=mode, wanted="n1")).node == "n1"


async def test_a_lacking_node_is_told_once_and_shown(zone: Placed, caplog: pytest.LogCaptureFixture) -> None:
    zone.reports["n1"] = zoned("n1", *BASIC)
    for _ in range(3):
        zone.placement.changed(DRIVER)
        found = zone.placement.lacking("n1", [DRIVER])
    assert found == {DRIVER: sorted(["EXPAND_VOLUME", "CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT", "PUBLISH_READONLY",
                                     "MODIFY_VOLUME", "SINGLE_NODE_MULTI_WRITER", "GET_VOLUME"])}  # fmt: skip
    assert zone.placement.lacking("n2", [DRIVER]) == {}
    assert [it for it in caplog.messages if it.startswith("driver d.example on edge node n1 lacks CLONE_VOLUME,")]
    assert len(caplog.messages) == 1
