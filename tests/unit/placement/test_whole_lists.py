"""ListVolumes and its like of nodes with storage of their own: whole, or refused, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cloud.placement import inventory, node_lists, sweeps
from common.csi import csi_pb2 as csi
from common.errors import KnowledgeLost, NotListed, TokenUnknown
from common.parsers import LONGEST_DURATION_S
from common.status import Code, Status
from tests.kit.waiting import settle
from tests.unit.placement.world import DRIVER, OK, RPC, World, affinity, create, on, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NODES = ("n1", "n2", "n3")
CAN = (RPC.CREATE_DELETE_VOLUME, RPC.LIST_VOLUMES, RPC.LIST_SNAPSHOTS, RPC.LIST_VOLUME_HEALTH)


class Lister:
    """A vendor that lists its volumes, page by page.

    Attributes:
        volumes: their ids.
        asked: set once it is asked.
        go: it answers while this is set.
    """

    def __init__(self, *volumes: str) -> None:
        self.volumes, self.asked, self.go = list(volumes), asyncio.Event(), asyncio.Event()
        self.go.set()

    async def __call__(self, call: Any) -> tuple[bytes | None, Status]:
        volumes = list(self.volumes)
        self.asked.set()
        await self.go.wait()
        asked = csi.ListVolumesRequest.FromString(call.request)
        start = int(asked.starting_token or 0)
        page = volumes[start : start + (asked.max_entries or len(volumes))]
        entries = [csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id=volume)) for volume in page]
        end = start + len(page)
        answer = csi.ListVolumesResponse(entries=entries, next_token=str(end) if end < len(volumes) else "")
        return answer.SerializeToString(), OK


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    """Makes the one world of a test: three nodes that can list."""
    made: list[World] = []

    def make_one(**how: Any) -> World:
        world = World(tmp_path, *(report(node, capabilities=CAN) for node in NODES), **how)
        world.vendors = {"n1": Lister("a"), "n2": Lister("b"), "n3": Lister("c")}
        made.append(world)
        return world

    yield make_one
    for world in made:
        await world.placement.close()


@pytest.fixture
def three(make: Callable[..., World]) -> World:
    return make()


def lister(world: World, node: str) -> Lister:
    vendor = world.vendors[node]
    assert isinstance(vendor, Lister)
    return vendor


async def page(world: World, token: str = "", *, most: int = 0, timeout_s: float = 10.0) -> csi.ListVolumesResponse:
    """One page, as a sidecar gets it."""
    asked = csi.ListVolumesRequest(starting_token=token, max_entries=most)
    answer = await world.ask("ListVolumes", asked, timeout_s=timeout_s)
    assert answer.status.ok, answer.status
    return csi.ListVolumesResponse.FromString(answer.body)


def ids(told: csi.ListVolumesResponse) -> list[str]:
    return [entry.volume.volume_id for entry in told.entries]


async def listed(world: World, **how: Any) -> list[str]:
    """The ids in the one page of a list."""
    told = await page(world, **how)
    assert not told.next_token
    return ids(told)


def leave(world: World, node: str) -> None:
    world.away, world.since[node] = world.away | {node}, world.now


# -------------------- the whole --------------------


async def test_a_list_has_the_volumes_of_every_node_with_their_places(three: World) -> None:
    told = await page(three)
    places = {entry.volume.volume_id: dict(entry.volume.accessible_topology[0].segments) for entry in told.entries}
    assert places == {"a": on("n1"), "b": on("n2"), "c": on("n3")}
    assert not told.next_token


async def test_each_list_is_asked_anew(three: World) -> None:
    assert await listed(three) == ["a", "b", "c"]
    lister(three, "n2").volumes.append("b2")
    assert await listed(three) == ["a", "b", "b2", "c"]


async def test_nodes_without_volumes_have_none_in_the_list(three: World) -> None:
    for node in NODES:
        lister(three, node).volumes.clear()
    assert await listed(three) == []


async def test_what_a_vendor_says_of_a_volume_beyond_its_id_passes(three: World) -> None:
    """Also an old driver's condition, which CSI 1.13 has no field for (`VolumeStatus`, field 2)."""
    entry = csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id="a", capacity_bytes=7))
    entry.status.published_node_ids.append("id-of-n1")
    entry.status.MergeFromString(b"\x12\x02\x08\x01")
    three.vendors["n1"] = lambda _: (csi.ListVolumesResponse(entries=[entry]).SerializeToString(), OK)
    told = (await page(three)).entries[0]
    assert (told.volume.capacity_bytes, list(told.status.published_node_ids)) == (7, ["id-of-n1"])
    assert told.status.SerializeToString() == entry.status.SerializeToString()


