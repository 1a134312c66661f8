"""The log of a process: written to its end, and where it cannot be written, the process lives and ends as it would."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.ports import free_ports
from tests.kit.processes import listens_on
from tests.kit.waiting import wait_for

_HUB = [Path(sys.executable).with_name("csi-bridge"), "hub"]
_LIMIT_S = 60


def script(*then: str, lines: int = 1000) -> list[str]:
    """The command of a process that writes so many lines to its log, and then does something."""
    program = (
        "import logging, sys",
        "from common.observe import logs",
        "logs.configure(log_format='text', level='info')",
        f"for number in range({lines}): logging.getLogger('csi_bridge.kiln').info('line %d', number)",
        *then,
    )
    return [sys.executable, "-c", "\n".join(program)]


_NEVER_WAITS = script("print('lives', flush=True)", "sys.stdin.read()", lines=20_000)


@pytest.fixture(params=["full disk", "no reader"])
def nowhere(request: pytest.FixtureRequest) -> Iterator[int]:
    """A file descriptor that takes nothing."""
    if request.param == "full disk":
        place = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, place = os.pipe()
        os.close(reader)
    yield place
    os.close(place)


@pytest.fixture(params=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of a process whose standard error Python buffers or not, whatever the developer's own environment says."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return ours | ({"PYTHONUNBUFFERED": "1"} if request.param == "unbuffered" else {})


def test_a_process_whose_log_cannot_be_written_lives_and_ends_with_its_own_status(
    nowhere: int, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        script("print('lives')", "sys.exit(3)"),
        stdout=subprocess.PIPE,
        stderr=nowhere,
        env=environment,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "lives\n")


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError", 1), ("sys.exit('why')", 1)]
)
def test_a_process_that_ends_by_itself_has_written_every_line(end: str, status: int) -> None:
    done = subprocess.run(script(end), stderr=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=False)
    written = [line.rpartition("kiln: ")[2] for line in done.stderr.splitlines() if "kiln: " in line]
    assert (done.returncode, written) == (status, [f"line {number}" for number in range(1000)])


def test_a_process_whose_log_nobody_reads_goes_on_and_counts_the_lines_that_it_loses() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(_NEVER_WAITS, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"lives\n"
        _, log = process.communicate(timeout=_LIMIT_S)
    lines = [line.partition(": ")[2] for line in log.decode().splitlines()]
    written = [int(line.removeprefix("line ")) for line in lines if line.startswith("line ")]
    lost = [int(line.split()[2].replace(",", "")) for line in lines if line.endswith(" more lines were lost")]
    assert written == sorted(set(written))
    assert lost  # more than once if the writer gets a turn meanwhile
    assert (len(written) + len(lost), len(written) + sum(lost)) == (len(lines), 20_000)


def test_a_process_whose_log_nobody_ever_reads_ends_as_it_would() -> None:
    reader, place = os.pipe()
    done = subprocess.run(_NEVER_WAITS, input=b"", stdout=subprocess.PIPE, stderr=place, timeout=_LIMIT_S, check=False)
    os.close(reader)
    os.close(place)
    assert (done.returncode, done.stdout) == (0, b"lives\n")


def test_a_hub_whose_log_cannot_be_written_drains_and_ends_with_0(nowhere: int, short_dir: Path) -> None:
    (port,) = free_ports(1)
    flags = [f"--uds=unix://{short_dir}/h", f"--listen=127.0.0.1:{port}", "--insecure", f"--state-dir={short_dir}/s"]
    with subprocess.Popen([*_HUB, *flags], stderr=nowhere) as hub:
        try:
            wait_for(lambda: listens_on(port), what="hub that listens")
            hub.send_signal(signal.SIGTERM)
            assert hub.wait(_LIMIT_S) == 0
        finally:
            hub.kill()
