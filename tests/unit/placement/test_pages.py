"""ListVolumes and its like of nodes with storage of their own: node by node, whole or refused."""

import asyncio
from typing import Any

import pytest

from cloud.placement import inventory, pages
from cloud.placement.page_tokens import PageToken, read
from common.csi import csi_pb2 as csi
from common.errors import CallError
from common.status import Code, Status
from tests.kit.placed_nodes import DRIVER, OK, RPC, Placed, Placing, affinity, on, report
from tests.kit.waiting import settle

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


def health(call: Any) -> tuple[bytes, Status]:
    """A vendor whose one volume has the name of the secret in the request."""
    key = csi.ControllerListVolumeHealthRequest.FromString(call.request).secrets["key"]
    answer = csi.ControllerListVolumeHealthResponse(entries=[csi.VolumeHealth(volume_id=key)])
    return answer.SerializeToString(), OK


def fleet(placed: Placing, *nodes: str) -> Placed:
    world = placed(*(report(node, capabilities=CAN) for node in nodes))
    world.vendors = {node: Lister(node.replace("n", "v")) for node in nodes}
    return world


@pytest.fixture
async def three(placed: Placing) -> Placed:
    """Three nodes with a volume each: v1, v2 and v3."""
    return fleet(placed, *NODES)


@pytest.fixture
async def hundred(placed: Placing) -> Placed:
    return fleet(placed, *(f"n{number:03}" for number in range(100)))


def lister(world: Placed, node: str) -> Lister:
    vendor = world.vendors[node]
    assert isinstance(vendor, Lister)
    return vendor


async def page(world: Placed, token: str = "", *, most: int = 0, timeout_s: float = 10.0) -> csi.ListVolumesResponse:
    """One page, as a sidecar gets it."""
    asked = csi.ListVolumesRequest(starting_token=token, max_entries=most)
    answer = await world.ask("ListVolumes", asked, timeout_s=timeout_s)
    assert answer.status.ok, answer.status
    return csi.ListVolumesResponse.FromString(answer.body)


def ids(told: csi.ListVolumesResponse) -> list[str]:
    return [entry.volume.volume_id for entry in told.entries]


async def walk(world: Placed, token: str = "", **how: Any) -> list[list[str]]:
    """The ids of each page, from a token to the end of the list."""
    told = await page(world, token, **how)
    found = [ids(told)]
    while told.next_token:
        told = await page(world, told.next_token, **how)
        found.append(ids(told))
    return found


def asked(world: Placed, node: str) -> int:
    return sum(each == node for each, *_ in world.calls)


# -------------------- node by node --------------------


async def test_each_page_has_the_volumes_of_one_node_with_their_place_in_the_order_of_names(three: Placed) -> None:
    first = await page(three)
    assert (ids(first), dict(first.entries[0].volume.accessible_topology[0].segments)) == (["v1"], on("n1"))
    assert await walk(three, first.next_token) == [["v2"], ["v3"]]


async def test_each_list_is_asked_anew(three: Placed) -> None:
    await page(three)
    await settle()  # the others are asked ahead
    lister(three, "n2").volumes.append("new")
    assert await walk(three) == [["v1"], ["v2", "new"], ["v3"]]


async def test_a_node_gives_its_pages_one_after_another_none_above_the_limit_and_one_without_volumes_an_empty_one(
    three: Placed,
) -> None:
    lister(three, "n1").volumes.clear()
    lister(three, "n2").volumes = ["a", "b", "c", "d", "e"]
    lister(three, "n3").volumes.clear()
    assert await walk(three, most=2) == [[], ["a", "b"], ["c", "d"], ["e"], []]


async def test_a_page_can_be_asked_for_again(three: Placed) -> None:
    token = (await page(three)).next_token
    assert [ids(await page(three, token)) for _ in range(2)] == [["v2"], ["v2"]]


async def test_the_next_64_nodes_are_asked_ahead_and_each_of_them_once(hundred: Placed) -> None:
    first = await page(hundred)
    await settle()
    assert len(hundred.calls) == 65
    await page(hundred, first.next_token)
    await settle()
    assert len(hundred.calls) == 66
    assert await walk(hundred, first.next_token)
    assert asked(hundred, "n050") == 1


async def test_two_lists_at_one_time_have_all_that_was_made_before_each(three: Placed) -> None:
    first = await page(three)
    lister(three, "n3").volumes.append("new")
    second = await page(three)
    assert await walk(three, first.next_token) == [["v2"], ["v3", "new"]]
    assert await walk(three, second.next_token) == [["v2"], ["v3", "new"]]


