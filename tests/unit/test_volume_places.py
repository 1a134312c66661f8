"""The places of volumes: who has which, and what finding that out costs on a node with many volumes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from edge.manager.places import Places
from edge.manager.rows import VolumeRows
from edge.manager.states import Device, Publication
from edge.volumes import Pod, PodVolume, Volume, VolumeKey
from tests.kit.volume_world import FakeStates, World
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from edge.manager.states import Row

ONE, TWO = VolumeKey("d.csi", "one"), VolumeKey("d.csi", "two")
POD = Pod(uid="u", namespace="default", name="web")


def device(handle: str = "one", name: str = "pv", *, block: bool = True) -> Device:
    return Device(driver="d.csi", handle=handle, name=name, block=block)


def publication(handle: str = "one", name: str = "pv", pod_uid: str = "u") -> Publication:
    return Publication(driver="d.csi", handle=handle, name=name, pod_uid=pod_uid)


def want(handle: str = "two", name: str = "pv", *, block: bool = True) -> PodVolume:
    volume = Volume(driver="d.csi", handle=handle, name=name, block=block)
    return PodVolume(pod=POD, volume=volume, volume_name="data")


@pytest.mark.parametrize(
    ("row", "wanted", "taken"),
    [
        (publication(), want(), True),
        (publication(), want(block=False), True),
        (publication(), want("one"), False),
        (publication(pod_uid="other"), want(), False),
        (publication(name="other"), want(), False),
        (device(), want(), True),
        (device(), want("one"), False),
        (device(name="other"), want(), False),
        (device(), want(block=False), False),
        (device(block=False), want(), False),
        (device(block=False), want(block=False), False),
    ],
)
def test_a_place_is_taken_by_another_volume_that_is_there(row: Row, wanted: PodVolume, *, taken: bool) -> None:
    places = Places()
    VolumeRows(row.key, FakeStates(), places).add(row)
    assert places.holder(wanted) == (ONE if taken else None)


async def test_a_place_is_free_when_the_last_volume_has_left_it() -> None:
    places = Places()
    one, two = VolumeRows(ONE, FakeStates(), places), VolumeRows(TWO, FakeStates(), places)
    one.add(publication())
    two.add(publication("two"))
    await one.write(publication(), gone=True)
    assert places.holder(want("three")) == TWO
    await two.write(publication("two"), gone=True)
    assert places.holder(want("three")) is None
    assert vars(places) == vars(Places())


async def test_a_volume_that_is_staged_under_another_name_leaves_its_first_place() -> None:
    places = Places()
    rows = VolumeRows(ONE, FakeStates(), places)
    await rows.intend("stage", device())
    await rows.intend("stage", replace(device(), name="renamed"))
    assert places.holder(want()) is None
    assert places.holder(want(name="renamed")) == ONE
    await rows.settle("stage", device(name="renamed"), gone=True)
    await rows.settle("stage", device(name="renamed"), gone=True)
    assert vars(places) == vars(Places())


async def _steps_a_volume(volumes: int) -> float:
    """How many functions are entered at a boot, for each volume."""
    world, entered = World(), 0
    for number in range(volumes):
        world.add_pod(f"p{number}", claims=(f"c{number}",))

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await world.manager.start()
        while len(world.states.publications()) < volumes:
            await settle()
    finally:
        sys.setprofile(before)
    await world.manager.close(0.0)
    return entered / volumes


async def test_a_volume_costs_as_much_among_many_as_among_few() -> None:
    assert await _steps_a_volume(160) < 1.2 * await _steps_a_volume(40)
