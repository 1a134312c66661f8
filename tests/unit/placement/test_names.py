"""Which node has the name of a create, and until when: whatever fails, and in whatever order."""

import asyncio
import contextlib
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cloud.nodes.question import Question
from cloud.proxy.driver_settings import Mode
from common.csi import csi_pb2 as csi
from common.errors import CallError, node_offline
from common.status import Code, Origin, Status
from tests.kit.placed_nodes import OK, Asked, Placed, Placing, Told, create, delete, on, report
from tests.kit.waiting import settle, until

GROUPS = "/csi.v1.GroupController/"


async def ended(world: Placed, code: Code, *terms: dict[str, str], origin: Origin = Origin.VENDOR, **how: str) -> Asked:
    """A create of pvc-1 that n1, or a hop on the way, ends with a code."""
    world.refuse("n1", code, origin)
    return await world.ask("CreateVolume", create("pvc-1", *terms), **how)


async def under_way(
    world: Placed, request: csi.CreateVolumeRequest | None = None, **how: str
) -> tuple[asyncio.Future[tuple[bytes | None, Status]], asyncio.Task[Asked]]:
    """A create that n1 has and does not answer before a test does. Returns the answer and the caller."""
    answer = asyncio.get_running_loop().create_future()
    world.vendors["n1"] = lambda _: answer
    asking = asyncio.create_task(world.ask("CreateVolume", request or create("pvc-1", on("n1")), **how))
    await until_sent(world, 1)
    return answer, asking


async def until_sent(world: Placed, count: int) -> None:
    """So many calls have been sent."""
    await until(lambda: len(world.calls) == count)


# -------------------- a name stays with its node --------------------


@pytest.mark.parametrize(
    ("code", "origin"),
    [
        (Code.CANCELLED, Origin.VENDOR),
        (Code.DEADLINE_EXCEEDED, Origin.VENDOR),
        (Code.UNAVAILABLE, Origin.VENDOR),
        (Code.ABORTED, Origin.VENDOR),
        (Code.ALREADY_EXISTS, Origin.VENDOR),
        (Code.UNIMPLEMENTED, Origin.EDGE),
    ],
)
async def test_a_name_stays_with_its_node_after_an_answer_that_is_not_the_vendors_final_word(
    world: Placed, code: Code, origin: Origin
) -> None:
    await ended(world, code, on("n1"), origin=origin)
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n1"


def unsent(_: Question) -> tuple[bytes | None, Status]:
    """The call does not leave the hub."""
    raise node_offline("n1", 0.0)


async def test_a_name_is_free_when_the_call_was_not_sent(world: Placed) -> None:
    world.vendors["n1"] = unsent
    with pytest.raises(CallError, match="is offline since"):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    assert not world.holder()


@pytest.mark.parametrize("code", [Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT, Code.INTERNAL, Code.UNKNOWN])
async def test_a_name_is_free_after_the_vendors_final_word(world: Placed, code: Code) -> None:
    asked = await ended(world, code, on("n1"))
    assert asked.status == Status(code, "no", Origin.VENDOR)
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n2"