async def test_a_large_page_is_not_kept_ahead(three: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_AHEAD_BYTES", 100)
    lister(three, "n2").volumes = [f"volume-{number}" for number in range(20)]
    assert [len(each) for each in await walk(three)] == [1, 20, 1]
    assert (asked(three, "n2"), asked(three, "n3")) == (2, 1)


async def test_the_lists_whose_pages_are_kept_ahead_are_bounded(three: Placed) -> None:
    for most in range(1, 40):
        await page(three, most=most)
    await settle()
    assert len(three.placement._pages._ahead) == 16
    assert await walk(three) == [["v1"], ["v2"], ["v3"]]


async def test_what_a_vendor_says_of_a_volume_beyond_its_id_passes(three: Placed) -> None:
    """Also an old driver's condition, which CSI 1.13 has no field for (`VolumeStatus`, field 2)."""
    entry = csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id="a", capacity_bytes=7))
    entry.status.published_node_ids.append("id-of-n1")
    entry.status.MergeFromString(b"\x12\x02\x08\x01")
    three.vendors["n1"] = lambda _: (csi.ListVolumesResponse(entries=[entry]).SerializeToString(), OK)
    told = (await page(three)).entries[0]
    assert (told.volume.capacity_bytes, list(told.status.published_node_ids)) == (7, ["id-of-n1"])
    assert told.status.SerializeToString() == entry.status.SerializeToString()


async def test_snapshots_and_health_are_listed_alike_and_secrets_go_to_each_node(three: Placed) -> None:
    shot = csi.ListSnapshotsResponse.Entry(snapshot=csi.Snapshot(snapshot_id="s"))
    three.vendors = dict.fromkeys(
        NODES,
        lambda call: (
            (csi.ListSnapshotsResponse(entries=[shot]).SerializeToString(), OK)
            if call.method.endswith("ListSnapshots")
            else health(call)
        ),
    )
    found = csi.ListSnapshotsResponse.FromString((await three.ask("ListSnapshots")).body)
    found = csi.ListSnapshotsResponse.FromString(
        (await three.ask("ListSnapshots", csi.ListSnapshotsRequest(starting_token=found.next_token))).body
    )
    assert dict(found.entries[0].snapshot.accessible_topology[0].segments) == on("n2")
    for key in ("x", "y"):
        request, told = csi.ControllerListVolumeHealthRequest(secrets={"key": key}), list[str]()
        while not told or request.starting_token:
            body = (await three.ask("ControllerListVolumeHealth", request)).body
            answer = csi.ControllerListVolumeHealthResponse.FromString(body)
            told += [it.volume_id for it in answer.entries]
            request.starting_token = answer.next_token
        assert told == [key] * 3


async def test_the_only_nodes_pages_pass_as_they_are(placed: Placing) -> None:
    world = placed(report("n1", capabilities=CAN))
    world.vendors["n1"] = Lister("a", "b", "c")
    first = await page(world, most=2)
    assert (ids(first), first.next_token) == (["a", "b"], "2")
    assert ids(await page(world, "2")) == ["c"]


async def test_an_operator_gets_the_pages_of_all_nodes_or_of_one(placed: Placing) -> None:
    world = placed(*(report(node, capabilities=CAN, segments={"zone": node}) for node in NODES))
    world.vendors = {"n1": Lister("a"), "n2": Lister("b"), "n3": Lister("c")}
    told = await world.ask("ListVolumes", mode="")
    answer = csi.ListVolumesResponse.FromString(told.body)
    assert (ids(answer), read(answer.next_token), told.node) == (["a"], PageToken("n2"), "")
    told = await world.ask("ListVolumes", mode="", wanted="n2")
    assert (told.node, ids(csi.ListVolumesResponse.FromString(told.body))) == ("n2", ["b"])


# -------------------- nodes that come and go --------------------


async def test_a_list_goes_on_when_nodes_come_and_go(three: Placed) -> None:
    first = await page(three)
    three.reports["n4"] = report("n4", capabilities=CAN)
    three.vendors["n4"] = Lister("v4")
    for node in ("n2", "n3"):
        del three.reports[node]
    three.placement.changed(DRIVER)
    assert await walk(three, first.next_token) == [["v4"]]
    del three.reports["n4"]
    three.placement.changed(DRIVER)
    assert await walk(three, first.next_token) == [[]]


async def test_a_list_goes_on_after_a_restart_of_the_hub(three: Placed) -> None:
    first = await page(three)
    await three.restart()
    assert await walk(three, first.next_token) == [["v2"], ["v3"]]


async def test_a_node_that_has_volumes_and_has_not_reported_the_driver_yet_is_missing(three: Placed) -> None:
    await three.has_made("n3")
    token = (await page(three)).next_token
    del three.reports["n3"]
    three.placement.changed(DRIVER)
    for each in ("", token):
        with pytest.raises(CallError, match="edge node n3: it has not reported the driver yet"):
            await page(three, each)
    del three.reports["n2"]
    three.placement.changed(DRIVER)
    with pytest.raises(CallError, match="n3"):
        await page(three)


