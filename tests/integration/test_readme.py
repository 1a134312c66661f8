"""The README's "Try it by hand", typed as it stands there, but with paths and a port of the test's own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.ports import free_ports
from tests.kit.processes import Process
from tests.kit.waiting import wait_for

README = Path(__file__).parents[2] / "README.md"

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def blocks(short_dir: Path) -> list[str]:
    section = README.read_text().partition("\n## Try it by hand\n")[2].partition("\n## ")[0]
    (port,) = free_ports(1)
    typed = section.replace("/tmp/try-", f"{short_dir}/try-").replace(":10350", f":{port}")
    return re.findall(r"^```sh\n(.*?)^```$", typed, re.DOTALL | re.MULTILINE)


@pytest.fixture
def started(blocks: list[str], tmp_path: Path) -> Iterator[list[Process]]:
    """The four commands that run until they are stopped."""
    with ExitStack() as stack:
        processes = [
            Process(
                f"terminal-{number}",
                ["bash", "-c", f"exec {block}"],
                log=tmp_path / f"{number}.log",
                environment=ENVIRONMENT,
            )
            for number, block in enumerate(blocks[1:5], 1)
        ]
        for process in processes:
            process.start()
            stack.callback(process.stop)
        yield processes


def typed(command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def test_the_commands_of_the_readme_create_a_volume(blocks: list[str], started: list[Process]) -> None:
    status, _, call = blocks[5].partition("\n")

    def tails() -> str:
        return "\n".join(process.log_tail() for process in started)

    wait_for(lambda: "vendor.example.com" in typed(status).partition("PROXY")[0], what="driver on n1", instead=tails)
    answer = wait_for(lambda: typed(call), what="answer to CreateVolume", instead=tails)
    assert json.loads(answer)["volume"]["volume_id"].startswith("vol-")
    assert all(process.running for process in started)