async def test_a_name_stays_with_its_node_after_an_error_that_nobody_foresaw(
    world: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug, after the call was sent or before")

    monkeypatch.setattr("tests.kit.placed_nodes._NodeLink.start", broken)
    with pytest.raises(RuntimeError):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    monkeypatch.undo()
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n1"


async def test_a_final_word_says_nothing_of_an_attempt_that_was_sent_later(world: Placed) -> None:
    """The vendor may have ended the one before it began the other, which joins nothing then."""
    first_ends, first = await under_way(world)
    await ended(world, Code.UNAVAILABLE, on("n1"))
    first_ends.set_result((None, Status(Code.INTERNAL)))
    await first
    assert world.holder() == "n1"


async def test_a_final_word_tells_of_an_attempt_that_was_sent_before_also_if_that_is_given_up_later(
    world: Placed,
) -> None:
    _, first = await under_way(world)
    await ended(world, Code.INTERNAL, on("n1"))
    assert world.holder() == "n1"  # as long as it is under way
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    assert not world.holder()


@pytest.mark.parametrize("answer", [b"", csi.CreateVolumeResponse(volume=csi.Volume()).SerializeToString()])
async def test_a_success_that_names_no_volume_keeps_the_name_where_it_is(world: Placed, answer: bytes) -> None:
    world.vendors["n1"] = lambda _: (answer, OK)
    assert (await world.ask("CreateVolume", create("pvc-1", on("n1")))).status.ok
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n1"


async def test_a_deletion_that_failed_leaves_the_volume_where_it_is(world: Placed) -> None:
    await world.has_made("n1")
    world.refuse("n1", Code.INTERNAL)
    await world.ask("DeleteVolume", delete())
    assert (world.holder(), world.places()) == ("n1", ["n1"])


async def test_a_success_that_the_hub_cannot_read_keeps_the_name_where_it_is(world: Placed) -> None:
    world.vendors["n1"] = lambda _: (b"\xff", OK)
    with pytest.raises(CallError, match="with a message that the hub cannot read"):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    assert world.holder() == "n1"


async def test_a_volume_that_is_deleted_while_its_name_is_asked_for_again_leaves_the_name_where_it_is(
    world: Placed,
) -> None:
    await world.has_made("n1")
    answer = asyncio.get_running_loop().create_future()
    world.vendors["n1"] = lambda call: answer if call.method.endswith("CreateVolume") else (b"", OK)
    again = asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n1"))))
    await until_sent(world, 2)
    await world.ask("DeleteVolume", delete())
    assert world.holder() == "n1"
    answer.set_result((None, Status(Code.UNAVAILABLE)))
    await again
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n1"


async def test_a_name_that_was_asked_for_with_other_arguments_is_free_once_its_volume_is_gone(
    world: Placed,
) -> None:
    await world.has_made("n1")
    await ended(world, Code.ALREADY_EXISTS, on("n1"))
    world.make("n1")
    await world.ask("DeleteVolume", delete())
    assert not world.holder()


async def test_after_a_restart_a_call_that_was_not_sent_frees_no_name(world: Placed) -> None:
    await ended(world, Code.UNAVAILABLE, on("n1"))
    await world.restart()
    world.vendors["n1"] = unsent
    with pytest.raises(CallError, match="is offline since"):
        await world.ask("CreateVolume", create("pvc-1", on("n2")))
    assert world.holder() == "n1"


async def test_of_what_was_made_under_one_name_the_last_one_frees_it(world: Placed) -> None:
    await world.has_made("n1")
    snapshots = [csi.Snapshot(snapshot_id="s-1"), csi.Snapshot(snapshot_id="s-2")]
    group = csi.VolumeGroupSnapshot(group_snapshot_id="g", snapshots=snapshots)
    answer = csi.CreateVolumeGroupSnapshotResponse(group_snapshot=group).SerializeToString()
    world.vendors["n1"] = lambda _: (answer, OK)
    asked = csi.CreateVolumeGroupSnapshotRequest(name="group", source_volume_ids=["vol-1"])
    await world.ask(GROUPS + "CreateVolumeGroupSnapshot", asked)
    world.vendors["n1"] = lambda _: (b"", OK)
    await world.ask("DeleteSnapshot", csi.DeleteSnapshotRequest(snapshot_id="s-1"))
    assert world.holder("CreateVolumeGroupSnapshot group") == "n1"
    gone = csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id="g", snapshot_ids=["s-1", "s-2"])
    assert (await world.ask(GROUPS + "DeleteVolumeGroupSnapshot", gone)).node == "n1"
    assert not world.holder("CreateVolumeGroupSnapshot group")


async def test_a_caller_who_leaves_before_anything_was_sent_frees_the_name(world: Placed) -> None:
    asking = asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n1"))))
    await until(world.holder)
    asking.cancel()
    await asyncio.wait([asking])
    assert not world.calls
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n2"
    await world.restart()
    assert world.holder() == "n2"