async def test_after_a_loss_of_reports_no_list_is_known_to_be_whole(three: Placed) -> None:
    token = (await page(three)).next_token
    three.lost = "state.db was gone"
    for each in ("", token):
        with pytest.raises(CallError, match="has lost records"):
            await page(three, each)


async def test_a_node_without_the_capability_is_missing(placed: Placing) -> None:
    world = placed(report("n1", capabilities=CAN), report("n2", capabilities=CAN[:1]))
    world.vendors = {"n1": Lister("a"), "n2": Lister("b")}
    with pytest.raises(CallError, match="edge node n2: its driver lacks the capability LIST_VOLUMES"):
        await walk(world)


@pytest.mark.parametrize("token", ["17", "csi-bridge-at:n2", "csi-bridge-at:n2:99999:", "csi-bridge-at:n9:1:7"])
async def test_a_token_of_no_list_is_aborted(three: Placed, token: str) -> None:
    with pytest.raises(CallError, match="this starting_token"):
        await page(three, token)


async def test_a_token_that_its_driver_does_not_know_any_more_is_aborted(three: Placed) -> None:
    lister(three, "n2").volumes = ["a", "b"]
    token = (await page(three, (await page(three, most=1)).next_token, most=1)).next_token
    three.refuse("n2", Code.ABORTED)
    with pytest.raises(CallError, match="this starting_token"):
        await page(three, token)


# -------------------- nodes that do not answer --------------------


async def test_a_node_that_is_away_has_its_last_complete_list_of_the_last_hour(three: Placed) -> None:
    await walk(three)
    three.away = {"n2"}
    lister(three, "n1").volumes.append("new")
    three.now += 3_599.0
    assert await walk(three) == [["v1", "new"], ["v2"], ["v3"]]
    assert "has this node's entries from 1970-01-12T13:46:40Z" in three.placement.conflicts("n2")[0]
    three.now += 1.0
    with pytest.raises(CallError, match="would lack the entries of edge node n2: edge node n2 is offline"):
        await walk(three)
    assert "is refused" in three.placement.conflicts("n2")[0]
    three.away = set()
    assert await walk(three) == [["v1", "new"], ["v2"], ["v3"]]
    assert not three.placement.conflicts("n2")


async def test_a_last_list_counts_for_a_page_of_its_size(three: Placed) -> None:
    lister(three, "n2").volumes = ["a", "b"]
    await walk(three, most=2)
    three.away = {"n2"}
    assert await walk(three, most=2) == [["v1"], ["a", "b"], ["v3"]]
    with pytest.raises(CallError, match="would lack the entries"):
        await walk(three, most=1)


async def test_a_first_page_of_several_is_no_complete_list_and_ends_the_one_before(three: Placed) -> None:
    await walk(three, most=1)
    lister(three, "n2").volumes.append("b")
    await walk(three, most=1)
    three.away = {"n2"}
    token = (await page(three, most=1)).next_token
    with pytest.raises(CallError, match="n2"):
        await page(three, token, most=1)


async def test_a_node_that_leaves_between_two_of_its_pages_refuses_the_list(three: Placed) -> None:
    await walk(three, most=1)
    lister(three, "n2").volumes = ["a", "b"]
    token = (await page(three, (await page(three, most=1)).next_token, most=1)).next_token
    three.away = {"n2"}
    with pytest.raises(CallError, match="n2"):
        await page(three, token, most=1)


async def test_no_last_list_counts_for_snapshots_or_health(three: Placed) -> None:
    three.vendors["n1"] = health
    request = csi.ControllerListVolumeHealthRequest(secrets={"key": "x"})
    await three.ask("ControllerListVolumeHealth", request)
    three.away = {"n1"}
    with pytest.raises(CallError, match="would lack the entries"):
        await three.ask("ControllerListVolumeHealth", request)


async def test_a_last_list_finds_no_id(three: Placed) -> None:
    await walk(three)
    assert not three.places("v2")
    assert not three.book.lists


async def test_a_slow_node_holds_nobody_longer_than_the_caller_waits(three: Placed) -> None:
    lister(three, "n1").go.clear()
    with pytest.raises(CallError, match="edge node n1: it did not answer in time"):
        await page(three, timeout_s=0.0)


