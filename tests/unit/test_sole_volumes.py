"""The volume manager and a volume that one node at a time may have: the hub knows of it before it is staged, and an old
copy of a PersistentVolume mounts nothing.
"""

from __future__ import annotations

import pytest

from edge.volume_errors import NotReady
from tests.kit.volume_world import DRIVER, World
from tests.kit.waiting import settle

IN_USE = f"kubernetes.io/csi/{DRIVER}^h-data"
CALLS = ["stage h-data", "publish h-data web-uid"]


def world_with(*modes: str, attach: bool = False) -> World:
    world = World()
    world.add_driver(attachRequired=attach)
    world.add_volume(pv={"accessModes": list(modes)})
    world.add_pod()
    return world


async def test_it_is_listed_and_the_hub_has_stored_that_before_it_is_staged() -> None:
    world = world_with("ReadWriteOnce")
    world.acked.clear()
    await world.start()
    assert (world.manager.volumes_in_use(), world.take_calls()) == ([IN_USE], [])
    assert "volumesInUse" in world.entry()["error"]
    world.acked.set()
    await settle()
    assert world.take_calls() == CALLS


async def test_it_waits_until_its_objects_are_complete_on_the_present_link() -> None:
    world = world_with("ReadWriteOncePod")
    world.store.in_step = False
    await world.start()
    assert world.take_calls() == []
    assert world.entry()["error"] == (
        "the hub has not confirmed on the present link that this node's objects are complete"
    )
    world.store.in_step = True
    world.store.tell()
    await settle()
    assert world.take_calls() == CALLS


async def test_while_another_node_has_it_the_pod_waits_and_says_so_and_the_hub_is_asked_again() -> None:
    world = world_with("ReadWriteOnce")
    world.refusal = "it was refused: node n2 has the volume"
    await world.start()
    await world.clock.turn(9)
    assert (world.asked, world.take_calls()) == (1, [])
    assert world.entry()["error"].endswith("(volumesInUse): it was refused: node n2 has the volume")
    world.refusal = ""
    await world.clock.turn(2)
    assert (world.asked, world.take_calls()) == (2, CALLS)


async def test_after_the_link_was_gone_an_earlier_confirmation_does_not_count() -> None:
    world = world_with("ReadWriteOnce")
    world.plugin.fails("stage", NotReady("the driver is away"))
    await world.start()
    assert (world.asked, world.take_calls()) == (1, ["stage h-data"])
    for is_linked in (False, True):
        world.store.in_step = is_linked
        world.refusal = "node n2 has the volume"
        world.store.tell()
        await settle()
    assert (world.asked, world.take_calls()) == (2, [])


async def test_a_link_that_comes_back_is_waited_for_each_time() -> None:
    world = world_with("ReadWriteOnce")
    await world.start()
    world.take_calls()
    world.store.in_step = False
    world.store.tell()
    world.add_pod("late", claims=("more",))
    await settle()
    assert world.take_calls() == []
    world.store.in_step = True
    world.store.tell()
    await settle()
    assert world.take_calls() == ["stage h-more", "publish h-more late-uid"]


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
async def test_one_that_was_staged_before_does_not_wait_for_the_hub(boot: str) -> None:
    world = world_with("ReadWriteOnce")
    await world.start()
    world.acked.clear()
    world.store.in_step = False
    if boot != "boot-1":
        world.plugin.mounted.clear()
    await world.restart(boot=boot)
    assert world.manager.volumes_in_use() == [IN_USE]
    assert world.take_calls() == (CALLS if boot == "boot-2" else [])


async def test_it_is_listed_until_it_is_unstaged() -> None:
    world = world_with("ReadWriteOnce")
    await world.start()
    (pod,) = world.store.refs("Pod")
    world.store.drop(pod)
    await settle()
    assert (world.take_calls()[-1], world.manager.volumes_in_use()) == ("unstage h-data", [])


async def test_a_volume_of_many_nodes_is_not_listed_and_waits_for_nobody() -> None:
    world = world_with("ReadWriteMany")
    world.acked.clear()
    world.store.in_step = False
    await world.start()
    assert (world.manager.volumes_in_use(), world.take_calls()) == ([], CALLS)


async def test_an_attached_volume_does_not_wait_for_complete_objects() -> None:
    world = world_with("ReadWriteOnce", attach=True)
    world.attach()
    world.store.in_step = False
    await world.start()
    assert world.take_calls() == CALLS