async def test_a_caller_who_leaves_in_the_turn_in_which_the_call_came_frees_the_name(world: Placed) -> None:
    world.send("CreateVolume", create("pvc-1", on("n1"))).cancel()
    assert not world.holder()
    await settle()
    assert (world.calls, world.book.claims) == ([], {})


async def test_a_caller_who_leaves_when_the_claim_is_written_and_nothing_is_sent_frees_the_name(
    world: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, written = world.store.record_open, list[Any]()

    def not_told(*args: Any) -> asyncio.Future[None]:
        written.append(claim(*args))
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(world.store, "record_open", not_told)
    asking = asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n1"))))
    await settle()
    await written[0]
    assert world.holder() == "n1"
    asking.cancel()
    await asyncio.wait([asking])
    await world.restart()
    assert not world.calls
    assert not world.holder()


async def test_a_caller_who_leaves_while_a_success_is_written_down_leaves_it_written(world: Placed) -> None:
    answer, asking = await under_way(world)
    with world.disk.slow():
        answer.set_result((csi.CreateVolumeResponse(volume=csi.Volume(volume_id="vol-1")).SerializeToString(), OK))
        await settle()
        asking.cancel()
        await asyncio.wait([asking])
        assert not world.disk.has("vol-1")
    await until(lambda: world.places() == ["n1"])
    await settle()
    await world.restart()
    assert world.places() == ["n1"]
    await world.ask("DeleteVolume", delete())
    assert not world.holder()


async def test_a_claim_whose_caller_left_before_its_turn_is_not_written(world: Placed) -> None:
    with world.disk.slow():
        other = asyncio.create_task(world.ask("CreateVolume", create("pvc-2", on("n1"))))
        await until(lambda: not world.records._writer._waiting)  # its thread has it
        await settle()
        asking = asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n1"))))
        await settle()
        asking.cancel()
        await asyncio.wait([asking])
    await other
    await world.restart()
    assert not world.holder()


# -------------------- a node that refuses what was asked of another one --------------------


@pytest.fixture
async def zones(placed: Placing) -> Placed:
    """Two nodes whose vendor has a topology of its own."""
    return placed(report("n1", segments={"zone": "a"}), report("n2", segments={"zone": "b"}))


@pytest.mark.parametrize("code", [Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT])
async def test_a_final_word_about_another_place_is_not_told_and_leaves_a_doubt_as_it_is(
    zones: Placed, code: Code
) -> None:
    """n1 may have made it; that it makes nothing in zone b, where the pod is wanted now, says nothing of that.

    Who is told finally that it failed forgets what may be there, so it must not be told before n1 has answered for its
    own zone.
    """
    await ended(zones, Code.DEADLINE_EXCEEDED, {"zone": "a"}, origin=Origin.EDGE)
    zones.refuse("n1", code)
    for _ in range(2):
        with pytest.raises(
            CallError, match=r"edge node n1 may have carried out .* already, .* csi-bridge call --node n1"
        ):
            await zones.ask("CreateVolume", create("pvc-1", {"zone": "b"}))
    assert [node for node, _, _ in zones.calls] == ["n1"] * 3
    asked = await zones.ask("CreateVolume", create("pvc-1", {"zone": "b"}, {"zone": "a"}))
    assert (asked.node, asked.status) == ("n1", Status(code, "no", Origin.VENDOR))
    assert (await zones.ask("CreateVolume", create("pvc-1", {"zone": "b"}))).node == "n2"


async def test_a_final_word_about_another_place_is_not_told_while_the_node_may_be_making_it(zones: Placed) -> None:
    answer, first = await under_way(zones, create("pvc-1", {"zone": "a"}))
    zones.refuse("n1", Code.RESOURCE_EXHAUSTED)
    with pytest.raises(CallError, match="may have carried out"):
        await zones.ask("CreateVolume", create("pvc-1", {"zone": "b"}))
    answer.set_result((None, Status(Code.INTERNAL)))
    assert (await first).status.code == Code.INTERNAL
    assert (await zones.ask("CreateVolume", create("pvc-1", {"zone": "b"}))).node == "n2"


async def test_of_a_volume_that_is_known_the_vendors_word_about_another_place_is_told(zones: Placed) -> None:
    """The scheduler may choose again, and come upon the right node. Nothing is forgotten: the book has it."""
    await zones.has_made("n1", {"zone": "a"})
    asked = await ended(zones, Code.RESOURCE_EXHAUSTED, {"zone": "b"})
    assert (asked.node, asked.status.code) == ("n1", Code.RESOURCE_EXHAUSTED)
    assert zones.places() == ["n1"]


async def test_an_operator_lets_a_node_answer_for_its_own_place(zones: Placed) -> None:
    await ended(zones, Code.DEADLINE_EXCEEDED, {"zone": "a"}, origin=Origin.EDGE)
    asked = await ended(zones, Code.RESOURCE_EXHAUSTED, {"zone": "b"}, mode="", wanted="n1")
    assert (asked.status.code, zones.holder()) == (Code.RESOURCE_EXHAUSTED, "n1")
    await zones.ask("CreateVolume", create("pvc-1"), mode="", wanted="n1")
    assert not zones.holder()


async def test_what_the_vendor_says_of_a_place_is_told_where_the_caller_chose_the_node(zones: Placed) -> None:
    """Its controller may serve every zone, and what it refuses is what was asked the first time."""
    await ended(zones, Code.DEADLINE_EXCEEDED, {"zone": "b"}, origin=Origin.EDGE, mode=Mode.PINNED, wanted="n1")
    asked = await ended(zones, Code.INVALID_ARGUMENT, {"zone": "b"}, mode=Mode.PINNED, wanted="n1")
    assert asked.status == Status(Code.INVALID_ARGUMENT, "no", Origin.VENDOR)


async def test_what_a_vendor_says_of_a_place_is_told_where_nothing_is_known_of_its_own(placed: Placing) -> None:
    """A vendor whose controller is a socket of its own does not answer NodeGetInfo there."""
    world = placed(report("n1", segments={}))
    await ended(world, Code.DEADLINE_EXCEEDED, {"zone": "a"}, origin=Origin.EDGE)
    asked = await ended(world, Code.INVALID_ARGUMENT, {"zone": "a"})
    assert asked.status == Status(Code.INVALID_ARGUMENT, "no", Origin.VENDOR)


async def test_a_final_word_of_a_vendor_that_is_told_no_place_ends_a_doubt_wherever_the_pod_is_wanted(
    world: Placed,
) -> None:
    await ended(world, Code.DEADLINE_EXCEEDED, on("n1"))
    await ended(world, Code.INTERNAL, on("n2"))
    assert not world.holder()


# -------------------- names of calls that are pinned to a node --------------------


@pytest.mark.parametrize(("mode", "wanted"), [(Mode.PINNED, "n2"), (Mode.AUTO, "n2"), ("", "n2")])
async def test_what_may_be_on_one_node_is_not_made_on_another_that_is_named(
    world: Placed, mode: str, wanted: str
) -> None:
    await ended(world, Code.DEADLINE_EXCEEDED, on("n1"))
    with pytest.raises(
        CallError, match=r"edge node n1 may have carried out CreateVolume pvc-1 .* already, and this call is for n2"
    ):
        await world.ask("CreateVolume", create("pvc-1"), mode=mode, wanted=wanted)
    await ended(world, Code.INTERNAL, mode=mode, wanted="n1")
    assert (await world.ask("CreateVolume", create("pvc-1"), mode=mode, wanted="n2")).node == "n2"


async def test_a_doubt_stays_with_its_node_when_auto_changes_its_mind(placed: Placing) -> None:
    """The vendor gets a topology of its own, and a second node comes."""
    world = placed(report("n1"))
    await ended(world, Code.DEADLINE_EXCEEDED, origin=Origin.EDGE, mode=Mode.AUTO)
    world.tell(*(report(node, segments={"zone": node}) for node in ("n1", "n2")))
    assert (await world.ask("CreateVolume", create("pvc-1", {"zone": "n2"}), mode=Mode.AUTO)).node == "n1"


async def test_a_pinned_success_that_nobody_took_stays_with_its_node_until_it_is_deleted(world: Placed) -> None:
    world.make("n1")
    with world.full_disk():
        await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1", delivered=False)
        await asyncio.sleep(0)
    assert (world.places(), world.holder()) == (["n1"], "n1")
    await world.ask("CreateVolume", create("pvc-2", on("n2")))  # the next write
    await world.restart()
    assert (world.places(), world.holder()) == (["n1"], "n1")
    await world.ask("DeleteVolume", delete(), mode=Mode.PINNED, wanted="n1")
    assert (world.places(), world.holder()) == ([], "")


@pytest.mark.parametrize("overlap", [True, False])
async def test_a_pinned_success_that_nobody_took_outlives_a_final_word_to_a_retry(world: Placed, overlap: bool) -> None:
    """What was made is known: no error takes that back, whether it is heard before or after the success is given up."""
    world.make("n1")
    first = await begun(world)
    if not overlap:
        first.released(False)
    await ended(world, Code.INTERNAL, mode=Mode.PINNED, wanted="n1")
    if overlap:
        first.released(False)
    assert (world.places(), world.holder()) == (["n1"], "n1")


@pytest.mark.parametrize("knows_others", [False, True])
@pytest.mark.parametrize(("how", "holder"), [("deleted", "n1"), ("forgotten", "")])
async def test_what_was_deleted_or_forgotten_before_a_success_was_given_up_does_not_come_back(
    world: Placed, how: str, holder: str, knows_others: bool
) -> None:
    """The caller had the answer, and what says so was lost with its link. A create before a deletion stays in doubt."""
    if knows_others:  # the book has something of the node
        world.make("n1", "vol-2")
        await world.ask("CreateVolume", create("pvc-2"), mode=Mode.PINNED, wanted="n1", delivered=False)
    world.make("n1")
    first = await begun(world)
    if how == "deleted":
        world.vendors["n1"] = lambda _: (b"", Status(Code.OK, origin=Origin.VENDOR))
        await world.ask("DeleteVolume", delete(), mode=Mode.PINNED, wanted="n1")
    else:
        await world.placement.forget("n1")
    first.released(False)
    assert (world.places(), world.holder()) == ([], holder)


@pytest.mark.parametrize("later_first", [True, False])
async def test_of_two_pinned_successes_of_one_name_that_were_taken_nothing_is_kept(
    world: Placed, later_first: bool
) -> None:
    world.make("n1")
    replies = [await begun(world), await begun(world)]
    assert (world.places(), world.holder()) == ([], "n1")
    for reply in reversed(replies) if later_first else replies:
        reply.released(True)
    assert (world.places(), world.holder()) == ([], "")


async def begun(world: Placed) -> Told:
    """A pinned create that has succeeded, and whose answer nobody has taken yet."""
    told = world.send("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    assert (await told.result())[1]
    return told


async def test_a_pinned_success_that_could_not_be_passed_on_is_one_that_nobody_took(world: Placed) -> None:
    """The caller's own limits may refuse the answer."""
    world.make("n1")
    reply = await begun(world)
    reply.cancel()
    assert world.places() == ["n1"]


async def test_a_pinned_success_with_a_huge_id_is_refused_and_not_kept(world: Placed) -> None:
    world.make("n1", "v" * 2_000)
    with pytest.raises(CallError, match="ids of 2000 characters"):
        await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    assert (world.holder(), (await world.placement.claims.ledger()).made) == ("n1", {})


async def test_a_pinned_success_that_names_no_volume_and_that_nobody_took_is_a_doubt(world: Placed) -> None:
    await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1", delivered=False)
    assert world.holder() == "n1"
    world.make("n1")
    await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    assert not world.holder()


async def test_a_pinned_create_under_way_when_the_hub_stops_stays_with_its_node(world: Placed) -> None:
    reply = world.send("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    assert world.holder() == "n1"
    reply.cancel()
    await world.restart()
    assert world.holder() == "n1"


async def test_a_pinned_create_needs_no_disk(world: Placed) -> None:
    world.make("n1")
    with world.full_disk():
        assert (await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")).status.ok
        world.refuse("n1", Code.UNAVAILABLE)
        await world.ask("CreateVolume", create("pvc-2"), mode=Mode.PINNED, wanted="n1")
        await asyncio.sleep(0)
    await world.ask("CreateVolume", create("pvc-3", on("n2")))
    await world.restart()
    assert world.holder("pvc-2") == "n1"


async def test_a_doubt_that_the_disk_refused_is_written_once_it_has_room(
    placed: Placing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for that write, and no other call brings the next one."""
    world = placed(report("n1"), retry_s=0.001)
    world.refuse("n1", Code.DEADLINE_EXCEEDED)
    caplog.set_level("INFO")
    failed = f"cannot write {tmp_path}/state.db; it is tried again: database or disk is full"
    with world.full_disk():
        await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
        await until(lambda: failed in caplog.messages)
    await until(lambda: f"{tmp_path}/state.db is written again, and nothing is missing in it" in caplog.messages)
    await world.restart()
    assert world.holder() == "n1"


async def test_a_doubt_that_the_disk_refused_does_not_stand_for_the_claim_of_a_create_that_the_hub_places(
    world: Placed,
) -> None:
    world.refuse("n1", Code.DEADLINE_EXCEEDED)
    with world.full_disk():
        await world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
        with pytest.raises(CallError, match="disk is full"):
            await world.ask("CreateVolume", create("pvc-1", on("n1")))
        assert len(world.calls) == 1
        assert world.holder() == "n1"
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n1"


async def test_a_doubt_about_a_pinned_create_is_written_though_the_disk_once_refused_its_name(
    world: Placed,
) -> None:
    answer, asking = await under_way(world, create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    with world.full_disk(), pytest.raises(CallError) as refused:
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    assert re.fullmatch(
        r"the hub cannot record which edge node this is on \(.*state\.db: .*disk is full.*\); "
        r"retry once the hub can write .*state\.db again: make room on the disk or repair it",
        str(refused.value),
    )
    answer.set_result((None, Status(Code.UNAVAILABLE)))
    await asking
    await world.restart()
    assert world.holder() == "n1"


async def test_a_pinned_deletion_ends_what_was_made_by_place_and_writes_nothing_of_what_was_not(
    world: Placed,
) -> None:
    await world.has_made("n1")
    await world.ask("DeleteVolume", delete(), mode=Mode.PINNED, wanted="n1")
    assert (world.places(), world.holder()) == ([], "")
    with world.full_disk():
        assert (await world.ask("DeleteVolume", delete("other"), mode=Mode.PINNED, wanted="n1")).status.ok


# -------------------- what cannot be written down is not begun, and not told --------------------


async def test_nothing_is_sent_before_the_name_is_on_the_disk(world: Placed) -> None:
    with world.full_disk(), pytest.raises(CallError, match="disk is full"):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    assert not world.calls
    assert not world.holder()


async def test_a_success_that_cannot_be_written_down_is_not_told_and_stays_with_its_node(world: Placed) -> None:
    with ExitStack() as stack:

        def answer(_: Question) -> tuple[bytes | None, Status]:
            stack.enter_context(world.full_disk())
            return csi.CreateVolumeResponse(volume=csi.Volume(volume_id="vol-1")).SerializeToString(), OK

        world.vendors["n1"] = answer
        with pytest.raises(CallError, match="cannot record which edge node"):
            await world.ask("CreateVolume", create("pvc-1", on("n1")))
    await world.restart()
    world.make("n1")
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n1"


async def test_a_claim_that_cannot_be_written_takes_away_nobody_elses(world: Placed) -> None:
    with world.full_disk():
        with world.disk.slow():
            asking = [asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n1")))) for _ in range(2)]
            await settle()
            asking.append(asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n1")))))
            await settle()
        await asyncio.wait(asking[:1])
    asking.append(asyncio.create_task(world.ask("CreateVolume", create("pvc-1", on("n2")))))
    await asyncio.gather(*asking, return_exceptions=True)
    assert len({node for node, _, _ in world.calls}) == 1


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_deletion_that_cannot_be_written_down_is_not_told_and_its_retry_frees_the_name(
    world: Placed, *, is_killed: bool
) -> None:
    await world.has_made("n1")
    with world.full_disk(), pytest.raises(CallError, match="cannot record which edge node"):
        await world.ask("DeleteVolume", delete())
    if is_killed:
        await world.restart()
        assert world.places() == ["n1"]
    await world.ask("DeleteVolume", delete())
    await world.restart()
    assert not world.holder()
    assert not world.places()


async def test_a_name_that_the_disk_believes_to_be_taken_is_given_away_all_the_same(world: Placed) -> None:
    world.make("n1")

    def refuse(_: Question) -> tuple[bytes | None, Status]:
        stack.enter_context(world.full_disk())
        return None, Status(Code.INTERNAL)

    world.vendors["n1"] = refuse
    # The error is told once the name is free.
    with ExitStack() as stack, pytest.raises(CallError, match="cannot record which edge node"):
        await world.ask("CreateVolume", create("pvc-1", on("n1")))
    assert (await world.ask("CreateVolume", create("pvc-1", on("n2")))).node == "n2"
    await world.restart()
    assert world.holder() == "n2"


async def test_what_is_gone_is_remembered_for_an_hour_and_no_longer(world: Placed) -> None:
    for node, volume in (("n1", "vol-1"), ("n2", "vol-2")):
        world.make(node, volume)
        await world.ask("CreateVolume", create(volume, on(node)))
        await world.ask("DeleteVolume", delete(volume))
        world.now += 3_000.0
    assert (await world.ask("DeleteVolume", delete("vol-2"))).node == "n2"
    await world.restart()
    world.away = {"n1", "n2", "n3"}
    with pytest.raises(CallError, match="is offline since"):
        await world.ask("DeleteVolume", delete("vol-2"))
    with pytest.raises(CallError, match="does not know which edge node"):
        await world.ask("DeleteVolume", delete("vol-1"))


async def test_an_id_that_is_deleted_again_and_again_is_remembered_once(world: Placed) -> None:
    await world.has_made("n1")
    for _ in range(300):
        await world.ask("DeleteVolume", delete())
    assert len(world.book._deletion_heap) < 200


async def test_no_secret_reaches_the_disk(world: Placed, tmp_path: Path) -> None:
    world.make("n1")
    request = create("pvc-1", on("n1"))
    request.secrets["password"] = "open sesame"
    await world.ask("CreateVolume", request)
    await world.ask("DeleteVolume", csi.DeleteVolumeRequest(volume_id="vol-1", secrets={"password": "open sesame"}))
    files = [file.read_bytes() for file in tmp_path.iterdir()]  # noqa: ASYNC240  # a test
    assert any(b"vol-1" in file for file in files)
    assert not any(b"sesame" in file for file in files)


async def test_a_fault_of_the_store_is_logged_although_the_caller_has_left(
    world: Placed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await world.has_made("n1")
    end = asyncio.get_running_loop().create_future()

    def record_deleted(*_: object, **__: object) -> asyncio.Future[None]:
        return end

    monkeypatch.setattr(world.store, "record_deleted", record_deleted)
    deleting = asyncio.create_task(world.ask("DeleteVolume", delete()))
    await settle()
    deleting.cancel()
    await asyncio.wait([deleting])
    end.set_exception(RuntimeError("the store has a bug"))
    await settle()
    (message,) = caplog.messages
    assert message.startswith("the outcome of /csi.v1.Controller/DeleteVolume was not recorded")