async def test_snapshots_and_health_are_listed_alike(three: World) -> None:
    for number, node in enumerate(NODES):
        shot = csi.ListSnapshotsResponse.Entry(snapshot=csi.Snapshot(snapshot_id=f"s{number}"))
        shots = csi.ListSnapshotsResponse(entries=[shot]).SerializeToString()
        health = csi.ControllerListVolumeHealthResponse(entries=[csi.VolumeHealth(volume_id=f"v{number}")])
        three.vendors[node] = lambda call, shots=shots, health=health: (  # type: ignore[misc]  # mypy infers no lambda's defaults
            shots if call.method.endswith("ListSnapshots") else health.SerializeToString(),
            OK,
        )
    found = csi.ListSnapshotsResponse.FromString((await three.ask("ListSnapshots")).body)
    assert [entry.snapshot.snapshot_id for entry in found.entries] == ["s0", "s1", "s2"]
    assert dict(found.entries[1].snapshot.accessible_topology[0].segments) == on("n2")
    body = (await three.ask("ControllerListVolumeHealth")).body
    assert [it.volume_id for it in csi.ControllerListVolumeHealthResponse.FromString(body).entries] == [
        "v0", "v1", "v2"
    ]  # fmt: skip


async def test_the_secrets_of_a_list_go_to_each_node_and_its_last_lists_are_kept_apart(three: World) -> None:
    def health(*, key: str) -> csi.ControllerListVolumeHealthRequest:
        return csi.ControllerListVolumeHealthRequest(secrets={"key": key}, max_entries=0)

    def answer(call: Any) -> tuple[bytes, Status]:
        key = csi.ControllerListVolumeHealthRequest.FromString(call.request).secrets["key"]
        entries = [csi.VolumeHealth(volume_id=key)]
        return csi.ControllerListVolumeHealthResponse(entries=entries).SerializeToString(), OK

    three.vendors = dict.fromkeys(NODES, answer)
    await three.ask("ControllerListVolumeHealth", health(key="x"))
    leave(three, "n1")
    body = (await three.ask("ControllerListVolumeHealth", health(key="x"))).body
    assert len(csi.ControllerListVolumeHealthResponse.FromString(body).entries) == 3
    with pytest.raises(NotListed, match="edge node n1"):
        await three.ask("ControllerListVolumeHealth", health(key="y"))


async def test_the_only_nodes_pages_pass_as_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, report("n1", capabilities=CAN))
    world.vendors["n1"] = Lister("a", "b", "c")
    first = await page(world, most=2)
    assert (ids(first), first.next_token) == (["a", "b"], "2")
    assert ids(await page(world, "2")) == ["c"]
    await world.placement.close()


async def test_a_node_that_has_volumes_and_has_not_reported_the_driver_yet_is_missing(three: World) -> None:
    three.make("n3")
    await three.ask("CreateVolume", create("pvc-1", on("n3")))
    del three.reports["n3"]
    three.placement.changed(DRIVER)
    with pytest.raises(NotListed, match="edge node n3: it has not reported the driver yet"):
        await page(three)
    del three.reports["n2"]
    three.placement.changed(DRIVER)
    with pytest.raises(NotListed, match="n3"):
        await page(three)


async def test_after_a_loss_of_reports_no_list_is_known_to_be_whole(three: World) -> None:
    three.lost = ("hub.db was damaged",)
    with pytest.raises(KnowledgeLost):
        await page(three)


