"""Attacks on the fence of a node: it kills nobody, and runs no code from its working directory."""

import sys
from pathlib import Path

import pytest

from tests.kit.fenced_nodes import FencedNodes
from tests.kit.needs import needs_loops
from tests.kit.processes import Process
from tests.kit.waiting import wait_for

pytestmark = needs_loops

_TELL = "open('{}', 'a').write(__name__)\n"

_HOLD = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.write(file, b"mine")
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_bystander_with_a_file_whose_path_is_like_the_volumes_lives_on_and_no_module_of_the_working_directory_runs(
    short_dir: Path, tmp_path: Path
) -> None:
    with FencedNodes(short_dir, tmp_path, "ext4") as nodes:
        node = nodes.nodes["n1"]
        node.agent.stop()
        for name in ("edge", "edge/fencing", "common", "cli"):
            (node.working / name).mkdir()
            (node.working / f"{name}/__init__.py").write_text(_TELL.format(node.directory / "was-run"))
        (node.working / "edge/fencing/watchdog.py").write_text(_TELL.format(node.directory / "was-run"))
        node.agent.start()
        nodes.move("n1")
        node.write("fork")
        file = node.directory / "home" / str(node.wait_published()).lstrip("/") / "f"
        file.parent.mkdir(parents=True)
        words = node.machine.inside([sys.executable, "-c", _HOLD, file])
        bystander = Process("bystander", words, log=node.directory / "b")
        bystander.start()
        wait_for(lambda: file.exists() and file.stat().st_size, what="file of the user")
        node.partition()
        node.wait_fenced()
        size = file.stat().st_size
        wait_for(lambda: file.stat().st_size > size, what="bytes after the fence", instead=bystander.log_tail)
        bystander.kill()
        assert not (node.directory / "was-run").exists()
