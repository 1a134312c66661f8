"""Counts: the steps of one ordinary call at each hop. They hold on a machine of any speed, however busy it is.

    make bench ARGS="--only counts"
    python bench/counts.py --functions 40        the same, and the functions that each hop calls most often

The call is a CreateVolume or a DeleteVolume, one caller, with a pinned driver that answers at once. Each kind of step
is counted in another life of the processes, so that no count disturbs another:

* calls of Python functions and of C functions, in the main thread (cProfile);
* allocated memory blocks, of all threads (`bench/allocations.c`): about one for each object made;
* system calls, of all threads (strace).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.chain import NODE, Chain, Command, Form, chain, driver, lacks, run_load  # noqa: E402
from bench.counted import C  # noqa: E402
from bench.figure import Figure, NotMeasured  # noqa: E402
from bench.session_pair import Pair, function_calls  # noqa: E402
from tests.kit.bridge import Bridge, Member  # noqa: E402
from tests.kit.waiting import wait_for  # noqa: E402
from tests.peers.build import build, module_of  # noqa: E402

_COUNTED = Path(__file__).with_name("counted.py")
_ALLOCATIONS = Path(__file__).with_name("allocations.c")

_WARM_UP = 100
_PAIRS = 300
"""Pairs of CreateVolume and DeleteVolume: so many that the first and the last steps do not matter."""

_STARTS_S = 2.0
"""After this time the hub has ended the work of its start."""

_SETTLE_S = 0.3
"""After the load, the hops still send their last acks and write their last log lines."""

_BLUR = {"system calls": 0.1}
_LEAST_BLUR = 0.02
"""By this share two counts of the same code differ. A busy machine makes more reads and waits of the same bytes."""

Counts = dict[str, dict[str, float]]
"""By hop: each counted thing, and how often it happens in a call."""


class _Counter(Protocol):
    """One way to count the steps of a chain's processes."""

    bridge: type[Bridge]
    """Starts the processes so that they can be counted."""

    def begin(self, of: Chain) -> None:
        """Begin to count."""

    def end(self, of: Chain) -> dict[str, dict[str, int]]:
        """Return by hop each counted thing, and how often it happened."""


# ---- by the processes themselves -------------------------------------------------------------------------------------


class _BySignals:
    """Has the processes count themselves (`bench/counted.py`)."""

    def __init__(self, kind: str, **environment: str) -> None:
        words = [sys.executable, str(_COUNTED), kind]

        class Counted(Bridge):
            """Starts each member through `bench/counted.py`."""

            def _start(self, member: Member, *, wait: bool = True) -> None:
                process = member.process
                process.command[:1] = [*words, str(_file_of(member))]
                process.environment = {**os.environ, **environment}
                super()._start(member, wait=wait)

        self.bridge = Counted

    def begin(self, of: Chain) -> None:
        for member in of.members.values():
            _file_of(member).unlink(missing_ok=True)  # of an earlier count
            member.process.signal(signal.SIGUSR1)
            wait_for(_file_of(member).exists, what=f"count of {member.process.name}")

    def end(self, of: Chain) -> dict[str, dict[str, int]]:
        return {name: self._end(member) for name, member in of.members.items()}

    def _end(self, member: Member) -> dict[str, int]:
        member.process.signal(signal.SIGUSR2)
        text: str = wait_for(_file_of(member).read_text, what=f"counts of {member.process.name}")
        counts: dict[str, int] = json.loads(text)
        return counts


def _file_of(member: Member) -> Path:
    return member.process.log.with_suffix(".counts")


def calls() -> _BySignals:
    """Return the counter of function calls."""
    return _BySignals("calls")


def held() -> _BySignals:
    """Return the counter of what the processes hold."""
    return _BySignals("held")


def allocations(directory: Path) -> _BySignals:
    """Return the counter of allocated blocks.

    Raises:
        NotMeasured: there is no C compiler, or no C library that it knows.
    """
    compiler, library = shutil.which("cc") or shutil.which("gcc"), directory / "allocations.so"
    if compiler is None:
        raise NotMeasured("there is no C compiler")
    command = [compiler, "-O2", "-shared", "-fPIC", "-fno-builtin", "-o", library, _ALLOCATIONS]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotMeasured(f"the C compiler failed: {done.stderr.strip()}")
    return _BySignals("allocations", LD_PRELOAD=str(library), PYTHONMALLOC="malloc")


# ---- by strace -------------------------------------------------------------------------------------------------------


class _ByStrace:
    """Attaches strace to the processes.

    Raises:
        NotMeasured: strace is missing or may not attach.
    """

    bridge = Bridge

    def __init__(self, directory: Path) -> None:
        if shutil.which("strace") is None:
            raise NotMeasured("strace is not on the PATH")
        self._directory = directory
        self._tracers: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, of: Chain) -> None:
        for name, pid in of.processes.items():
            command = ["strace", "-f", "-c", "-o", self._summary(name), "-p", str(pid)]
            tracer = self._tracers[name] = subprocess.Popen(command, stderr=subprocess.PIPE)
            wait_for(lambda pid=pid, tracer=tracer: _traced(pid) or tracer.poll() is not None, what="strace")
            if tracer.poll() is not None:
                raise NotMeasured(f"strace ended: {tracer.communicate()[1].decode().strip()}")

    def end(self, _of: Chain) -> dict[str, dict[str, int]]:
        for tracer in self._tracers.values():
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()
        return {name: read_summary(self._summary(name).read_text()) for name in self._tracers}

    def _summary(self, name: str) -> Path:
        return self._directory / f"{name}.strace"


