"""The fuzz run: each target under libFuzzer (atheris), one after another, with bounded memory. `make fuzz` starts it.

    make fuzz                                            one minute for all targets together
    make fuzz ARGS="--cases 1000000"                     so many cases, shared equally
    make fuzz ARGS="--cases 100000 session http2"        of these targets

A crash becomes a file in the corpus of its target, where `tests/fuzz/test_corpus.py` finds it: commit it with its fix.
Inputs that only reached new code stay in a temporary directory.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS

_CORPUS = Path(__file__).parent / "corpus"
_MOST_MIB = 768  # Of one target's process. Python with all modules of the bridge, instrumented, has 150 MiB.

_MOST_CASE_S = 20  # For one case. Most take less than 1 ms.

_PROGRESS_S = 10

_MOST_BYTES = 4_096  # of one case, unless the corpus has larger ones


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one target: its cases, the largest memory of its process, and whether it crashed."""

    target: str
    cases: int
    peak_mib: int
    crashed: bool


def main(argv: list[str] | None = None) -> int:
    """Run the targets and print a line for each. Returns 1 if one crashed."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--seconds", type=int, default=60, help="time of all targets together (default: 60)")
    bound.add_argument("--cases", type=int, help="number of cases of all targets together, in place of the time")
    parser.add_argument("target", nargs="*", help=f"of {', '.join(TARGETS)} (default: all)")
    asked = parser.parse_args(argv)
    if unknown := set(asked.target) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    targets = asked.target or list(TARGETS)
    share = -(-(asked.cases or asked.seconds) // len(targets))
    flag = f"-runs={share}" if asked.cases else f"-max_total_time={share}"
    outcomes = [_run(target, flag) for target in targets]
    print(f"{'all':14}{sum(found.cases for found in outcomes):>10} cases")
    return int(any(found.crashed for found in outcomes))


def _run(target: str, bound: str) -> Outcome:
    """Run one target, and print its line. After a crash, print the end of its output, too."""
    kept = _CORPUS / target
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="csi-bridge-fuzz-") as found:
        command = [
            sys.executable, "-m", "tests.fuzz.one", target, found, str(kept), bound, f"-artifact_prefix={kept}/",
            f"-rss_limit_mb={_MOST_MIB}", f"-timeout={_MOST_CASE_S}", f"-max_len={_MOST_BYTES}", "-print_final_stats=1",
        ]  # fmt: skip
        # A broken header block makes the HPACK library panic, as its caller expects: without a backtrace each time.
        environment = {**os.environ, "RUST_BACKTRACE": "0"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        ) as running:
            output = _followed(target, running)
    outcome = Outcome(
        target,
        _stat(output, "number_of_executed_units"),
        _stat(output, "peak_rss_mb"),
        running.returncode != 0,
    )
    end = "CRASHED" if outcome.crashed else "no crash"
    print(f"{target:14}{outcome.cases:>10} cases  {outcome.peak_mib:>5} MiB at most  {end}", flush=True)
    if outcome.crashed:
        print(output[-6_000:], flush=True)
    return outcome


def _followed(target: str, running: subprocess.Popen[str]) -> str:
    """The output of a target's process until its end. Meanwhile the number of its cases goes to stderr now and then."""
    assert running.stdout is not None
    lines, told = [], time.monotonic()
    for line in running.stdout:  # libFuzzer begins a line with the number of cases so far
        lines.append(line)
        if (cases := re.match(r"#(\d+)", line)) and time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            print(f"{target:14}{cases[1]:>10} cases so far", file=sys.stderr, flush=True)
    return "".join(lines)


def _stat(output: str, name: str) -> int:
    found = re.search(rf"^stat::{name}:\s*(\d+)$", output, re.MULTILINE)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