async def test_a_slow_node_with_a_last_list_has_little_time(three: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    await walk(three)
    monkeypatch.setattr(pages, "_WITH_LAST_S", 0.0)
    for node in NODES:
        lister(three, node).go.clear()
    assert await walk(three) == [["v1"], ["v2"], ["v3"]]
    assert "it did not answer in time" in three.placement.conflicts("n2")[0]


async def test_a_vendors_error_is_a_node_that_does_not_list(three: Placed) -> None:
    await walk(three)
    three.refuse("n3", Code.INTERNAL)
    assert await walk(three) == [["v1"], ["v2"], ["v3"]]
    three.now += 3_600.0
    with pytest.raises(CallError, match="edge node n3: no"):
        await walk(three)


async def test_a_forgotten_node_is_in_no_list_and_its_last_one_is_gone(three: Placed) -> None:
    await walk(three)
    three.away = {"n2"}
    await walk(three)
    await three.placement.forget("n2")
    assert not three.placement.conflicts("n2")
    with pytest.raises(CallError, match="would lack the entries"):
        await walk(three)
    del three.reports["n2"]
    three.placement.changed(DRIVER)
    assert await walk(three) == [["v1"], ["v3"]]


async def test_a_caller_that_leaves_in_the_turn_in_which_the_call_came_asks_nobody(three: Placed) -> None:
    three.send("ListVolumes").cancel()
    await settle()
    assert three.calls == []


async def test_a_caller_that_leaves_ends_its_question(three: Placed) -> None:
    lister(three, "n1").go.clear()
    asking = asyncio.create_task(page(three))
    await lister(three, "n1").asked.wait()
    asking.cancel()
    await asyncio.wait([asking])
    lister(three, "n1").go.set()
    await settle()
    three.away = {"n1"}
    with pytest.raises(CallError, match="would lack the entries"):
        await page(three)


# -------------------- hostile nodes --------------------


async def refused(world: Placed, why: str) -> None:
    """The list is refused at n2, for this reason."""
    with pytest.raises(CallError, match=why) as caught:
        await walk(world)
    assert "would lack the entries of edge node n2:" in str(caught.value)
    assert "and those of" not in str(caught.value)


async def test_a_list_without_an_end_is_refused(three: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_PAGES", 5)
    token = iter(range(100))
    three.vendors["n2"] = lambda _: (csi.ListVolumesResponse(next_token=str(next(token))).SerializeToString(), OK)
    await refused(three, "its answers to /csi.v1.Controller/ListVolumes do not end")
    assert next(token) == 5


async def test_a_huge_token_is_refused(three: Placed) -> None:
    huge = csi.ListVolumesResponse(next_token="x" * 5_000)
    three.vendors["n2"] = lambda _: (huge.SerializeToString(), OK)
    await refused(three, "has a token of 5000 bytes")


async def test_an_answer_of_millions_of_empty_entries_is_refused(three: Placed) -> None:
    three.vendors["n2"] = lambda _: (b"\x0a\x00" * (inventory._MOST_ENTRIES + 1), OK)
    await refused(three, "has 100001 entries")


async def test_an_answer_that_does_not_parse_is_no_list(three: Placed) -> None:
    three.vendors["n2"] = lambda _: (b"\xff", OK)
    await refused(three, "its answer does not parse")


async def test_the_last_lists_are_bounded_and_a_large_one_leaves_room_for_the_others(
    three: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LASTS_BYTES", 10_000)
    lister(three, "n2").volumes = [f"volume-{number}" for number in range(1_000)]
    for _ in range(3):
        await walk(three)
    three.away = {"n1", "n3"}
    assert ids(await page(three)) == ["v1"]
    three.away = {"n2"}
    with pytest.raises(CallError, match="would lack the entries"):
        await walk(three)
    kept = three.placement._pages
    assert kept._lasts_bytes == sum(len(last.body) for last in kept._lasts.values()) < 100


async def test_lists_that_are_too_old_make_room(three: Placed) -> None:
    await walk(three)
    three.now += 3_600.0
    three.away = {"n2", "n3"}
    await page(three)
    assert len(three.placement._pages._lasts) == 1


async def test_an_id_that_another_node_made_is_left_out_of_a_nodes_list_and_shown(three: Placed) -> None:
    await three.has_made("n1")
    three.vendors["n1"] = Lister("vol-1")
    lister(three, "n2").volumes.append("vol-1")
    assert await walk(three) == [["vol-1"], ["v2"], ["v3"]]
    assert "ids of other nodes, such as volume vol-1, which is on edge node n1" in three.placement.conflicts("n2")[0]
    lister(three, "n1").volumes.clear()
    assert await walk(three) == [[], ["v2"], ["v3"]]
    lister(three, "n2").volumes.remove("vol-1")
    await walk(three)
    assert not three.placement.conflicts("n2")


async def test_an_id_that_two_nodes_list_is_the_one_of_its_persistent_volumes_node(three: Placed) -> None:
    lister(three, "n1").volumes.append("lv")
    lister(three, "n2").volumes.append("lv")
    assert await walk(three) == [["v1", "lv"], ["v2", "lv"], ["v3"]]
    three.placement.affinity = affinity("n1", handle="lv")
    assert await walk(three) == [["v1", "lv"], ["v2"], ["v3"]]
    assert "lv, which is on edge node n1" in three.placement.conflicts("n2")[0]
