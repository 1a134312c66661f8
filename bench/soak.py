"""The soak: a long load on one chain, with the size of each process once a minute. Nothing may grow.

    python bench/soak.py --minutes 30
    python bench/soak.py --minutes 10 --form one-process --placement local

Each line of the output is one process at one minute: resident memory, descriptors, threads, tasks, timers, and all
memory blocks of Python. The last lines say how much each of them grew between the first and the last third, and which
types of objects did.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.chain import Chain, Form, chain, driver, run_load  # noqa: E402
from bench.counts import held  # noqa: E402
from tests.peers.build import build, module_of  # noqa: E402

_EVERY_S = 60.0
_SIZES = ("rss_kib", "descriptors", "threads", "tasks", "timers", "blocks")

Held = Mapping[str, int]
"""What one process holds at one time: the sizes, and the objects by their type."""


def sample(of: Chain) -> dict[str, Held]:
    """Return what each process holds now."""
    counter = held()
    counter.begin(of)
    return {hop: _sizes(of.processes[hop]) | _named(counts) for hop, counts in counter.end(of).items()}


def _sizes(pid: int) -> dict[str, int]:
    process = psutil.Process(pid)
    with process.oneshot():
        rss = process.memory_info().rss // 1024
        return {"rss_kib": rss, "descriptors": process.num_fds(), "threads": process.num_threads()}


def _named(counts: Mapping[str, int]) -> dict[str, int]:
    return {"tasks": counts["_asyncio.Task"], "timers": counts.get("uvloop.loop.TimerHandle", 0), **counts}


def grown(samples: list[Held]) -> dict[str, float]:
    """Return by how much each thing grew from the first third of the samples to the last one, on average."""
    third = max(1, len(samples) // 3)
    names = {name for each in samples for name in each}
    first, last = samples[:third], samples[-third:]
    return {name: (sum(s.get(name, 0) for s in last) - sum(s.get(name, 0) for s in first)) / third for name in names}


def main() -> None:
    """Run the load, and print."""
    options = _options()
    loadgen = module_of("loadgen")
    build([loadgen])
    command = (str(loadgen.directory / "loadgen"),)
    form = Form[options.form.upper().replace("-", "_")]
    with tempfile.TemporaryDirectory(prefix="csib-") as directory:
        here = Path(directory)
        with (
            driver(here, command, f"--delay={options.delay}") as vendor,
            chain(here / "b", vendor, form=form, placement=options.placement, kind=held().bridge) as of,
        ):
            samples = _soak(command, of, minutes=options.minutes, callers=options.callers)
    for hop, series in samples.items():
        growth = grown(series)
        print(f"{hop} grew by:", ", ".join(f"{name} {growth[name]:+.1f}" for name in _SIZES))
        most = sorted((name for name in growth if name not in _SIZES), key=lambda name: -growth[name])[:8]
        print("   objects:", ", ".join(f"{name} {growth[name]:+.1f}" for name in most if growth[name] > 0))


def _soak(command: tuple[str, ...], of: Chain, *, minutes: float, callers: int) -> dict[str, list[Held]]:
    flags = ("--scenario=create-delete", f"--callers={callers}", f"--duration={minutes * 60:g}s")
    result: dict[str, Any] = {}
    load = threading.Thread(target=lambda: result.update(run_load(command, {"bridge": of.socket}, flags)))
    load.start()
    began = time.monotonic()
    samples: dict[str, list[Held]] = {hop: [] for hop in of.members}
    while load.is_alive():
        for hop, held_now in sample(of).items():
            samples[hop].append(held_now)
            told = "  ".join(f"{name} {held_now[name]}" for name in _SIZES)
            print(f"{(time.monotonic() - began) / 60:5.1f} min  {hop:6}{told}", flush=True)
        _empty_logs(of)
        load.join(_EVERY_S)
    if not result:
        sys.exit("the load failed")
    target = result["targets"]["bridge"]
    print(f"{target['operations']['count']} pairs of calls, {target['operations']['per_second']:.0f} a second")
    return samples


def _empty_logs(of: Chain) -> None:
    """Empty the logs, which would fill the disk. The bridge looks for complaints in them: look now."""
    for name, member in of.members.items():
        if complaints := member.complaints():
            print(f"{name} complains:", *complaints[:20], sep="\n  ", flush=True)
        os.truncate(member.process.log, 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--form", choices=["split", "one-process"], default="split")
    parser.add_argument("--placement", default="auto")
    parser.add_argument("--delay", default="0s", help="the driver's time for a call")
    return parser.parse_args()


if __name__ == "__main__":
    main()