async def test_a_node_without_the_capability_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path, report("n1", capabilities=CAN), report("n2", capabilities=CAN[:1]))
    world.vendors = {"n1": Lister("a"), "n2": Lister("b")}
    with pytest.raises(NotListed, match="edge node n2: its driver lacks the capability LIST_VOLUMES"):
        await page(world)
    await world.placement.close()


# -------------------- nodes that do not answer --------------------


async def test_a_node_that_is_away_is_represented_by_its_last_list_while_that_is_young(three: World) -> None:
    await listed(three)
    leave(three, "n2")
    lister(three, "n1").volumes.append("a2")
    three.now += 599.0
    assert await listed(three) == ["a", "a2", "b", "c"]
    told = three.placement.conflicts("n2")
    assert len(told) == 1
    assert "has this node's entries from 1970-01-12T13:46:40Z" in told[0]
    assert told[0].endswith("they are 10 min old")
    three.now += 1.0
    with pytest.raises(NotListed, match="would lack the entries of edge node n2: edge node n2 is offline since"):
        await page(three)
    assert "is refused" in three.placement.conflicts("n2")[0]
    three.away = set()
    assert await listed(three) == ["a", "a2", "b", "c"]
    assert not three.placement.conflicts("n2")


@pytest.mark.parametrize(("age_s", "later_s", "counts"), [(0.0, 0.0, False), (LONGEST_DURATION_S, 1e8, True)])
async def test_old_lists_count_never_or_for_ever_as_told(
    make: Callable[..., World], age_s: float, later_s: float, counts: bool
) -> None:
    world = make(list_age_s=age_s)
    await listed(world)
    leave(world, "n2")
    world.now += later_s
    if counts:
        assert await listed(world) == ["a", "b", "c"]
    else:
        with pytest.raises(NotListed):
            await page(world)


async def test_a_node_that_has_never_listed_is_missing_and_all_are_named(three: World) -> None:
    leave(three, "n2")
    leave(three, "n3")
    with pytest.raises(NotListed, match=r"entries of edge node n2: .* \(and those of n3\)"):
        await page(three)


async def test_a_slow_node_holds_nobody_longer_than_the_caller_waits_and_its_list_becomes_its_last(
    three: World,
) -> None:
    slow, running = lister(three, "n2"), three.placement._whole._lists._running
    slow.go.clear()
    with pytest.raises(NotListed, match="it did not answer in time"):
        await page(three, timeout_s=0.0)
    slow.go.set()
    await asyncio.gather(*running.values())
    slow.go.clear()
    slow.volumes.append("b2")
    assert await listed(three, timeout_s=0.0) == ["a", "b", "c"]
    assert "it did not answer in time" in three.placement.conflicts("n2")[0]
    slow.go.set()
    await asyncio.gather(*running.values())
    assert await listed(three, timeout_s=0.0) == ["a", "b", "b2", "c"]


