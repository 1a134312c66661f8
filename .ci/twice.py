"""Runs pytest, and the failed tests once more, alone: a busy machine costs a line in the log, and no run.

    python .ci/twice.py PYTEST-ARGUMENTS

Rules:

* The exit status is 0 if all passed, or if each that failed passed alone; one that is skipped then did not pass.
  `CSI_BRIDGE_SECOND_CHANCE` names a file that gets a line for each of these: their cause is to be found all the same.
* There is no second chance if pytest ended with another status than 1 (a collection error, an interruption), if a
  worker crashed, or if more than 20 tests failed.
* With `CSI_BRIDGE_QUIET_LOCK`, the second run waits for the lock on that file: its holder has the machine until then.

This file is also the plugin that tells which tests failed, and that chooses them in the second run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_FAILED = 20
"""More is no accident."""

_TOLD, _CHOSEN = "CSI_BRIDGE_TOLD", "CSI_BRIDGE_CHOSEN"
"""The environment variables that name the files between this command and its plugin."""


@dataclass
class Run:
    """One run of pytest.

    Attributes:
        failed: the failed tests; under xdist with `@` and the group behind each.
        passed: how many tests passed, as far as it is about the test itself.
        broken: whether a worker crashed, or a file could not be collected.
    """

    failed: list[str] = field(default_factory=list)
    passed: int = 0
    broken: bool = False


class Plugin:
    """What pytest does for this command; xdist's workers have none of it."""

    def __init__(self, told: Path, chosen: list[str] | None) -> None:
        self._told, self._chosen = told, chosen
        self._run = Run()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the chosen tests alone."""
        if self._chosen is None:
            return
        kept = [item for item in items if any(f"{name}@".startswith(f"{item.nodeid}@") for name in self._chosen)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, in whichever part of the test."""
        self._run.passed += report.when == "call" and report.passed
        if report.failed and report.nodeid not in self._run.failed:
            self._run.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected."""
        self._run.broken |= report.failed

    @pytest.hookimpl(optionalhook=True)  # it is xdist's
    def pytest_handlecrashitem(self) -> None:
        """Note that a worker crashed."""
        self._run.broken = True

    def pytest_sessionfinish(self) -> None:
        """Tell what was noted."""
        self._told.write_text(json.dumps(asdict(self._run)))


def pytest_configure(config: pytest.Config) -> None:
    """Come to life where this command started pytest."""
    if _TOLD not in os.environ or hasattr(config, "workerinput"):
        return
    chosen = os.environ.get(_CHOSEN)
    plugin = Plugin(Path(os.environ[_TOLD]), json.loads(Path(chosen).read_text()) if chosen else None)
    config.pluginmanager.register(plugin)


def main(arguments: Sequence[str]) -> int:
    """Run pytest, and what failed once more; the exit status."""
    with tempfile.TemporaryDirectory() as directory:
        told, chosen = Path(directory) / "told", Path(directory) / "chosen"
        status = _pytest(arguments, {_TOLD: str(told)})
        first = Run(**json.loads(told.read_text())) if told.exists() else Run(broken=True)
        if status != 1 or first.broken or not 0 < len(first.failed) <= _MOST_FAILED:
            return status
        names = [_without_group(name) for name in first.failed]
        _say(f"{len(names)} failed, and run once more, alone", names)
        chosen.write_text(json.dumps(first.failed))
        told.unlink()
        with _quiet():
            status = _pytest([*arguments, "-n", "0"], {_TOLD: str(told), _CHOSEN: str(chosen)})
        second = Run(**json.loads(told.read_text())) if told.exists() else Run(broken=True)
        if status == 0 and second.passed != len(first.failed):
            _say(f"only {second.passed} of {len(first.failed)} passed the second time", [])
            return 1
        if status == 0:
            _say("PASSED ONLY ALONE, at the second time; find the cause", names)
            if record := os.environ.get("CSI_BRIDGE_SECOND_CHANCE"):
                with Path(record).open("a") as file:
                    file.writelines(f"{name}\n" for name in names)
        return status


def _without_group(name: str) -> str:
    return name if name.endswith("]") else name.rpartition("@")[0] or name


def _pytest(arguments: Sequence[str], extra: dict[str, str]) -> int:
    here = Path(__file__).resolve()
    path = os.pathsep.join(filter(None, (str(here.parent), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", "pytest", "-p", here.stem, *arguments]
    environment = {**os.environ, "PYTHONPATH": path, **extra}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603  # ours


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Wait until nobody else wants the machine."""
    lock = os.environ.get("CSI_BRIDGE_QUIET_LOCK")
    if not lock:
        yield
        return
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str, names: Sequence[str]) -> None:
    print("", f"== {text}", *(f"   {name}" for name in names), sep="\n", flush=True)  # noqa: T201  this is a command


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
