"""The demo tells its whole story, and leaves nothing behind: however it ends, and whatever its environment holds."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.kit import needs
from tests.kit.waiting import let_pass, wait_for

PROGRAM = Path(sys.executable).with_name("csi-bridge")

ACTS = (
    "Everything starts, in any order",
    "A sidecar in the cloud calls CreateVolume on its local socket",
    "A pod of the edge node appears in the hub's manifests, and its volume at the edge",
    "The hub dies, and the edge node reboots: its agent is gone, and so is every mount",
    "The hub is back, and the pod is removed from the manifests",
    "A slow CreateVolume is under way, and the link is cut",
    "The link is back, and the same call joins the work that went on",
    "The sidecar deletes both volumes",
)
OF_MOUNTS = ACTS[3:5]
CUT = ACTS[5]

STOPPED = 130

LIMIT_S = 100.0

needs_root = needs.skip_without(needs.root())  # it can mount, and lose the right to


class Theatre:
    """A place for one performance."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory  # where the demo makes its directory
        self._demo: subprocess.Popen[str] | None = None

    def perform(self, *prefix: str, terminal: int | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start the demo, with its output in a pipe or on a terminal."""
        out = subprocess.PIPE if terminal is None else terminal
        self._demo = subprocess.Popen(
            [*prefix, PROGRAM, "demo"],
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=out,
            stderr=out,
            text=True,
            env={**os.environ, "TMPDIR": str(self.directory), **variables},
        )
        return self._demo

    def processes(self) -> list[str]:
        """The command lines of the demo's processes that there are. All of them inherit its TMPDIR."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.directory) and " demo" not in (
                    words := " ".join(process.cmdline())
                ):
                    found.append(words)
            except psutil.Error:  # it has just ended, or is another user's
                continue
        return found

    def left(self) -> list[str]:
        """What is left of the demo: processes, mounts, files."""
        # mountinfo writes a blank as \040.
        mounts = Path("/proc/self/mountinfo").read_text().replace(r"\040", " ").splitlines()
        return [
            *self.processes(),
            *(mount for mount in mounts if f"{self.directory}/" in mount),
            *map(str, self.directory.iterdir()),
        ]

    def clear(self) -> None:
        """End what a failed test has left."""
        if self._demo is not None:
            self._demo.kill()
            self._demo.communicate()


@pytest.fixture
def theatre(short_dir: Path) -> Iterator[Theatre]:
    """A place whose path has a blank, as people's temporary directories may."""
    directory = short_dir / "a b"
    directory.mkdir()
    theatre = Theatre(directory)
    yield theatre
    theatre.clear()


def told(demo: subprocess.Popen[str], *, until: str) -> None:
    assert demo.stdout is not None
    heard = []
    for line in demo.stdout:
        heard.append(line)
        if until in line:
            return
    pytest.fail("".join(heard))


def acts_of(text: str) -> Sequence[str]:
    heading = [line.partition(". ") for line in text.splitlines()]
    return [title for number, _, title in heading if number.isdigit()]


def test_the_whole_story_is_told_and_nothing_is_left(theatre: Theatre) -> None:
    demo = theatre.perform(CSI_BRIDGE_HUB_LISTEN="nonsense", DIRDRIVER_FS="nonsense")
    text, errors = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, errors) == (0, "")
    assert acts_of(text) == [act for act in ACTS if os.getuid() == 0 or act not in OF_MOUNTS]
    assert ("written, and read back" in text) is (os.getuid() == 0)
    assert theatre.left() == []


@pytest.mark.slow
@needs_root
def test_where_root_may_not_mount_the_act_is_left_out_and_the_story_goes_on(theatre: Theatre) -> None:
    demo = theatre.perform("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    text, errors = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, errors) == (0, "")
    assert "left out: mounting needs root, and the right to mount" in text
    assert acts_of(text) == [act for act in ACTS if act not in OF_MOUNTS]
    assert theatre.left() == []


@pytest.mark.slow
def test_a_call_that_is_refused_fails_the_demo_in_words_and_nothing_is_left(theatre: Theatre) -> None:
    demo = theatre.perform()
    told(demo, until=ACTS[0])
    (directory,) = theatre.directory.iterdir()
    another = directory / "storage" / "volumes" / "vol-1"
    another.mkdir(parents=True)
    record = {
        "volume_id": "vol-1",
        "name": "pvc-demo-1",
        "layout": "directory",
        "size_bytes": 1,
        "parameters": {"a": "b"},
    }
    (another / "volume.json").write_text(json.dumps(record))
    text, errors = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, errors) == (1, "")
    assert re.search("\nThe demo failed: a call was refused: ALREADY_EXISTS: .* exists as vol-1, .*\n$", text)
    assert theatre.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # SIGHUP: a terminal that is closed, below
def test_a_signal_in_the_middle_of_a_call_stops_it_and_nothing_is_left(theatre: Theatre, number: int) -> None:
    demo = theatre.perform()
    told(demo, until=CUT)
    assert len(theatre.processes()) == 5
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, errors) == (STOPPED, "")
    assert theatre.left() == []


@pytest.mark.slow
@needs_root
def test_a_signal_while_a_volume_is_mounted_leaves_no_mount(theatre: Theatre) -> None:
    demo = theatre.perform()
    told(demo, until="written, and read back")

    def is_stopped_with_a_mount() -> bool:
        demo.send_signal(signal.SIGSTOP)
        if any("kubernetes.io~csi" in what for what in theatre.left()):
            return True
        demo.send_signal(signal.SIGCONT)  # it unmounts once itself, and the agent mounts again
        return False

    wait_for(is_stopped_with_a_mount, what="a mounted volume")
    demo.send_signal(signal.SIGTERM)
    demo.send_signal(signal.SIGCONT)
    _, errors = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, errors) == (STOPPED, "")
    assert theatre.left() == []


@pytest.mark.slow
def test_impatience_does_not_keep_it_from_cleaning_up(theatre: Theatre) -> None:
    demo = theatre.perform()
    told(demo, until=CUT)
    while demo.poll() is None:
        demo.send_signal(signal.SIGINT)
        let_pass(0.05)
    assert demo.communicate()[1] == ""
    assert theatre.left() == []


@pytest.mark.slow
@needs.skip_without(needs.program("setsid"))
def test_a_terminal_that_is_closed_stops_it_and_nothing_is_left(theatre: Theatre) -> None:
    ours, its = pty.openpty()
    demo = theatre.perform("setsid", "--ctty", terminal=its)
    os.close(its)
    heard = b""
    while CUT.encode() not in heard:
        heard += os.read(ours, 4096)
    os.close(ours)
    demo.wait(LIMIT_S)
    assert theatre.left() == []
