"""The processes of the peers: their errors, their order, and that none outlives the test run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kit.processes import Process, ProcessDiedError
from tests.kit.waiting import NeverCameError, wait_for

if TYPE_CHECKING:
    from tests.kit.processes import Supervisor

_ROOT = Path(__file__).parents[2]


def _script(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_a_process_that_ends_before_it_is_ready_is_an_error_with_its_status_and_its_last_words(
    supervisor: Supervisor,
) -> None:
    with pytest.raises(ProcessDiedError, match=r"(?s)short-lived ended \(exit status 3\).*no such disk"):
        supervisor.start("short-lived", _script("echo no such disk; exit 3"), ready=lambda: False)


def test_a_process_that_never_becomes_ready_is_an_error_with_its_last_words(supervisor: Supervisor) -> None:
    with pytest.raises(NeverCameError, match=r"(?s)being ready of slow within 3 s.*still looking"):
        supervisor.start("slow", _script("echo still looking; exec sleep 60"), ready=lambda: False, timeout_s=3.0)


def test_all_processes_are_stopped_the_last_one_first(supervisor: Supervisor, tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    for name in ("first", "second"):
        text = f"trap 'echo {name} >> {ends}; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        process = supervisor.start(name, _script(text))
        process.wait_until(lambda process=process: "ready" in process.output())  # type: ignore[misc]  # a default argument binds it now

    supervisor.stop()

    assert ends.read_text().split() == ["second", "first"]


def test_a_killed_process_can_be_started_again_and_keeps_its_log(supervisor: Supervisor) -> None:
    process = supervisor.start("killed", _script("echo life; exec sleep 60"))
    process.wait_until(lambda: process.output().count("life") == 1)
    first = process.pid

    process.kill()
    assert process.exit_status == -signal.SIGKILL
    process.start()

    process.wait_until(lambda: process.output().count("life") == 2)
    assert process.pid != first


def test_no_process_outlives_a_test_run_that_was_killed(tmp_path: Path) -> None:
    run = (
        "import sys, time; from pathlib import Path; from tests.kit.processes import Process\n"
        f"child = Process('child', ['sleep', '60'], log=Path({str(tmp_path)!r}) / 'child.log')\n"
        "child.start(); print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", run], cwd=_ROOT, stdout=subprocess.PIPE, text=True) as test_run:
        assert test_run.stdout is not None
        child = psutil.Process(int(test_run.stdout.readline()))
        wait_for(lambda: child.name() == "sleep", what="start of the child")
        test_run.kill()

        wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="end of the child")


def test_a_process_that_ends_by_itself_gives_its_exit_status(tmp_path: Path) -> None:
    process = Process("ends", ["sh", "-c", "exit 7"], log=tmp_path / "ends.log")

    process.start()

    assert process.wait_exit() == 7
    assert not process.running
