"""Block devices of pods with real loop devices: held open once, exchanged, let go; also after an agent's container."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.disk import loop_devices
from edge.disk.block_devices import BlockDevices
from edge.disk.layout import Layout
from edge.disk.root_dir import RootDir
from tests.kit.leftovers import clear, loops_below, mounts_below
from tests.kit.needs import needs_loops

pytestmark = needs_loops


class Node:
    """A root directory as a container has it, where mounts outlive the container, and what a driver published there.

    Attributes:
        first: a device (a file, which can be held open as well).
        second: another one.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "kubelet"
        self.root.mkdir()
        subprocess.run(["mount", "--bind", self.root, self.root], check=True)
        subprocess.run(["mount", "--make-shared", self.root], check=True)
        self._layout = Layout(self.root)
        self.devices = BlockDevices(RootDir(self.root), self._layout)  # the agent's, of the test's own mount namespace
        self.first, self.second = directory / "first", directory / "second"
        for device in (self.first, self.second):
            device.write_bytes(bytes(1024 * 1024))

    def publish(self, device: Path, pod: str = "u1") -> None:
        target = self._layout.block_target("pv-a", pod)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(device)

    def in_container(self, step: str, pod: str = "u1") -> None:
        """A life of an agent in a container: `map` or `unmap`, in a mount namespace that ends with it."""
        command = [sys.executable, "-c", _LIFE, self.root, step, pod]
        subprocess.run(["unshare", "--mount", "--propagation=unchanged", "--", *command], check=True)

    def place(self, pod: str = "u1") -> Path:
        return self._layout.device_map("pv-a", pod)

    def link(self, pod: str = "u1") -> Path:
        return self._layout.device_link(pod, "pv-a")


_LIFE = """
import sys
from pathlib import Path
from edge.disk.block_devices import BlockDevices
from edge.disk.layout import Layout
from edge.disk.root_dir import RootDir

root, step, pod = Path(sys.argv[1]), *sys.argv[2:]
getattr(BlockDevices(RootDir(root), Layout(root)), step)("pv-a", pod)
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dev-") as name:
        made = Node(Path(name).resolve())
        try:
            yield made
        finally:
            for device in (*loops_of(made.first), *loops_of(made.second)):
                subprocess.run(["losetup", "--detach", device], check=True)
            clear(made.root)


def loops_of(device: Path) -> list[str]:
    """The loop devices that hold it open, known by its inode: those without a path, too."""
    command = ["losetup", "--noheadings", "--output=NAME", "--list", "--associated", device]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_a_pod_gets_the_device_that_is_published_now_though_it_held_another_one(node: Node) -> None:
    node.publish(node.first)
    node.devices.map("pv-a", "u1")
    node.publish(node.second)

    node.devices.map("pv-a", "u1")

    assert node.place().samefile(node.second)
    assert node.link().readlink() == node.second
    assert mounts_below(node.place()) == [str(node.place())]
    (loop,) = loops_of(node.second)
    assert loops_of(node.first) == []
    # The kernel tells a kubelet this path.
    assert Path("/sys/block", Path(loop).name, "loop/backing_file").read_text() == f"{node.place()}\n"
    node.devices.unmap("pv-a", "u1")
    assert (mounts_below(node.place()), loops_of(node.second)) == ([], [])


def test_a_device_that_an_earlier_container_held_open_is_held_once_exchanged_and_let_go(node: Node) -> None:
    node.publish(node.first)
    node.in_container("map")
    (loop,) = loops_of(node.first)
    assert loops_below(node.root) == []  # no path tells of it any more

    node.in_container("map")
    assert (loops_of(node.first), mounts_below(node.place())) == ([loop], [str(node.place())])

    node.publish(node.second)
    node.in_container("map")
    assert node.place().samefile(node.second)
    assert (loops_of(node.first), len(loops_of(node.second))) == ([], 1)

    node.in_container("unmap")
    assert (loops_of(node.second), mounts_below(node.place())) == ([], [])


def test_a_device_that_was_unmounted_from_under_its_loop_device_is_not_held_for_another_one(node: Node) -> None:
    node.publish(node.first)
    node.devices.map("pv-a", "u1")
    subprocess.run(["umount", "--lazy", node.place()], check=True)
    node.publish(node.second)

    node.devices.map("pv-a", "u1")

    assert (loops_of(node.first), len(loops_of(node.second))) == ([], 1)


def test_what_an_earlier_container_held_open_for_another_pod_stays_held(node: Node) -> None:
    for pod in ("u1", "u2"):
        node.publish(node.first, pod)
    node.in_container("map", "u1")
    (first,) = loops_of(node.first)
    node.in_container("map", "u2")
    assert len(loops_of(node.first)) == 2

    node.in_container("unmap", "u2")
    assert loops_of(node.first) == [first]

    node.in_container("unmap", "u1")
    assert loops_of(node.first) == []


def test_a_device_on_a_dead_server_keeps_no_other_one_from_being_held_and_let_go(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.publish(node.first, "u1")
    node.in_container("map", "u1")
    (dead,) = loops_of(node.first)
    node.publish(node.second, "u2")
    answers, read_mark = threading.Event(), loop_devices._read_mark

    def read_mark_of_a_dead_server(device: Path) -> bytes:
        if str(device) == dead:
            answers.wait()
        return read_mark(device)

    with monkeypatch.context() as patch:
        patch.setattr(loop_devices, "_LOOK_LIMIT_S", 0.05)
        patch.setattr(loop_devices, "_read_mark", read_mark_of_a_dead_server)
        node.devices.map("pv-a", "u2")
        assert len(loops_of(node.second)) == 1
        node.devices.unmap("pv-a", "u2")
        assert loops_of(node.second) == []
        assert [text.partition(" is skipped")[0] for text in caplog.messages] == [dead]
        answers.set()
        loop_devices._hung[Path(dead)].join()

    node.devices.unmap("pv-a", "u1")
    assert loops_of(node.first) == []


def test_a_device_that_a_kubelet_held_open_is_held_once_and_let_go(node: Node) -> None:
    """It runs `losetup -f` on the bound device, and knows the loop device by the path that the kernel tells."""
    node.publish(node.first)
    node.place().parent.mkdir(parents=True)
    node.place().touch()
    subprocess.run(["mount", "--bind", node.first, node.place()], check=True)
    subprocess.run(["losetup", "--find", node.place()], check=True)
    (loop,) = loops_of(node.first)

    node.devices.map("pv-a", "u1")
    assert loops_of(node.first) == [loop]

    node.devices.unmap("pv-a", "u1")
    assert (loops_of(node.first), mounts_below(node.place())) == ([], [])


def test_a_loop_device_whose_number_became_another_files_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look for it and its opening somebody else detaches it, and attaches another file to it."""
    loop_devices.attach_loop(node.second, node.second)
    (loop,) = loops_of(node.second)
    outdated, look = [[Path(loop)]], loop_devices.loops_on
    monkeypatch.setattr(loop_devices, "loops_on", lambda file: outdated.pop() if outdated else look(file))

    loop_devices.detach_loops(node.first)

    assert loops_of(node.second) == [loop]