async def test_callers_that_come_while_a_node_lists_share_its_next_list_which_has_what_was_made_meanwhile(
    three: World,
) -> None:
    slow = lister(three, "n2")
    slow.go.clear()
    first = asyncio.create_task(listed(three))
    await slow.asked.wait()
    slow.volumes.append("b2")
    more = [asyncio.create_task(listed(three)) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert sum(node == "n2" for node, *_ in three.calls) == 1
    slow.go.set()
    assert await first == ["a", "b", "c"]
    assert await asyncio.gather(*more) == [["a", "b", "b2", "c"]] * 3
    assert sum(node == "n2" for node, *_ in three.calls) == 2


async def test_a_vendors_error_is_a_node_that_does_not_list(three: World) -> None:
    await listed(three)
    three.refuse("n3", Code.INTERNAL)
    assert await listed(three) == ["a", "b", "c"]
    three.now += 600.0
    with pytest.raises(NotListed, match="edge node n3: no"):
        await page(three)


async def test_a_forgotten_node_is_in_no_list_and_its_last_one_is_gone(three: World) -> None:
    await listed(three)
    await three.placement.forget("n2")
    assert three.placement._whole._lists._bytes.keys() == {"n1", "n3"}
    del three.reports["n2"]
    three.placement.changed(DRIVER)
    assert await listed(three) == ["a", "c"]


async def test_a_node_that_is_forgotten_while_it_lists_leaves_no_caller_without_an_answer(three: World) -> None:
    lister(three, "n2").go.clear()
    asking = asyncio.create_task(page(three))
    await lister(three, "n2").asked.wait()
    await three.placement.forget("n2")
    await settle()
    assert asking.done()
    with pytest.raises(NotListed, match="the hub asks it no more"):
        await asking


async def test_a_caller_that_leaves_ends_no_question(three: World) -> None:
    lister(three, "n2").go.clear()
    asking = asyncio.create_task(listed(three))
    await lister(three, "n2").asked.wait()
    asking.cancel()
    await asyncio.wait([asking])
    lister(three, "n2").go.set()
    await asyncio.gather(*three.placement._whole._lists._running.values())
    leave(three, "n2")
    assert await listed(three) == ["a", "b", "c"]


# -------------------- pages --------------------


async def test_pages_are_of_one_list_while_nodes_and_volumes_come_and_go(three: World) -> None:
    lister(three, "n1").volumes += ["a2", "a3"]
    found, token = [], ""
    for step in range(3):
        told = await page(three, token, most=2)
        found, token = found + ids(told), told.next_token
        three.away |= {"n3"}
        lister(three, "n1").volumes.insert(0, f"new-{step}")
    assert (found, token) == (["a", "a2", "a3", "b", "c"], "")
    assert not three.placement._whole._sweeps._sweeps


async def test_a_page_can_be_asked_for_again(three: World) -> None:
    first = await page(three, most=1)
    again = [await page(three, first.next_token, most=1) for _ in range(2)]
    assert [ids(each) for each in again] == [["b"], ["b"]]
    assert ids(await page(three, first.next_token)) == ["b", "c"]


async def test_a_list_goes_on_when_only_one_node_is_left(three: World) -> None:
    first = await page(three, most=1)
    for node in ("n2", "n3"):
        del three.reports[node]
    three.placement.changed(DRIVER)
    assert ids(await page(three, first.next_token)) == ["b", "c"]


@pytest.mark.parametrize("token", ["{0}0", "csi-bridge-", "csi-bridge-0-1", "17", "{1}-99", "{1}--1", "{1}-x", "{1}"])
async def test_a_token_that_no_list_has_is_aborted(three: World, token: str) -> None:
    real = (await page(three, most=1)).next_token
    with pytest.raises(TokenUnknown):
        await page(three, token.format(real, real.rpartition("-")[0]))


async def test_a_token_of_another_hub_process_method_or_time_is_aborted(three: World) -> None:
    token = (await page(three, most=1)).next_token
    with pytest.raises(TokenUnknown):
        await three.ask("ListSnapshots", csi.ListSnapshotsRequest(starting_token=token))
    three.monotonic += 600.0
    with pytest.raises(TokenUnknown):
        await page(three, token)
    token = (await page(three, most=1)).next_token
    await three.restart()
    with pytest.raises(TokenUnknown):
        await page(three, token)


async def test_the_lists_that_are_handed_out_are_bounded(three: World) -> None:
    tokens = [(await page(three, most=1)).next_token for _ in range(6)]
    for token in tokens[:2]:
        with pytest.raises(TokenUnknown):
            await page(three, token)
    assert ids(await page(three, tokens[-1])) == ["b", "c"]


async def test_a_page_fits_into_an_answer_also_without_a_limit(three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_PAGE_BYTES", 1_000)
    lister(three, "n1").volumes = [f"volume-{number:03}" for number in range(100)]
    found, token, sizes = [], "", []
    while True:
        told = await page(three, token)
        found += ids(told)
        sizes.append(told.ByteSize())
        token = told.next_token
        if not token:
            break
    assert found == [*lister(three, "n1").volumes, "b", "c"]
    assert len(sizes) > 3
    assert max(sizes) < 1_100


async def test_a_negative_limit_is_none(three: World) -> None:
    assert await listed(three, most=-1) == ["a", "b", "c"]


# -------------------- hostile nodes --------------------


async def refused(world: World, why: str) -> None:
    """n2's list does not count, for this reason, and the others' do."""
    with pytest.raises(NotListed, match=why) as caught:
        await page(world)
    assert caught.value.missing.keys() == {"n2"}
    assert world.placement._whole._lists._bytes.keys() == {"n1", "n3"}


async def test_a_list_without_an_end_is_no_list(three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_MOST_PAGES", 5)
    token = iter(range(100))
    three.vendors["n2"] = lambda _: (csi.ListVolumesResponse(next_token=str(next(token))).SerializeToString(), OK)
    await refused(three, "its answers to /csi.v1.Controller/ListVolumes do not end")


async def test_a_huge_token_or_entry_is_refused(three: World) -> None:
    huge = csi.ListVolumesResponse(next_token="x" * 5_000)
    three.vendors["n2"] = lambda _: (huge.SerializeToString(), OK)
    await refused(three, "has a token of 5000 bytes")
    three.vendors["n2"] = Lister("x" * 70_000)
    await refused(three, "has an entry of 70")


async def test_an_answer_of_millions_of_empty_entries_is_refused(three: World) -> None:
    three.vendors["n2"] = lambda _: (b"\x0a\x00" * 100_001, OK)
    await refused(three, "has 100001 entries")


async def test_an_answer_that_does_not_parse_is_no_list(three: World) -> None:
    three.vendors["n2"] = lambda _: (b"\xff", OK)
    await refused(three, "its answer does not parse")


async def test_the_lists_of_a_node_leave_room_for_the_others(three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lists, "_MOST_BYTES", 100_000)
    three.vendors["n2"] = Lister(*(f"volume-{number}" for number in range(1_000)))
    await refused(three, "the hub has no room for more")
    lists = three.placement._whole._lists
    assert lists._together == sum(lists._bytes.values()) < 1_000


async def test_the_bytes_of_lists_that_are_replaced_do_not_add_up(three: World) -> None:
    await listed(three)
    before = three.placement._whole._lists._together
    for _ in range(3):
        await listed(three)
    assert three.placement._whole._lists._together == before


async def test_an_id_that_another_node_made_is_left_out_of_a_nodes_list_and_shown(three: World) -> None:
    three.make("n1", "vol-1")
    await three.ask("CreateVolume", create("pvc-1", on("n1")))
    three.vendors["n1"] = Lister("vol-1")
    lister(three, "n2").volumes.append("vol-1")
    assert [(entry.volume.volume_id, entry.volume.accessible_topology[0].segments["csi-bridge.io/node"])
            for entry in (await page(three)).entries] == [("vol-1", "n1"), ("b", "n2"), ("c", "n3")]  # fmt: skip
    assert "ids of other nodes, such as volume vol-1, which is on edge node n1" in three.placement.conflicts("n2")[0]
    lister(three, "n1").volumes.clear()
    assert await listed(three) == ["b", "c"]
    lister(three, "n2").volumes.remove("vol-1")
    await listed(three)
    assert not three.placement.conflicts("n2")


async def test_an_id_that_two_nodes_list_is_the_one_of_its_persistent_volumes_node(three: World) -> None:
    lister(three, "n1").volumes.append("lv")
    lister(three, "n2").volumes.append("lv")
    assert await listed(three) == ["a", "lv", "b", "lv", "c"]
    three.placement.affinity = affinity("n1", handle="lv")
    assert await listed(three) == ["a", "lv", "b", "c"]
    assert "lv, which is on edge node n1" in three.placement.conflicts("n2")[0]


async def test_an_operator_gets_the_whole_list_too(tmp_path: Path) -> None:
    world = World(tmp_path, *(report(node, capabilities=CAN, segments={"zone": node}) for node in NODES))
    world.vendors = {"n1": Lister("a"), "n2": Lister("b"), "n3": Lister("c")}
    asked = await world.ask("ListVolumes", mode="")
    assert ids(csi.ListVolumesResponse.FromString(asked.body)) == ["a", "b", "c"]
    assert asked.node == ""
    asked = await world.ask("ListVolumes", mode="", wanted="n2")
    assert (asked.node, ids(csi.ListVolumesResponse.FromString(asked.body))) == ("n2", ["b"])
    await world.placement.close()
