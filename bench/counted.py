"""A counted process: the command `csi-bridge`, which counts its own steps between two signals.

    python bench/counted.py calls COUNTS.json hub --uds=...          function calls, of the main thread
    python bench/counted.py allocations COUNTS.json hub --uds=...    memory blocks, of all threads
    python bench/counted.py held COUNTS.json hub --uds=...           what it holds at the end: tasks, timers, objects

SIGUSR1 begins to count, and creates the file. SIGUSR2 ends it, and writes the counts. The product has no part in this:
`bench/counts.py` and `bench/soak.py` start their processes through here.
"""

import cProfile
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]
C = "in C: "
"""Before the names of functions in C."""


class _Counter(Protocol):
    def begin(self) -> None: ...

    def end(self) -> dict[str, int]:
        """Return each counted thing and how often it happened."""


class _Calls:
    """Counts the calls of functions, by name. It sees no thread but the main one."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def begin(self) -> None:
        self._profile.enable()

    def end(self) -> dict[str, int]:
        self._profile.disable()
        found: dict[str, int] = {}
        for entry in self._profile.getstats():
            code = entry.code
            name = f"{C}{code}" if isinstance(code, str) else f"{_place(code.co_filename)}:{code.co_qualname}"
            found[name] = found.get(name, 0) + entry.callcount
        return found


def _place(path: str) -> str:
    """Return the path within the tree or the installed packages."""
    return path.removeprefix(f"{ROOT}/").rpartition("/site-packages/")[2].rpartition("/lib/")[2]


class _Allocations:
    """Counts the allocated blocks with `bench/allocations.c`, which is loaded before the interpreter."""

    def __init__(self) -> None:
        self._blocks = ctypes.c_long.in_dll(ctypes.CDLL(None), "bench_allocations")

    def begin(self) -> None:
        self._before = self._blocks.value

    def end(self) -> dict[str, int]:
        return {"blocks": self._blocks.value - self._before}


class _Held:
    """Counts what the process holds: memory blocks, and objects by their type. It collects no garbage before."""

    def begin(self) -> None:
        pass

    def end(self) -> dict[str, int]:
        found = {"blocks": sys.getallocatedblocks()}
        for each in gc.get_objects():
            name = f"{type(each).__module__}.{type(each).__qualname__}"
            found[name] = found.get(name, 0) + 1
        return found


_COUNTERS: dict[str, type[_Counter]] = {"calls": _Calls, "allocations": _Allocations, "held": _Held}


def main() -> None:
    """Run csi-bridge with the rest of the command line."""
    kind, counts, *rest = sys.argv[1:]
    counter, file = _COUNTERS[kind](), Path(counts)

    def begin(_number: int, _frame: FrameType | None) -> None:
        file.touch()
        counter.begin()

    def end(_number: int, _frame: FrameType | None) -> None:
        found = counter.end()
        whole = file.with_suffix(".new")
        whole.write_text(json.dumps(found))
        whole.replace(file)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.argv = ["csi-bridge", *rest]
    os.environ.pop("LD_PRELOAD", None)  # for this process only
    from cli.main import main as command  # noqa: PLC0415  # counted from here on

    command()


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    main()
