"""What is known of volumes from the nodes' own lists, and how far a list is believed."""

import asyncio
from collections.abc import Callable

import pytest

from cloud.claims.rules import VOLUME, Thing
from cloud.nodes.question import Question
from cloud.placement import inventory
from cloud.proxy.driver_settings import Mode
from common.csi import csi_pb2 as csi
from common.errors import CallError
from common.status import Code, Status
from tests.kit.placed_nodes import OK, RPC, Placed, Placing, Vendor, affinity, create, delete, report
from tests.kit.waiting import until

CAN = (RPC.CREATE_DELETE_VOLUME, RPC.LIST_VOLUMES)


@pytest.fixture
async def world(placed: Placing) -> Placed:
    """Two nodes whose vendor can list its volumes."""
    world = placed(report("n1", capabilities=CAN), report("n2", capabilities=CAN))
    world.vendors = dict.fromkeys(("n1", "n2"), lists())
    return world


def listing(*volumes: str, token: str = "") -> bytes:
    entries = [csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id=volume)) for volume in volumes]
    return csi.ListVolumesResponse(entries=entries, next_token=token).SerializeToString()


def lists(*volumes: str) -> Vendor:
    """A vendor that has these, and does what it is asked."""
    return lambda call: (listing(*volumes) if call.method.endswith("ListVolumes") else b"", OK)


async def asked_for(world: Placed, volume: str) -> None:
    """Somebody asks for a volume that nothing tells of, and the nodes have listed theirs."""
    with pytest.raises(CallError, match="does not know which edge node"):
        await world.ask("ControllerGetVolume", csi.ControllerGetVolumeRequest(volume_id=volume))
    await world.placement.inventories.settled()
    world.monotonic += 61.0


async def refused(world: Placed, volume: str) -> str:
    """The message with which a deletion is refused. The nodes that it asks for lists have sent them."""
    with pytest.raises(CallError, match="does not know which edge node") as caught:
        await world.ask("DeleteVolume", delete(volume))
    await world.placement.inventories.settled()
    return str(caught.value)


async def test_what_every_node_has_listed_is_found_again(world: Placed) -> None:
    world.vendors = {"n1": lists("a"), "n2": lists("b", "both")}
    await asked_for(world, "b")
    assert (await world.ask("DeleteVolume", delete("b"))).node == "n2"


async def test_what_some_nodes_have_not_listed_is_not_known_to_be_on_the_others(world: Placed) -> None:
    world.vendors["n1"] = lists("lv-1")
    world.away = {"n2"}
    await asked_for(world, "lv-1")
    with pytest.raises(CallError, match="n2 cannot be asked for a list"):
        await world.ask("DeleteVolume", delete("lv-1"))


async def test_the_nodes_that_are_asked_for_lists_are_connected_and_can_list(
    placed: Placing, caplog: pytest.LogCaptureFixture
) -> None:
    world = placed(report("cannot"), *(report(node, capabilities=CAN) for node in ("away", "can", "refused")))
    world.away, world.refused = {"away"}, {"refused": "no right"}
    await asked_for(world, "unknown")
    assert [node for node, _, _ in world.calls] == ["can"]
    assert not caplog.messages  # of a question that could not be sent


async def test_a_node_is_asked_for_its_list_once_a_minute(world: Placed) -> None:
    for _ in range(2):
        await asked_for(world, "unknown")
        world.monotonic -= 1.5
    assert [node for node, _, _ in world.calls] == ["n1", "n2"]


async def test_a_list_of_several_pages_is_read_to_its_end(world: Placed) -> None:
    def pages(call: Question) -> tuple[bytes, Status]:
        token = csi.ListVolumesRequest.FromString(call.request).starting_token
        return (listing("b") if token else listing("a", token="1")), OK

    world.vendors["n1"] = pages
    await asked_for(world, "b")
    world.vendors["n1"] = lists()
    assert (await world.ask("DeleteVolume", delete("b"))).node == "n1"


