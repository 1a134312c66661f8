"""Shared placement: one elected node serves a driver whose storage every node reaches, and nothing runs twice."""

import asyncio
from typing import Any

import pytest

from cloud.claims.election import ElectionRules
from cloud.nodes.question import Question
from cloud.proxy.driver_settings import Mode
from cloud.sources.source import Item, Source
from common.csi import csi_pb2 as csi
from common.errors import CallError, LinkLost
from common.objects.objects import Ref, Stamp
from common.status import Code, Origin, Status
from tests.kit.placed_nodes import DRIVER, LEASE_S, OK, Asked, Placed, Placing, create, delete, report
from tests.kit.waiting import until

FIRST = 1_000_000  # the epoch of the first election: its time

BOUND_S = LEASE_S * 1.01 + 5.0  # after this time away, a node has surely stopped a create

CREATED = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="vol-1")).SerializeToString()


@pytest.fixture
async def world(placed: Placing) -> Placed:
    world = placed(*(report(node, serves=True) for node in ("n1", "n2", "n3")))
    world.placement.elections.want(DRIVER)
    await world.placement.elections.look()
    return world


async def ask(world: Placed, method: str, request: Any = b"", *, mode: str = Mode.SHARED, **how: Any) -> Asked:
    return await world.ask(method, request, mode=mode, **how)


def publish(volume: str = "vol-1", node_id: str = "a") -> csi.ControllerPublishVolumeRequest:
    return csi.ControllerPublishVolumeRequest(volume_id=volume, node_id=node_id)


def unpublish(volume: str = "vol-1", node_id: str = "a") -> csi.ControllerUnpublishVolumeRequest:
    return csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=node_id)


def loses(call: Question) -> tuple[bytes | None, Status]:
    """The link is lost with the call under way."""
    raise LinkLost("edge node n1")


async def lost(world: Placed, method: str, request: Any) -> None:
    """A call at n1 whose link is lost."""
    world.vendors["n1"] = loses
    with pytest.raises(LinkLost):
        await ask(world, method, request)


def answers(code: int, origin: str = Origin.VENDOR) -> Any:
    return lambda _: (None, Status(code, "no", origin))


def makes(_call: Question) -> tuple[bytes | None, Status]:
    return CREATED, OK


async def leave(world: Placed, node: str, *, for_s: float = 15.0) -> None:
    """A node leaves, and the hub looks again after some time."""
    world.away.add(node)
    world.left_at[node] = world.monotonic
    await later(world, for_s)


async def later(world: Placed, seconds: float) -> None:
    world.monotonic += seconds
    world.now += seconds
    await world.placement.elections.look()


def elected(world: Placed) -> tuple[str, int]:
    election = world.placement.elections.drivers.get(DRIVER)
    return election.elected.node, election.elected.epoch


def held(world: Placed, key: str) -> list[str]:
    return sorted({claim.node for claim in world.book.open_about(key)})


# -------------------- who serves --------------------


async def test_every_call_goes_to_the_elected_node_with_the_epoch(world: Placed) -> None:
    world.vendors["n1"] = makes
    for method, request in (
        ("CreateVolume", create()),
        ("ControllerPublishVolume", publish()),
        ("ListVolumes", csi.ListVolumesRequest()),
        ("GetCapacity", csi.GetCapacityRequest()),
        ("ControllerGetCapabilities", b""),
    ):
        assert (await ask(world, method, request)).node == "n1"
    assert world.epochs == [FIRST] * 5
    assert len(world.placement.claims._recent._answers) == 1  # the others made nothing
    assert world.placement.report(DRIVER, "", Mode.SHARED).node == "n1"


async def test_calls_of_drivers_without_an_election_have_no_epoch(placed: Placing) -> None:
    world = placed(report("n1", serves=True))
    await ask(world, "DeleteVolume", delete(), mode=Mode.PINNED, wanted="n1")
    assert world.epochs == [0]


