"""An edge node that mounts and unmounts for long, with many volumes and many objects: nothing grows, nothing is left.

Real hub, agent and driver. Counts are asserted and bytes, never times.
"""

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.errors import BridgeError
from tests.kit.edge_node import EdgeNode, Object, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.waiting import wait_for

pytestmark = [needs_mounts, pytest.mark.slow]

_AT_ONCE = 10  # pods that come and go together: each round is as many cycles

_SLOW_S = 100.0

_OWN_FACTS = 2
"""The node and its drivers: what it tells besides its pods, of which it tells a moment late (`pod_facts`)."""

_POOL = min(32, (os.cpu_count() or 1) + 4)  # threads of an event loop's pool (ThreadPoolExecutor)


@dataclass(frozen=True)
class Held:
    """What a process holds: numbers that are the same after as many rounds as one likes."""

    files: int  # its open file descriptors
    threads: int
    rows: dict[str, int]  # the rows of its databases

    def is_no_more_than(self, before: "Held") -> bool:
        """Whether nothing has grown, but for the loop's pool of threads, which grows to its limit by chance.

        A connection that was just closing when it was counted may be gone since.
        """
        return self.files <= before.files and self.threads <= before.threads + _POOL and self.rows == before.rows


@pytest.fixture
def node(short_dir: Path, tmp_path: Path) -> Iterator[EdgeNode]:
    with EdgeNode(short_dir, tmp_path) as node:
        yield node


def held(node: EdgeNode) -> Held:
    process = Path("/proc") / str(node.agent.process.pid)
    return Held(
        files=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        rows=_rows(node),
    )


def _rows(node: EdgeNode) -> dict[str, int]:
    """By file and table of the agent's state."""
    found = {}
    for path in sorted((node.directory / "n1").glob("*.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                (count,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()
                found[f"{path.name} {table}"] = count
        database.close()
    return found


def _pods(claims: list[str]) -> list[Object]:
    return [pod(f"p-{claim}", claim) for claim in claims]


def _cycle(node: EdgeNode, claims: list[str]) -> None:
    """All pods come, and go when all have their volumes."""
    node.write(*_pods(claims), file="pods")
    wait_for(
        lambda: sum(each["state"] == "published" for each in node.state()["volumes"]) == len(claims),
        what="published volumes",
        timeout_s=_SLOW_S,
        instead=node.tell,
    )
    assert len(node.mounts()) == 2 * len(claims)
    node.remove("pods")
    node.wait_clean(timeout_s=_SLOW_S)


def _make_volumes(node: EdgeNode, count: int) -> list[str]:
    """Volumes of the driver, which the hub knows with their claims."""
    claims = [f"c{number:03}" for number in range(count)]
    objects = [each for claim in claims for each in volume(claim, node.make_volume(claim, size_bytes=1 << 20))]
    node.write(*objects, file="volumes")
    return claims


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "cycles", [pytest.param(50, id="50"), pytest.param(1_000, id="1000", marks=pytest.mark.endurance)]
)
def test_mounting_and_unmounting_again_and_again_leaves_nothing_behind(node: EdgeNode, cycles: int) -> None:
    node.start()
    claims = _make_volumes(node, _AT_ONCE if cycles <= 50 else 50)
    _cycle(node, claims)  # threads and connections are made when they are first needed
    _wait_rows(node, "facts", _OWN_FACTS)
    before = held(node)

    for _ in range(cycles // len(claims)):
        _cycle(node, claims)

    wait_for(
        lambda: held(node).is_no_more_than(before),
        what=f"agent that holds no more than {before}",
        instead=lambda: held(node),
    )
    assert node.agent.status()["operations"] == []
    calls = node.calls()
    done = (cycles // len(claims) + 1) * len(claims)
    assert len(calls) == 4 * done, "each step was done once"
    assert {call.code for call in calls} == {"OK"}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [pytest.param(60, id="60"), pytest.param(300, id="300", marks=pytest.mark.endurance)])
def test_a_node_with_many_volumes_gets_them_all_back_after_a_reboot_without_its_hub(node: EdgeNode, count: int) -> None:
    node.start()
    claims = _make_volumes(node, count)
    node.write(*_pods(claims), file="pods")
    _wait_all_published(node, count)
    _wait_rows(node, "facts", _OWN_FACTS + 2 * count)  # of each pod, and of the sole use of its volume
    before = held(node)

    node.bridge.hub.kill()
    node.agent.kill()
    node.wipe_mounts()
    node.restart_agent()
    _wait_all_published(node, count)

    assert len(node.mounts()) == 2 * count
    assert held(node).rows == before.rows
    assert held(node).threads <= before.threads + _POOL
    assert len(node.calls()) == 2 * 2 * count, "each step was done once, and once more after the reboot"


def _wait_rows(node: EdgeNode, table: str, count: int) -> None:
    wait_for(
        lambda: _rows(node).get(f"edge.db {table}") == count,
        what=f"store of {count:,} {table}",
        timeout_s=_SLOW_S,
        instead=lambda: _rows(node),
    )


def _wait_all_published(node: EdgeNode, count: int) -> None:
    def look() -> bool:
        try:
            volumes = node.state()["volumes"]
        except BridgeError:  # it is just starting
            return False
        return len(volumes) == count and all(each["state"] == "published" for each in volumes)

    wait_for(look, what=f"{count} published volumes", timeout_s=_SLOW_S, instead=node.agent.process.log_tail)
