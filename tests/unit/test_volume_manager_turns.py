"""The volume manager looks at the volumes of a node in turns: few wake-ups, and never all volumes at once."""

from __future__ import annotations

from tests.kit.volume_world import World
from tests.kit.waiting import settle

_VOLUMES = 100


async def test_volumes_are_looked_at_in_twenty_turns_an_interval_and_each_once() -> None:
    world = World(stats_interval_s=60.0)
    for number in range(_VOLUMES):
        world.add_pod(f"p{number}", claims=(f"c{number}",))
    await world.start()
    for _ in range(10):
        await settle()
    assert sum(one["state"] == "published" for one in world.manager.describe()) == _VOLUMES
    await world.clock.turn(60)  # the first looks, wherever in the interval they began
    world.take_calls()

    turns: list[list[str]] = []
    for _ in range(60):
        await world.clock.turn(1)
        await settle()
        turns.append(world.take_calls())

    looks = [call for calls in turns for call in calls]
    assert len(looks) == len(set(looks)) == _VOLUMES
    assert sum(bool(calls) for calls in turns) == 20, "of sixty seconds"
    assert max(len(calls) for calls in turns) < _VOLUMES / 4
    await world.manager.close(0.0)