@pytest.mark.parametrize("mode", [Mode.PINNED, Mode.AUTO, ""])
async def test_another_placement_of_the_driver_runs_nothing_beside_the_elected_node(world: Placed, mode: str) -> None:
    await lost(world, "DeleteVolume", delete())
    with pytest.raises(CallError, match="has an open outcome on"):
        await ask(world, "DeleteVolume", delete(), mode=mode, wanted="n2")
    world.vendors.clear()
    assert (await ask(world, "ControllerPublishVolume", publish("vol-2"), mode=mode, wanted="n2")).node == "n2"
    assert (await ask(world, "ControllerPublishVolume", publish("vol-3"), mode=mode)).node == "n1"


async def test_an_operators_call_after_a_restart_of_the_hub_knows_what_is_open(world: Placed) -> None:
    await lost(world, "DeleteVolume", delete())
    await world.restart()
    await world.placement.elections.look()
    with pytest.raises(CallError, match="no edge node serves driver"):  # not for long
        await ask(world, "DeleteVolume", delete(), mode="", wanted="n2")
    await world.placement.elections.look()
    with pytest.raises(CallError, match="has an open outcome on"):
        await ask(world, "DeleteVolume", delete(), mode="", wanted="n2")


def lists(call: Question) -> tuple[bytes | None, Status]:
    """A driver with two pages of volumes."""
    token = csi.ListVolumesRequest.FromString(call.request).starting_token
    entry = csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id=f"page {token or 'first'}"))
    assert token in ("", "7")
    return csi.ListVolumesResponse(entries=[entry], next_token="" if token else "7").SerializeToString(), OK


async def page(world: Placed, token: str = "", **how: Any) -> csi.ListVolumesResponse:
    asked = await ask(world, "ListVolumes", csi.ListVolumesRequest(max_entries=1, starting_token=token), **how)
    return csi.ListVolumesResponse.FromString(asked.body)


async def test_a_list_goes_on_at_its_node_and_is_aborted_after_a_takeover(world: Placed) -> None:
    world.vendors["n1"] = world.vendors["n2"] = lists
    token = (await page(world)).next_token
    last = await page(world, token)
    assert ([entry.volume.volume_id for entry in last.entries], last.next_token) == (["page 7"], "")
    assert (await page(world, token, mode="", wanted="n1")).entries == last.entries
    await leave(world, "n1")
    with pytest.raises(CallError, match="is for a list of edge node n1, and another one serves; begin again"):
        await page(world, token)
    token = (await page(world)).next_token
    assert (await page(world, token)).entries == last.entries


async def test_a_list_goes_on_after_a_restart_of_the_hub(world: Placed) -> None:
    world.vendors["n1"] = lists
    token = (await page(world)).next_token
    await world.restart()
    world.placement.elections.want(DRIVER)
    await world.placement.elections.look()
    assert len((await page(world, token)).entries) == 1


@pytest.mark.parametrize("token", ["7", "csi-bridge-at:", "csi-bridge-at:n1"])
async def test_a_token_that_no_hub_made_is_for_the_driver_to_judge(world: Placed, token: str) -> None:
    world.vendors["n1"] = answers(Code.ABORTED)
    asked = await ask(world, "ListVolumes", csi.ListVolumesRequest(starting_token=token))
    assert asked.status.code == Code.ABORTED


async def test_a_list_that_cannot_be_read_passes_as_it_is(world: Placed) -> None:
    world.vendors["n1"] = lambda _: (b"\xff", OK)
    assert (await ask(world, "ListVolumes", csi.ListVolumesRequest())).body == b"\xff"


async def test_without_an_elected_node_every_call_is_refused_with_the_reason_of_each_node(placed: Placing) -> None:
    world = placed(report("n1", serves=True), report("n2"))
    with pytest.raises(CallError, match="edge node n1 is not elected yet"):
        await ask(world, "CreateVolume", create())
    world.unfit["n1"] = "drains"
    with pytest.raises(CallError, match=r"n1 drains; edge node n2 has the driver without a controller"):
        await ask(world, "ListVolumes", csi.ListVolumesRequest())
    await world.placement.elections.look()
    with pytest.raises(CallError, match="no edge node serves driver"):
        await ask(world, "CreateVolume", create())


