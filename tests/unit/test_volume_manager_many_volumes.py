"""The volume manager with many volumes: it keeps nothing of those that are gone, and reads the usage in turns."""

import asyncio
from collections.abc import Sized
from typing import Any

import pytest

from edge.manager.task import VolumeTask
from edge.volumes import VolumeKey
from tests.kit.edge_volumes import EdgeVolumes
from tests.kit.waiting import settle


def _sizes(*owners: Any) -> dict[str, int]:
    """How much is in each collection of these objects, by its name."""
    return {
        f"{type(owner).__name__}.{name}": len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, Sized) and not isinstance(value, str)
    }


async def _come_and_go(edge: EdgeVolumes, number: int) -> None:
    """A pod with a volume, and one whose volume cannot be resolved, from their beginning to their end."""
    claim = f"c{number}"
    refs = [edge.add_pod(f"p{number}", claims=(claim,))]
    refs.append(edge.store.put({**edge.store.body(refs[0]), "metadata": _named(f"lost{number}")}))
    edge.store.put({**edge.store.body(refs[1]), "spec": _wanting(f"nothing{number}")})
    await settle()
    assert edge.entry(f"p{number}", claim).state == "published"
    for ref in refs:
        edge.store.drop(ref)
    await settle()
    await settle()
    assert edge.manager.describe() == []


def _named(name: str) -> dict[str, Any]:
    return {"namespace": "default", "name": name, "uid": f"{name}-uid"}


def _wanting(claim: str) -> dict[str, Any]:
    return {
        "nodeName": "n1",
        "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
    }


async def test_a_hundred_pods_that_came_and_went_leave_no_task_and_no_entry() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    await edge.start()
    await _come_and_go(edge, 0)
    host = edge.manager._host
    owners = (edge.manager, edge.manager.wanted, host.inputs, host.places)
    before, tasks = _sizes(*owners), len(asyncio.all_tasks())

    for number in range(1, 100):
        await _come_and_go(edge, number)

    assert _sizes(*owners) == before
    assert edge.states.rows() == []
    assert len(asyncio.all_tasks()) == tasks
    await edge.manager.close(0.0)


async def test_timers_that_have_rung_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[VolumeKey]
    edge, run, failed = EdgeVolumes(), VolumeTask.run, []

    async def fail_once(task: VolumeTask) -> None:
        if task.key not in failed:
            failed.append(task.key)
            raise RuntimeError("a bug")
        await run(task)

    monkeypatch.setattr(VolumeTask, "run", fail_once)
    await edge.start()
    for number in range(3):
        edge.add_pod(f"p{number}", claims=(f"c{number}",))
    await settle()
    await edge.clock.turn(60.0)
    assert len(edge.states.publications()) == 3
    assert edge.manager._timers == {}
    await edge.manager.close(0.0)


async def test_volumes_are_looked_at_in_twenty_turns_an_interval_and_each_once() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    for number in range(100):
        edge.add_pod(f"p{number}", claims=(f"c{number}",))
    await edge.start()
    for _ in range(10):
        await settle()
    assert sum(one.state == "published" for one in edge.manager.describe()) == 100
    await edge.clock.turn(60)  # the first looks, wherever in the interval they began
    edge.take_calls()

    turns: list[list[str]] = []
    for _ in range(60):
        await edge.clock.turn(1)
        await settle()
        turns.append(edge.take_calls())

    looks = [call for calls in turns for call in calls]
    assert len(looks) == len(set(looks)) == 100
    assert sum(bool(calls) for calls in turns) == 20, "of sixty seconds"
    assert max(len(calls) for calls in turns) < 25
    await edge.manager.close(0.0)
