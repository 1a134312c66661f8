"""What all tests share."""

import asyncio.constants
import gc
import logging
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from common.observe import logs
from tests.kit import needs
from tests.kit.audit import Line, audited
from tests.kit.examples import examples

# In its debug mode asyncio warns of a callback that took 100 ms, which on a busy machine is any: no test means that.
logging.getLogger("asyncio").setLevel(logging.ERROR)

# And it keeps ten lines of the stack for every callback, a fifth of the suite's time. Whoever needs them sets it to 10.
vars(asyncio.constants)["DEBUG_STACK_DEPTH"] = 0

settings.register_profile("csi-bridge", examples(50))
settings.load_profile("csi-bridge")

# What is made while tests are collected stays until the end. To look through it again and again costs a quarter of that
# time.
gc.disable()

_REQUIRED = os.environ.get("CSI_BRIDGE_REQUIRE_PEERS") == "1"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A temporary directory with a path short enough for UNIX sockets (107 bytes), unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="csi-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def in_hub() -> bool:
    """Whether the bridge's proxy driver runs inside the hub: `tests.kit.forms` has marks for both."""
    return False


@pytest.fixture
def audit_lines() -> Iterator[list[Line]]:
    """The lines of the audit log that this test causes."""
    with audited() as lines:
        yield lines


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test may configure the log of its process, also by a command: the next test finds the log as it was."""
    root, bridge = logging.getLogger(), logging.getLogger(logs.ROOT)
    handlers, level = list(root.handlers), bridge.level
    yield
    if logs._lines is None:
        return
    root.handlers[:] = handlers
    bridge.setLevel(level)
    logs._lines.close()
    logs._lines = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In a run that requires the peers, fail a test that was skipped for something that can be installed."""
    report = yield
    if _REQUIRED and report.skipped and needs.is_installable(reason := _reason(report)):
        report.outcome, report.longrepr = "failed", f"{reason} (it is required: CSI_BRIDGE_REQUIRE_PEERS=1)"
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect garbage from here on, but look no more at what the collection made."""
    gc.enable()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in a few lines how many tests were skipped, and what would bring them back."""
    skipped = [_reason(report) for report in terminalreporter.stats.get("skipped", ())]
    if skipped:
        lines = needs.summary(skipped)
        terminalreporter.section(f"{'left out, though all is required' if _REQUIRED else 'skipped'}: {len(skipped)}")
        for line in lines:
            terminalreporter.write_line(line)
        if _REQUIRED and (record := os.environ.get("CSI_BRIDGE_LEFT_OUT")):
            with Path(record).open("a") as file:
                file.writelines(f"{line}\n" for line in lines)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    return told.removeprefix("Skipped: ")


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay on one worker, and which begin first.

    * Tests on the whole cluster share it, so they are one group.
    * Each control plane costs as much as ten tests, so all quick tests share one. The slow ones wait for timeouts of
      Kubernetes, so they share three: a run of everything would wait for one alone.
    * Of any other file the tests stay together, for what they share.

    The longest groups begin first; the quick tests fill what is left of the processor.
    """
    slow_files = sorted({item.path.stem for item in items if _is_slow(item) and _needs(item, "control_plane")})
    ranks = {}
    for item in items:
        if _needs(item, "cluster") and item.get_closest_marker("e2e"):
            rank, group = 0, "cluster"
        elif _needs(item, "control_plane") and _is_slow(item):
            rank, group = 1, f"control plane of slow tests {slow_files.index(item.path.stem) % 3}"
        elif _needs(item, "control_plane"):
            rank, group = 2, "control plane"
        else:
            rank = 3 if _is_slow(item) or item.get_closest_marker("e2e") else 4
            group = item.path.stem
        ranks[item] = rank
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=ranks.__getitem__)


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _needs(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())
