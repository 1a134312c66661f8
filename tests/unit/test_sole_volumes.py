"""The volume manager and a volume that one node at a time may have: the hub knows of it before it is staged, and an old
copy of a PersistentVolume mounts nothing.
"""

import pytest

from edge.volume_errors import NotReady
from tests.kit.edge_volumes import DRIVER, MOUNTED, EdgeVolumes
from tests.kit.waiting import settle

IN_USE = f"kubernetes.io/csi/{DRIVER}^h-data"


def edge_with(*modes: str, attach: bool = False) -> EdgeVolumes:
    edge = EdgeVolumes()
    edge.add_driver(attachRequired=attach)
    edge.add_volume(pv={"accessModes": list(modes)})
    edge.add_pod()
    return edge


async def test_it_is_listed_and_the_hub_has_stored_that_before_it_is_staged() -> None:
    edge = edge_with("ReadWriteOnce")
    edge.acked.clear()
    await edge.start()
    assert (edge.manager.volumes_in_use(), edge.take_calls()) == ([IN_USE], [])
    assert "volumesInUse" in edge.entry().error
    edge.acked.set()
    await settle()
    assert edge.take_calls() == MOUNTED


async def test_it_waits_until_its_objects_are_complete_on_the_present_link() -> None:
    edge = edge_with("ReadWriteOncePod")
    edge.store.in_step = False
    await edge.start()
    assert edge.take_calls() == []
    assert edge.entry().error == ("the hub has not confirmed on the present link that this node's objects are complete")
    edge.store.in_step = True
    edge.store.tell()
    await settle()
    assert edge.take_calls() == MOUNTED


async def test_while_another_node_has_it_the_pod_waits_and_says_so_and_the_hub_is_asked_again() -> None:
    edge = edge_with("ReadWriteOnce")
    edge.refusal = "it was refused: node n2 has the volume"
    await edge.start()
    await edge.clock.turn(9)
    assert (edge.asked, edge.take_calls()) == (1, [])
    assert edge.entry().error.endswith("(volumesInUse): it was refused: node n2 has the volume")
    edge.refusal = ""
    await edge.clock.turn(2)
    assert (edge.asked, edge.take_calls()) == (2, MOUNTED)


async def test_after_the_link_was_gone_an_earlier_confirmation_does_not_count() -> None:
    edge = edge_with("ReadWriteOnce")
    edge.plugin.fails("stage", NotReady("the driver is away"))
    await edge.start()
    assert (edge.asked, edge.take_calls()) == (1, ["stage h-data"])
    for is_linked in (False, True):
        edge.store.in_step = is_linked
        edge.refusal = "node n2 has the volume"
        edge.store.tell()
        await settle()
    assert (edge.asked, edge.take_calls()) == (2, [])


async def test_a_link_that_comes_back_is_waited_for_each_time() -> None:
    edge = edge_with("ReadWriteOnce")
    await edge.start()
    edge.take_calls()
    edge.store.in_step = False
    edge.store.tell()
    edge.add_pod("late", claims=("more",))
    await settle()
    assert edge.take_calls() == []
    edge.store.in_step = True
    edge.store.tell()
    await settle()
    assert edge.take_calls() == ["stage h-more", "publish h-more late-uid"]


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
async def test_one_that_was_staged_before_does_not_wait_for_the_hub(boot: str) -> None:
    edge = edge_with("ReadWriteOnce")
    await edge.start()
    edge.acked.clear()
    edge.store.in_step = False
    if boot != "boot-1":
        edge.plugin.mounted.clear()
    await edge.restart(boot=boot)
    assert edge.manager.volumes_in_use() == [IN_USE]
    assert edge.take_calls() == (MOUNTED if boot == "boot-2" else [])


async def test_a_volume_of_many_nodes_is_not_listed_and_waits_for_nobody() -> None:
    edge = edge_with("ReadWriteMany")
    edge.acked.clear()
    edge.store.in_step = False
    await edge.start()
    assert (edge.manager.volumes_in_use(), edge.take_calls()) == ([], MOUNTED)


async def test_an_attached_volume_does_not_wait_for_complete_objects() -> None:
    edge = edge_with("ReadWriteOnce", attach=True)
    edge.attach()
    edge.store.in_step = False
    await edge.start()
    assert edge.take_calls() == MOUNTED
