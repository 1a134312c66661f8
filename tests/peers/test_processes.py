"""The processes of the tests: an early end is told, and none outlives the test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kit.processes import ProcessDiedError
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from tests.kit.processes import Supervisor

_ROOT = Path(__file__).parents[2]


def test_a_process_that_ends_before_it_is_ready_is_an_error_with_its_status_and_its_last_words(
    supervisor: Supervisor,
) -> None:
    with pytest.raises(ProcessDiedError, match=r"(?s)short-lived ended \(exit status 3\).*no such disk"):
        supervisor.start("short-lived", ["sh", "-c", "echo no such disk; exit 3"], ready=lambda: False)


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