async def test_an_epoch_grows_although_the_clock_was_set_back_or_the_store_was_lost(
    world: Placed, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world.now -= 500.0
    await leave(world, "n1")
    assert elected(world) == ("n2", FIRST + 1)
    world.now += 600.0
    empty = Placed(tmp_path_factory.mktemp("empty"), report("n1", serves=True))
    empty.now = world.now
    empty.placement.elections.want(DRIVER)
    await empty.placement.elections.look()
    assert elected(empty)[1] > FIRST + 1
    await empty.close()


async def test_after_a_loss_nothing_is_changed_until_an_operator_trusts_it(world: Placed) -> None:
    world.lost = "state.db was gone"
    with pytest.raises(CallError, match=r"state\.db was gone"):
        await ask(world, "ControllerPublishVolume", publish())
    assert (await ask(world, "ListVolumes", csi.ListVolumesRequest())).node == "n1"
    world.lost = ""
    assert (await ask(world, "ControllerPublishVolume", publish())).node == "n1"


def labelled(node: str, **labels: str) -> dict[Ref, Item]:
    """A Node with labels."""
    return {Ref("Node", "", node): Item(Stamp(node, str(labels)), {"metadata": {"name": node, "labels": labels}})}


async def test_a_label_of_its_node_makes_a_node_a_candidate_and_its_loss_ends_that_at_once(placed: Placing) -> None:
    objects = Source()
    world = placed(*(report(node, serves=True) for node in ("a", "b", "c")), source=objects)
    world.rules = ElectionRules(candidates=("label:storage=nfs",))
    world.placement.elections.want(DRIVER)
    await later(world, 1.0)
    election = world.placement.elections.drivers.get(DRIVER)
    assert election.elected is None
    assert "has labels that the hub has not read" in election.trouble()
    objects.update({**labelled("a"), **labelled("b", storage="nfs"), **labelled("c", storage="nfs")}, ready=True)
    await later(world, 1.0)
    assert elected(world)[0] == "b"
    told = election.describe()
    assert (told.standby, told.unfit, told.lease_s) == (["c"], {}, LEASE_S)
    objects.is_ready = False  # as after a restart of the hub: the elected node goes on
    await later(world, 60.0)
    assert elected(world)[0] == "b"
    assert election.is_served()
    objects.update(labelled("b"), ready=True)
    await later(world, 1.0)
    assert elected(world)[0] == "c"
    assert election.describe().unfit == {"a": "is not among --candidates", "b": "is not among --candidates"}


async def test_each_election_is_announced_and_a_new_epoch_for_the_same_node_is_none(world: Placed) -> None:
    told: list[str] = []

    def listen() -> None:
        world.placement.elections.announce = lambda driver, it: told.append(f"{driver} {it.node}: {it.why}")

    listen()
    await leave(world, "n1")
    assert told == [f"{DRIVER} n2: edge node n1 was away for 15 s"]
    world.away.clear()
    await world.restart()
    listen()
    world.placement.elections.want(DRIVER)
    await later(world, 2.0)
    assert elected(world) == ("n2", FIRST + 17)
    assert len(told) == 1


async def test_an_election_that_cannot_be_recorded_does_not_count(world: Placed) -> None:
    world.disk.fill()
    await leave(world, "n1")
    assert elected(world) == ("n1", FIRST)
    world.disk.empty()
    await later(world, 1.0)
    assert elected(world)[0] == "n2"


# -------------------- nothing runs twice --------------------


async def test_a_call_is_claimed_before_it_is_sent_and_free_after_a_final_answer(world: Placed) -> None:
    at_vendor: list[list[str]] = []

    def vendor(_call: Question) -> tuple[bytes | None, Status]:
        at_vendor.append(held(world, "DeleteVolume vol-1"))
        return b"", OK

    world.vendors["n1"] = vendor
    await ask(world, "DeleteVolume", delete())
    assert at_vendor == [["n1"]]
    assert held(world, "DeleteVolume vol-1") == []


@pytest.mark.parametrize("status", [OK, Status(Code.INTERNAL, "no", Origin.VENDOR)])
async def test_a_final_answer_that_cannot_be_written_down_is_not_told_and_its_retry_frees_the_key(
    world: Placed, status: Status
) -> None:
    def vendor(_call: Question) -> tuple[bytes | None, Status]:
        world.disk.fill()
        return b"" if status.ok else None, status

    world.vendors["n1"] = vendor
    with pytest.raises(CallError, match="cannot record which edge node"):
        await ask(world, "DeleteVolume", delete())
    world.disk.empty()
    world.vendors["n1"] = lambda _call: (b"", OK)
    await ask(world, "DeleteVolume", delete())
    await world.restart()
    assert held(world, "DeleteVolume vol-1") == []


async def test_an_open_deletion_blocks_its_volume_however_long_and_no_other_one(world: Placed) -> None:
    await lost(world, "DeleteVolume", delete())
    await leave(world, "n1", for_s=30 * 86_400.0)
    with pytest.raises(CallError, match=r"DeleteVolume vol-1 .* on edge node n1") as caught:
        await ask(world, "DeleteVolume", delete())
    assert "csi-bridge forget n1" in str(caught.value)
    with pytest.raises(CallError, match="has an open outcome on"):
        await ask(world, "ControllerPublishVolume", publish())
    assert (await ask(world, "DeleteVolume", delete("vol-2"))).node == "n2"


async def test_an_open_publication_to_one_node_blocks_one_to_another_node_until_the_old_node_answers(
    world: Placed,
) -> None:
    await lost(world, "ControllerPublishVolume", publish())
    await leave(world, "n1")
    with pytest.raises(CallError, match="has an open outcome on"):
        await ask(world, "ControllerPublishVolume", publish(node_id="b"))
    world.away.clear()
    world.vendors.clear()
    assert (await ask(world, "ControllerPublishVolume", publish(node_id="b"))).node == "n1"
    assert (await ask(world, "ControllerPublishVolume", publish())).node == "n1"
    assert (await ask(world, "ControllerPublishVolume", publish(node_id="b"))).node == "n2"
    assert world.epochs[-3:] == [FIRST + 15] * 3


async def test_an_open_create_goes_on_elsewhere_once_its_node_has_surely_stopped_it(world: Placed) -> None:
    await lost(world, "CreateVolume", create())
    await leave(world, "n1", for_s=BOUND_S - 0.1)
    with pytest.raises(CallError, match=r"or at \d{4}-\d\d-\d\dT[\d:]+Z, when it has surely stopped") as first:
        await ask(world, "CreateVolume", create())
    with pytest.raises(CallError, match="has an open outcome on") as second:
        await ask(world, "CreateVolume", create())
    assert str(first.value) == str(second.value)
    await later(world, 0.1)
    world.vendors["n2"] = makes
    assert (await ask(world, "CreateVolume", create())).node == "n2"
    assert held(world, "CreateVolume pvc-1") == []


async def test_after_a_restart_of_the_hub_the_bound_counts_from_there(world: Placed) -> None:
    await lost(world, "CreateVolume", create())
    await leave(world, "n1", for_s=BOUND_S - 1.0)
    world.left_at["n1"] = world.monotonic  # as `Nodes` does
    await world.restart()
    world.placement.elections.want(DRIVER)
    await later(world, 2.0)
    await later(world, 15.0)
    with pytest.raises(CallError, match="has an open outcome on"):
        await ask(world, "CreateVolume", create())
    await later(world, BOUND_S)
    assert (await ask(world, "CreateVolume", create())).node == "n2"


async def another_machine(world: Placed, node: str) -> None:
    """The node left with a call under way, and another machine has its name now."""
    await leave(world, node, for_s=1.0)
    world.machines[node] = "another"
    world.away.discard(node)
    await later(world, 0.0)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_another_machine_of_the_nodes_name_is_not_asked_about_an_open_call(
    world: Placed, *, is_restarted: bool
) -> None:
    await lost(world, "DeleteVolume", delete())
    await another_machine(world, "n1")
    if is_restarted:
        await world.restart()
        world.placement.elections.want(DRIVER)
        await world.placement.elections.look()
    world.vendors.clear()
    for method, request in (("DeleteVolume", delete()), ("ControllerPublishVolume", publish())):
        with pytest.raises(CallError, match="another machine that had the name of edge node n1"):
            await ask(world, method, request)
    assert (await ask(world, "DeleteVolume", delete("vol-2"))).node == "n1"
    world.machines.clear()  # the first machine is back
    assert (await ask(world, "DeleteVolume", delete())).node == "n1"
    assert (await ask(world, "ControllerPublishVolume", publish())).node == "n1"


async def test_an_operator_settles_an_open_call_at_the_machine_that_has_the_name_now(world: Placed) -> None:
    await lost(world, "DeleteVolume", delete())
    await another_machine(world, "n1")
    world.vendors.clear()
    assert (await ask(world, "DeleteVolume", delete(), mode="", wanted="n1")).status.ok
    assert held(world, "DeleteVolume vol-1") == []


async def test_an_open_create_of_another_machine_goes_on_once_that_has_surely_stopped_it(world: Placed) -> None:
    await lost(world, "CreateVolume", create())
    await another_machine(world, "n1")
    world.vendors["n1"] = makes
    with pytest.raises(CallError, match=r"or at \d{4}-\d\d-\d\dT[\d:]+Z, when it has surely stopped"):
        await ask(world, "CreateVolume", create())
    await later(world, BOUND_S)
    assert (await ask(world, "CreateVolume", create())).node == "n1"
    assert held(world, "CreateVolume pvc-1") == []


@pytest.mark.parametrize(
    ("code", "origin", "holders"),
    [
        (Code.UNAVAILABLE, Origin.VENDOR, ["n1"]),
        (Code.DEADLINE_EXCEEDED, Origin.VENDOR, ["n1"]),
        (Code.ABORTED, Origin.VENDOR, ["n1"]),
        (Code.CANCELLED, Origin.VENDOR, ["n1"]),
        (Code.DEADLINE_EXCEEDED, Origin.EDGE, ["n1"]),
        (Code.ABORTED, Origin.EDGE, ["n1"]),
        (Code.ALREADY_EXISTS, Origin.VENDOR, []),
        (Code.INVALID_ARGUMENT, Origin.VENDOR, []),
        (Code.RESOURCE_EXHAUSTED, Origin.VENDOR, []),
        (Code.INTERNAL, Origin.VENDOR, []),
    ],
)
async def test_a_call_stays_with_its_node_until_the_vendors_final_error_frees_the_key(
    world: Placed, code: Code, origin: Origin, holders: list[str]
) -> None:
    world.vendors["n1"] = answers(code, origin)
    await ask(world, "CreateVolume", create())
    await ask(world, "DeleteVolume", delete())
    assert held(world, "CreateVolume pvc-1") == held(world, "DeleteVolume vol-1") == holders


async def test_if_the_agent_says_that_it_runs_nothing_of_it_a_create_is_free_and_a_deletion_stays(
    world: Placed,
) -> None:
    world.vendors["n1"] = answers(Code.UNAVAILABLE, Origin.EDGE)
    assert (await ask(world, "CreateVolume", create())).status.code == Code.UNAVAILABLE
    await ask(world, "DeleteVolume", delete())
    assert (held(world, "CreateVolume pvc-1"), held(world, "DeleteVolume vol-1")) == ([], ["n1"])


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.ABORTED])
async def test_a_call_of_which_the_agent_has_sent_nothing_leaves_its_key_as_it_was(world: Placed, code: Code) -> None:
    world.vendors["n1"] = answers(code, Origin.UNSENT)
    told = await ask(world, "DeleteVolume", delete())
    assert told.status == Status(code, "no", Origin.EDGE)
    assert held(world, "DeleteVolume vol-1") == []
    await lost(world, "DeleteVolume", delete())
    world.vendors["n1"] = answers(code, Origin.UNSENT)
    await ask(world, "DeleteVolume", delete())
    assert held(world, "DeleteVolume vol-1") == ["n1"]