@pytest.mark.parametrize("kind", ["same", "cycle", "endless", "empty", "nonsense", "refused", "huge", "late"])
async def test_a_list_that_has_no_end_or_no_sense_is_none(
    world: Placed, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = iter(range(10_000))
    if kind == "late":
        monkeypatch.setattr("cloud.placement.inventory._LIST_LIMIT_S", 0.0)

    def page(call: Question) -> tuple[bytes | None, Status]:
        number = next(count)
        answers: dict[str, Callable[[], tuple[bytes | None, Status]]] = {
            "same": lambda: (listing("b", token="t"), OK),
            "cycle": lambda: (listing("b", token=str(number % 2)), OK),
            "endless": lambda: (listing(f"b-{number}", token=str(number)), OK),
            "empty": lambda: (listing(token=str(number)), OK),
            "nonsense": lambda: (b"\xff", OK),
            "late": lambda: (listing("b", token=str(number) if number < 9 else ""), OK),
            "refused": lambda: (None, Status(Code.INTERNAL, "no")),
            "huge": lambda: (listing(*(f"{number}-{i}" * 50 for i in range(2_000)), token=str(number)), OK),
        }
        return answers[kind]()

    world.vendors["n1"] = page
    await asked_for(world, "b")
    assert ("n1", "volume") not in world.book.lists
    assert not world.places("b")
    assert next(count) <= 1_001


async def test_what_was_deleted_while_a_list_was_read_stays_deleted(world: Placed) -> None:
    answer = asyncio.get_running_loop().create_future()
    await world.has_made("n1", volume="v")
    world.vendors["n1"] = lambda call: answer if call.method.endswith("ListVolumes") else (b"", OK)
    with pytest.raises(CallError, match="does not know which edge node"):
        await world.ask("DeleteVolume", delete("unknown"))
    await until(lambda: len(world.calls) == 3)  # both lists are asked for
    world.now += 1.0
    await world.ask("DeleteVolume", delete("v"))
    answer.set_result((listing("v"), OK))
    await world.placement.inventories.settled()
    assert not world.places("v")
    assert (await world.ask("DeleteVolume", delete("v"))).node == "n1"


async def test_what_a_list_alone_told_goes_with_the_next_list_and_what_was_made_here_does_not(
    world: Placed,
) -> None:
    await world.has_made("n1", volume="made")
    world.vendors["n1"] = lists("made", "static")
    await asked_for(world, "unknown")
    assert world.places("static") == ["n1"]
    world.vendors["n1"] = lists()
    await asked_for(world, "unknown")
    await world.restart()
    assert not world.places("static")
    assert world.places("made") == ["n1"]


async def test_what_a_list_alone_told_is_found_again_once_its_node_has_listed_after_the_hubs_restart(
    world: Placed,
) -> None:
    world.vendors["n1"] = lists("a")
    await asked_for(world, "a")
    assert world.places("a") == ["n1"]
    await world.restart()
    world.away = {"n1"}
    for _ in range(2):
        assert "n1 cannot be asked for a list" in await refused(world, "a")
    world.away = set()
    await asked_for(world, "a")
    assert (await world.ask("DeleteVolume", delete("a"))).node == "n1"


async def test_a_node_that_is_forgotten_while_it_lists_has_listed_nothing(world: Placed) -> None:
    answer = asyncio.get_running_loop().create_future()
    world.vendors["n1"] = lambda _: answer
    with pytest.raises(CallError, match="does not know which edge node"):
        await world.ask("DeleteVolume", delete("a"))
    await until(lambda: len(world.calls) == 2)  # both lists are asked for
    answer.set_result((listing("a"), OK))
    await world.placement.forget("n1")
    await world.placement.inventories.settled()
    assert not world.places("a")
    assert ("n1", "volume") not in world.book.lists


async def test_not_all_nodes_list_at_once(placed: Placing) -> None:
    world = placed(*(report(f"n{number:02}", capabilities=CAN) for number in range(50)))
    under_way, most = 0, 0

    async def slow(_: Question) -> tuple[bytes, Status]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return listing(), OK

    world.vendors = dict.fromkeys(world.reports, slow)
    await asked_for(world, "unknown")
    assert len(world.calls) == 50
    assert most <= 20


async def test_what_was_made_here_is_not_doubted_because_another_node_lists_it(world: Placed) -> None:
    """Storage that several nodes see: each lists what any of them made."""
    await world.has_made("n1", volume="shared")
    world.vendors = {"n1": lists("shared"), "n2": lists("shared")}
    await asked_for(world, "unknown")
    assert (await world.ask("DeleteVolume", delete("shared"))).node == "n1"
    assert (await world.ask("DeleteVolume", delete("shared"))).node == "n1"  # a retry, and n2 may have another such id


async def test_a_conflict_that_an_operator_has_settled_leaves_the_others_volume(world: Placed) -> None:
    world.vendors = {"n1": lists("lv"), "n2": lists("lv")}
    await asked_for(world, "lv")
    await world.ask("DeleteVolume", delete("lv"), mode="", wanted="n1")
    await world.restart()
    world.vendors["n1"] = lists()
    await asked_for(world, "lv")
    expand = csi.ControllerExpandVolumeRequest(volume_id="lv")
    assert (await world.ask("ControllerExpandVolume", expand)).node == "n2"
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n2"
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n2"


async def test_what_an_operator_deletes_where_the_nodes_own_list_lacks_it_leaves_the_others_volume(
    world: Placed,
) -> None:
    """n1 has it since it listed. By the lists the id was n2's all the time."""
    world.vendors["n2"] = lists("lv")
    await asked_for(world, "unknown")
    await world.ask("DeleteVolume", delete("lv"), mode="", wanted="n1")
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n2"
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n2"


async def test_what_an_operator_deletes_where_no_list_tells_of_is_not_deleted_on_the_node_that_lists_such_an_id(
    world: Placed,
) -> None:
    """The volume's own deletion was refused, for want of n1's list; so it was done by hand, and is asked for again."""
    world.vendors |= {"n1": lambda _: (None, Status(Code.INTERNAL)), "n2": lists("lv")}
    await asked_for(world, "lv")
    assert "the nodes' lists leave it open" in await refused(world, "lv")
    world.vendors["n1"] = lists()
    await world.ask("DeleteVolume", delete("lv"), mode="", wanted="n1")
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n1"


async def test_the_retry_of_a_deletion_does_not_go_to_the_other_node_of_that_id_once_its_volume_is_gone(
    world: Placed,
) -> None:
    """A duplicate of a stale informer's, or of the provisioner's next leader."""
    world.vendors = {"n1": lists("lv"), "n2": lists("lv")}
    await asked_for(world, "lv")
    world.placement.affinity = affinity("n1", handle="lv")
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n1"
    world.placement.affinity = affinity("n1", handle="another")
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n1"
    world.placement.affinity = affinity("n2", handle="lv")
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n2"


async def test_the_retry_of_a_deletion_does_not_go_to_a_node_that_lists_such_an_id_since(world: Placed) -> None:
    world.vendors["n1"] = lists("lv")
    await asked_for(world, "lv")
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n1"
    world.vendors = {"n1": lists(), "n2": lists("lv")}
    world.now += 1.0
    await asked_for(world, "unknown")
    assert world.places("lv") == ["n2"]
    assert (await world.ask("DeleteVolume", delete("lv"))).node == "n1"


async def test_what_two_nodes_list_and_nobody_made_here_is_a_conflict(world: Placed) -> None:
    world.vendors = {"n1": lists("lv"), "n2": lists("lv")}
    await asked_for(world, "lv")
    with pytest.raises(CallError, match="volume lv on several edge nodes"):
        await world.ask("DeleteVolume", delete("lv"))


# -------------------- what no node has --------------------


async def test_the_deletion_of_what_no_node_has_goes_to_the_first_node_once_all_lists_that_began_after_it_lack_it(
    world: Placed,
) -> None:
    usual, gates = world.vendors["n2"], [asyncio.get_running_loop().create_future() for _ in range(2)]
    answers = iter(gates)
    world.vendors["n2"] = lambda call: (
        next(answers, (listing(), OK)) if call.method.endswith("ListVolumes") else usual(call)
    )
    with pytest.raises(CallError, match="does not know which edge node"):
        await world.ask("ControllerGetVolume", csi.ControllerGetVolumeRequest(volume_id="x"))
    await until(lambda: len(world.calls) == 2)
    world.monotonic += 30.0
    with pytest.raises(CallError, match="does not know which edge node") as first:
        await world.ask("DeleteVolume", delete("x"))
    gates[0].set_result((listing(), OK))
    await world.placement.inventories.settled()
    for passing_s in (31.0, 1.0):  # the lists began before the first try, and then after it
        world.monotonic += passing_s
        with pytest.raises(CallError, match="does not know which edge node") as again:
            await world.ask("DeleteVolume", delete("x"))
        assert str(again.value) == str(first.value)  # docs/csi-contract.md#an-error-message-stays-the-same
        await until(lambda: len(world.calls) == 4)
    gates[1].set_result((listing(), OK))
    await world.placement.inventories.settled()
    said = Status(Code.FAILED_PRECONDITION, "the vendor's own words")
    world.vendors["n1"] = lambda call: (None, said) if call.method.endswith("DeleteVolume") else usual(call)
    asked = await world.ask("DeleteVolume", delete("x"))
    assert (asked.node, asked.status) == ("n1", said)
    world.vendors["n1"] = usual
    for passing_s in (1.0, 61.0):  # the retry of a call that was sent is a new call
        world.monotonic += passing_s
        await refused(world, "x")
    assert (await world.ask("DeleteVolume", delete("x"))).status.ok
    assert not world.book.knows(Thing(VOLUME, "x"))
    assert all(node == "n1" for node, method, _ in world.calls if method.endswith("DeleteVolume"))


async def test_a_deletion_of_what_no_node_has_waits_for_a_pinned_create_that_runs(world: Placed) -> None:
    answer, usual = asyncio.get_running_loop().create_future(), world.vendors["n2"]
    world.vendors["n2"] = lambda call: answer if call.method.endswith("CreateVolume") else usual(call)
    creating = asyncio.create_task(world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n2"))
    await until(lambda: len(world.calls) == 1)
    for _ in range(2):
        assert "does not know the outcome of a create on n2 yet" in await refused(world, "x")
    answer.set_result((None, Status(Code.INTERNAL)))
    await creating
    assert (await world.ask("DeleteVolume", delete("x"))).node == "n1"


async def test_a_deletion_that_comes_after_every_retry_or_after_many_others_begins_anew(
    world: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "_MOST_WAITING", 2)
    for volume in ("a", "b", "c", "x" * 1_025):
        await refused(world, volume)
    assert (await world.ask("DeleteVolume", delete("c"))).node == "n1"
    await refused(world, "a")  # nothing new is listed within a minute
    world.monotonic += 1_200.0
    await refused(world, "b")
    assert (await world.ask("DeleteVolume", delete("b"))).node == "n1"
    for _ in range(2):
        await refused(world, "x" * 1_025)


async def test_a_list_of_another_kind_or_of_before_the_node_was_forgotten_proves_nothing(placed: Placing) -> None:
    can = (*CAN, RPC.LIST_SNAPSHOTS)
    world = placed(report("n1", capabilities=can), report("n2", capabilities=can))
    no_list = (None, Status(Code.INTERNAL))
    world.vendors["n2"] = lambda call: no_list if call.method.endswith("ListSnapshots") else (b"", OK)
    snapshot = csi.DeleteSnapshotRequest(snapshot_id="x")
    for lists_volumes in (True, False):
        with pytest.raises(CallError, match="does not know which edge node"):
            await world.ask("DeleteSnapshot", snapshot)
        if lists_volumes:
            await refused(world, "x")
    await world.placement.forget("n2")
    await refused(world, "x")
    world.monotonic += 61.0
    world.vendors["n2"] = lambda _: (b"", OK)
    with pytest.raises(CallError, match="does not know which edge node"):
        await world.ask("DeleteSnapshot", snapshot)
    await world.placement.inventories.settled()
    assert (await world.ask("DeleteSnapshot", snapshot)).node == "n1"
