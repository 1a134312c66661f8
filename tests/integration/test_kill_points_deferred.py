"""kill -9 at each fault point of a volume that the pod's runtime mounts, and amid the mkfs."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deferring_node import DeferringNode
from tests.kit.fault_points import BLOCK, DEFERRED, check_calls, dies_before
from tests.kit.needs import needs_loops
from tests.kit.waiting import wait_for

pytestmark = needs_loops

_TEXT = "written by the guest\n"


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeferringNode]:
    with DeferringNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start()
        yield node


@pytest.mark.slow
@pytest.mark.parametrize("point", [*DEFERRED, *BLOCK])
def test_a_deferred_volume_survives_a_death_at(node: DeferringNode, point: str) -> None:
    name = point.replace(".", "-")
    node.handles[name] = node.make_volume(name, size_bytes=32 << 20, block=True)
    before = len(node.calls())
    node.agent.kill()
    node.restart_agent(fault_point=point)
    node.put(name)
    died = dies_before(node, lambda: [each["state"] for each in node.volumes(name)] == ["published"])
    node.wait_published(name)
    with node.guest(name) as inside:
        (inside / "file").write_text(_TEXT)
    node.put(name, phase="Succeeded")
    died += dies_before(node, lambda: died and not node.left_over())
    assert died == 1, f"the agent died {died} times at {point}"
    node.wait_clean()
    check_calls(node.calls()[before:], point)
    node.put(name, pod_name=f"{name}-again")
    node.wait_published(f"{name}-again")
    with node.guest(f"{name}-again") as inside:
        assert (inside / "file").read_text() == _TEXT
    node.end(name, pod_name=f"{name}-again")
    node.remove(name)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False], ids=["a-mkfs-that-dies-too", "a-mkfs-that-goes-on"])
def test_a_file_system_whose_mkfs_was_interrupted_is_made_anew_and_an_earlier_mkfs_is_waited_for(
    tmp_path: Path, is_killed: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="csi-") as directory, DeferringNode(Path(directory), tmp_path) as node:
        slow = _slow_mkfs(Path(directory))
        os.environ["PATH"], before = f"{slow.parent}:{os.environ['PATH']}", os.environ["PATH"]
        try:
            node.start()
            node.handles["data"] = node.make_volume("data", size_bytes=32 << 20, block=True)
            node.put("data")
            began = Path(directory, "began")
            wait_for(began.exists, what="the mkfs", instead=node.tell)
            node.agent.kill()
            if is_killed:
                os.kill(int(began.read_text()), signal.SIGKILL)
            node.restart_agent()
            node.wait_published("data", timeout_s=60)
        finally:
            os.environ["PATH"] = before
        with node.guest("data") as inside:
            (inside / "file").write_text(_TEXT)
        subprocess.run(["e2fsck", "-f", "-n", node.image("data")], check=True, capture_output=True)
        node.end("data")


def _slow_mkfs(directory: Path) -> Path:
    """Make a mkfs.ext4 whose first run leaves a superblock, then takes its time."""
    tool = directory / "tools" / "mkfs.ext4"
    tool.parent.mkdir()
    tool.write_text(
        f"""#!/bin/sh
if mkdir {directory}/once 2>/dev/null; then
    for device; do :; done
    /sbin/mkfs.ext4 "$@" && dd if=/dev/zero of="$device" bs=4096 seek=8 count=2000 conv=notrunc status=none
    echo $$ > {directory}/began.new && mv {directory}/began.new {directory}/began
    exec sleep 3
fi
exec /sbin/mkfs.ext4 "$@"
"""
    )
    tool.chmod(0o755)
    return tool