async def test_a_node_whose_driver_is_gone_holds_nothing_that_came_meanwhile(world: Placed) -> None:
    world.vendors["n1"] = answers(Code.UNAVAILABLE, Origin.UNSENT)
    await ask(world, "ControllerPublishVolume", publish())
    world.unfit["n1"] = "has lost the driver"
    await later(world, 1.0)
    assert (await ask(world, "ControllerPublishVolume", publish())).node == "n2"


async def test_nodes_that_come_and_go_in_turn_are_elected_once_a_second_at_most(world: Placed) -> None:
    for number in range(10):
        world.unfit = {"n1": "drains", "n3": "drains"} if number % 2 else {"n2": "drains", "n3": "drains"}
        await later(world, 0.25)
    assert elected(world)[1] <= FIRST + 3


async def test_an_id_with_the_words_of_a_key_is_another_volume(world: Placed) -> None:
    await lost(world, "ControllerPublishVolume", publish(node_id="x to node y"))
    await leave(world, "n1")
    with pytest.raises(CallError, match="has an open outcome on"):
        await ask(world, "DeleteVolume", delete())
    assert (await ask(world, "DeleteVolume", delete("vol-1 to node x"))).node == "n2"


async def test_a_call_that_cannot_be_read_or_has_an_endless_id_is_not_sent(world: Placed) -> None:
    with pytest.raises(CallError, match="does not know which edge node"):
        await ask(world, "DeleteVolume", b"\xff")
    with pytest.raises(CallError, match="a call whose id has"):
        await ask(world, "ControllerPublishVolume", publish("v" * 3_000))
    assert not world.calls


