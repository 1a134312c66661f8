"""The volume manager keeps nothing of pods and volumes that are gone, however many there were."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from edge.manager.task import VolumeTask
from tests.kit.volume_world import World
from tests.kit.waiting import settle

if TYPE_CHECKING:
    import pytest

    from edge.volumes import VolumeKey


def _sizes(*owners: Any) -> dict[str, int]:
    """How much is in each collection of these objects, by its name."""
    return {
        f"{type(owner).__name__}.{name}": len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, Sized) and not isinstance(value, str)
    }


async def _come_and_go(world: World, number: int) -> None:
    """A pod with a volume, and one whose volume cannot be resolved, from their beginning to their end."""
    claim = f"c{number}"
    refs = [world.add_pod(f"p{number}", claims=(claim,))]
    refs.append(world.store.put({**world.store.body(refs[0]), "metadata": _named(f"lost{number}")}))
    world.store.put({**world.store.body(refs[1]), "spec": _wanting(f"nothing{number}")})
    await settle()
    assert world.entry(f"p{number}", claim)["state"] == "published"
    for ref in refs:
        world.store.drop(ref)
    await settle()
    await settle()
    assert world.manager.describe() == []


def _named(name: str) -> dict[str, Any]:
    return {"namespace": "default", "name": name, "uid": f"{name}-uid"}


def _wanting(claim: str) -> dict[str, Any]:
    return {
        "nodeName": "n1",
        "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
    }


async def test_a_hundred_pods_that_came_and_went_leave_no_task_and_no_entry() -> None:
    world = World(stats_interval_s=60.0)
    await world.start()
    await _come_and_go(world, 0)
    host = world.manager._host
    owners = (world.manager, world.manager.wanted, host.inputs, host.places)
    before, tasks = _sizes(*owners), len(asyncio.all_tasks())

    for number in range(1, 100):
        await _come_and_go(world, number)

    assert _sizes(*owners) == before
    assert world.states.rows() == []
    assert len(asyncio.all_tasks()) == tasks
    await world.manager.close(0.0)


async def test_timers_that_have_rung_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[VolumeKey]
    world, run, failed = World(), VolumeTask.run, []

    async def fail_once(task: VolumeTask) -> None:
        if task.key not in failed:
            failed.append(task.key)
            raise RuntimeError("a bug")
        await run(task)

    monkeypatch.setattr(VolumeTask, "run", fail_once)
    await world.start()
    for number in range(3):
        world.add_pod(f"p{number}", claims=(f"c{number}",))
    await settle()
    await world.clock.turn(60.0)
    assert len(world.states.publications()) == 3
    assert world.manager._timers == {}
    await world.manager.close(0.0)