def _traced(pid: int) -> bool:
    threads = list(Path(f"/proc/{pid}/task").glob("*/status"))
    return all("TracerPid:\t0\n" not in status.read_text() for status in threads)


def read_summary(text: str) -> dict[str, int]:
    """Return the calls by name from `strace -c`, whose columns are % time, seconds, usecs/call, calls, errors, name."""
    rows = [line.split() for line in text.splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"}


# ---- a call ----------------------------------------------------------------------------------------------------------


def count(directory: Path, loadgen: Command, counter: _Counter, *, form: Form) -> Counts:
    """Run a chain, and return the steps of one call at each hop."""
    directory.mkdir(exist_ok=True)
    with (
        driver(directory, loadgen) as vendor,
        chain(directory / "b", vendor, form=form, placement="pinned", node=NODE, kind=counter.bridge) as of,
    ):
        _load(loadgen, of.socket, _WARM_UP)
        time.sleep(_STARTS_S)
        counter.begin(of)
        _load(loadgen, of.socket, _PAIRS)
        time.sleep(_SETTLE_S)
        told = counter.end(of)
    return {hop: {name: times / (2 * _PAIRS) for name, times in things.items()} for hop, things in told.items()}


def _load(loadgen: Command, socket: Path, pairs: int) -> dict[str, Any]:
    flags = ("--scenario=create-delete", "--callers=1", f"--count={pairs}", "--warm-up=1us")
    return run_load(loadgen, {"bridge": socket}, flags)


def count_all(directory: Path, loadgen: Command, form: Form = Form.SPLIT) -> dict[str, Counts | str]:
    """Return the counts of each kind of step, or the reason why it cannot be counted here."""
    directory.mkdir(parents=True, exist_ok=True)
    kinds = {
        "calls": calls,
        "allocations": lambda: allocations(directory),
        "system calls": lambda: _ByStrace(directory),
    }
    found: dict[str, Counts | str] = {}
    for kind, counter in kinds.items():
        try:
            found[kind] = count(directory / kind.replace(" ", "-"), loadgen, counter(), form=form)
        except NotMeasured as error:
            found[kind] = str(error)
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows(found: Mapping[str, Counts | str]) -> dict[str, dict[str, float] | str]:
    """Return by kind of step the sums of each hop."""
    table: dict[str, dict[str, float] | str] = {}
    for kind, counts in found.items():
        if isinstance(counts, str):
            table[kind] = counts
        elif kind == "calls":
            table["Python function calls"] = {hop: _sum(of, c=False) for hop, of in counts.items()}
            table["C function calls"] = {hop: _sum(of, c=True) for hop, of in counts.items()}
        else:
            table[kind] = {hop: sum(of.values()) for hop, of in counts.items()}
    return table


def _sum(functions: Mapping[str, float], *, c: bool) -> float:
    return sum(times for name, times in functions.items() if name.startswith(C) is c)


def steps(directory: Path, loadgen: Command) -> list[Figure]:
    """Count the steps of a call at each hop of each form."""
    found = []
    for form in Form:
        if not lacks(form):
            found += _figures(form.value, count_all(directory / form.name[0], loadgen, form))
    return found


def _figures(form: str, counts: Mapping[str, Counts | str]) -> list[Figure]:
    found = []
    for kind, row in rows(counts).items():
        if isinstance(row, str):
            found.append(Figure(f"{form}: {kind} a call", f"left out: {row}"))
            continue
        for hop, times in row.items():
            name = f"{form}: {kind} a call, {'proxy driver' if hop == 'proxy' else hop}"
            found.append(
                Figure(
                    name,
                    f"{times:.1f}",
                    details=_top(counts, kind, hop),
                    samples=[times],
                    blur=_BLUR.get(kind, _LEAST_BLUR),
                )
            )
    return found


def _top(counts: Mapping[str, Counts | str], kind: str, hop: str) -> dict[str, float]:
    """Return each counted thing of a kind and a hop, the most frequent first."""
    of = counts.get(kind, counts["calls"])
    assert isinstance(of, dict)
    c = {"Python function calls": False, "C function calls": True}.get(kind)
    things = {name: times for name, times in of[hop].items() if c is None or name.startswith(C) is c}
    return dict(sorted(things.items(), key=lambda item: -item[1]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=0, help="print so many of each hop's functions and calls")
    options = parser.parse_args()
    loadgen = module_of("loadgen")
    build([loadgen])
    for form in Form:
        if lacks(form):
            continue
        with tempfile.TemporaryDirectory(prefix="csib-") as directory:
            found = count_all(Path(directory), (str(loadgen.directory / "loadgen"),), form)
        for kind, row in rows(found).items():
            told = row if isinstance(row, str) else "  ".join(f"{hop} {times:.1f}" for hop, times in row.items())
            print(f"{form.value}, {kind} a call: {told}")
        for kind, counts in found.items():
            for hop, of in counts.items() if isinstance(counts, dict) and options.functions else ():
                print(f"\n{hop}, {kind} a call:")
                for name, times in sorted(of.items(), key=lambda item: -item[1])[: options.functions]:
                    print(f"{times:8.2f}  {name}")
    print(f"session pair: {function_calls(Pair()):.1f} Python function calls a call, both sessions")


if __name__ == "__main__":
    main()