async def test_a_caller_who_leaves_keeps_the_call_open_and_a_retry_settles_it(world: Placed) -> None:
    answer: asyncio.Future[tuple[bytes, Status]] = asyncio.get_running_loop().create_future()
    world.vendors["n1"] = lambda _: answer
    asking = asyncio.create_task(ask(world, "DeleteVolume", delete()))
    await until(lambda: world.calls)
    asking.cancel()
    await asyncio.wait([asking])
    assert held(world, "DeleteVolume vol-1") == ["n1"]
    world.vendors.clear()
    await ask(world, "DeleteVolume", delete())
    assert held(world, "DeleteVolume vol-1") == []


async def test_a_publication_and_its_end_settle_each_other_and_a_deletion_settles_all(world: Placed) -> None:
    world.vendors["n1"] = answers(Code.UNAVAILABLE)
    for node_id in ("a", "b"):
        await ask(world, "ControllerPublishVolume", publish(node_id=node_id))
    world.vendors.clear()
    await ask(world, "ControllerUnpublishVolume", unpublish())
    assert "ControllerPublishVolume vol-1 to node a" not in world.book.claims
    assert held(world, "DeleteVolume vol-1") == ["n1"]
    await ask(world, "DeleteVolume", delete())
    assert held(world, "DeleteVolume vol-1") == []


async def test_many_calls_about_one_volume_run_beside_each_other(world: Placed) -> None:
    asked = await asyncio.gather(
        *(ask(world, "ControllerPublishVolume", publish(node_id=str(number))) for number in range(20))
    )
    assert {each.node for each in asked} == {"n1"}
    assert held(world, "DeleteVolume vol-1") == []
