"""Attacks on the fence of a node: it kills nobody, and runs no code from its working directory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.kit.fenced_nodes import FencedNodes
from tests.kit.needs import needs_loops
from tests.kit.processes import Process
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_loops

_HOLD = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.write(file, b"mine")
    time.sleep(0.01)
"""


@pytest.fixture
def nodes(short_dir: Path, tmp_path: Path) -> Iterator[FencedNodes]:
    with FencedNodes(short_dir, tmp_path, "ext4") as nodes:
        yield nodes


def test_a_process_of_root_that_has_a_users_file_open_whose_path_is_like_the_volumes_lives_on(
    nodes: FencedNodes,
) -> None:
    node = nodes.nodes["n1"]
    nodes.move("n1")
    node.write("fork")
    file = node.directory / "home" / str(node.wait_published()).lstrip("/") / "f"
    file.parent.mkdir(parents=True)
    bystander = Process("bystander", node.machine.inside([sys.executable, "-c", _HOLD, file]), log=node.directory / "b")
    bystander.start()
    wait_for(lambda: file.exists() and file.stat().st_size, what="file of the user")
    node.partition()
    node.wait_fenced()
    size = file.stat().st_size
    wait_for(lambda: file.stat().st_size > size, what="bytes after the fence", instead=bystander.log_tail)
    bystander.kill()


def test_nothing_of_foreign_modules_in_the_agents_working_directory_runs(nodes: FencedNodes) -> None:
    node = nodes.nodes["n1"]
    node.agent.stop()
    for name in ("edge", "edge/fencing", "common", "cli"):
        (node.working / name).mkdir()
    for name in ("edge/__init__", "edge/fencing/__init__", "edge/fencing/watchdog", "common/__init__", "cli/__init__"):
        (node.working / f"{name}.py").write_text(f"open({str(node.directory / 'was-run')!r}, 'a').write(__name__)\n")
    node.agent.start()
    nodes.move("n1")
    node.write("open")
    node.partition()
    node.wait_fenced()
    assert not (node.directory / "was-run").exists()
