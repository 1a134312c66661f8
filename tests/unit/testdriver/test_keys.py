"""Calls with an equal key work one after the other."""

import asyncio

from common.csi import csi_pb2 as pb
from tests.kit.testdriver.keys import Keys
from tests.kit.waiting import settle


async def hold(keys: Keys, method: str, request: object, story: list[str], mark: str, end: asyncio.Event) -> None:
    async with keys.held(method, request):  # type: ignore[arg-type]  # any message
        story.append(mark)
        await end.wait()


async def test_a_second_call_with_the_key_waits_for_the_first_and_another_key_does_not() -> None:
    keys, end, never = Keys(), asyncio.Event(), asyncio.Event()
    story: list[str] = []
    async with asyncio.TaskGroup() as group:
        first = group.create_task(hold(keys, "CreateVolume", pb.CreateVolumeRequest(name="a"), story, "a1", end))
        await settle()
        group.create_task(hold(keys, "CreateVolume", pb.CreateVolumeRequest(name="a"), story, "a2", end))
        other = group.create_task(hold(keys, "CreateVolume", pb.CreateVolumeRequest(name="b"), story, "b", never))
        await settle()
        assert story == ["a1", "b"]

        end.set()
        await first
        await settle()
        assert story == ["a1", "b", "a2"]
        other.cancel()


async def test_different_methods_on_one_volume_share_its_key() -> None:
    keys, end = Keys(), asyncio.Event()
    story: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(keys, "NodeStageVolume", pb.NodeStageVolumeRequest(volume_id="v"), story, "stage", end))
        await settle()
        group.create_task(hold(keys, "DeleteVolume", pb.DeleteVolumeRequest(volume_id="v"), story, "delete", end))
        await settle()
        assert story == ["stage"]
        end.set()

    assert story == ["stage", "delete"]


async def test_a_cancelled_wait_passes_the_turn_on() -> None:
    keys, end = Keys(), asyncio.Event()
    story: list[str] = []
    request = pb.DeleteVolumeRequest(volume_id="v")
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(keys, "DeleteVolume", request, story, "first", end))
        await settle()
        waiting = group.create_task(hold(keys, "DeleteVolume", request, story, "cancelled", end))
        group.create_task(hold(keys, "DeleteVolume", request, story, "last", end))
        await settle()
        waiting.cancel()
        end.set()

    assert story == ["first", "last"]


async def test_reads_wait_for_nobody() -> None:
    keys, never = Keys(), asyncio.Event()
    story: list[str] = []
    reads = [
        asyncio.create_task(hold(keys, "ListVolumes", pb.ListVolumesRequest(), story, str(number), never))
        for number in range(3)
    ]
    await settle()

    assert story == ["0", "1", "2"]
    for read in reads:
        read.cancel()
