"""The link laboratory: what becomes of volumes on bad links, with the bridge and with the simple alternatives.

    make lab                                    every row and way, and writes docs/links.md
    make lab ARGS="--row lte"                   one row
    make lab ARGS="--row lte --way bridge"      one trial: prints what it saw, and writes nothing

A trial (one row, one way) has a site of its own: see `tests.lab.site`. Trials that mostly wait run all at once; of the
others two run at a time. It takes root, the peers (`make peers`), and Debian's openssh-server, netcat-openbsd,
tinyproxy-bin, iproute2 and iptables.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.tables import replaced  # noqa: E402  # a script
from tests.kit.leash import leash  # noqa: E402
from tests.lab import trial  # noqa: E402
from tests.lab.rows import ROWS  # noqa: E402
from tests.lab.site import PEERS, PROGRAMS, WAYS  # noqa: E402
from tests.peers import build  # noqa: E402

PAGE = ROOT / "docs/links.md"
_AT_ONCE = 2
_BEGAN = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this row (repeatable)")
    parser.add_argument("--way", choices=WAYS, help="only this way")
    given = parser.parse_args()
    if lacking := _lacking():
        sys.stderr.write(f"make lab: {lacking}\n")
        return 2
    rows = given.row or list(ROWS)
    if given.way is not None:
        for row in rows:
            _print(trial.run(ROWS[row], given.way, lambda text, row=row: _say(row, given.way, text)).as_json())
        return 0
    _say("lab", "all", f"{len(rows)} rows, {len(WAYS)} ways each; about {_minutes(rows)} minutes")
    outcomes = _run(rows)
    tables = {row: _table(row, [outcomes[row, way] for way in WAYS]) for row in rows if _has_figures(row, outcomes)}
    PAGE.write_text(replaced(PAGE.read_text(), tables))
    _print("\n".join(f"{ROWS[row].title}\n\n{table}" for row, table in tables.items()))
    return int(any("failed" in each for each in outcomes.values()))


def _lacking() -> str:
    """Why the laboratory cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "it takes root, for network namespaces"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [each for each in PROGRAMS if shutil.which(each, path=path) is None]
    if missing:
        packages = "iproute2 iptables tinyproxy-bin netcat-openbsd openssh-client openssh-server"
        return f"{', '.join(missing)} is not here: apt-get install --no-install-recommends {packages}"
    if unbuilt := [each for each in PEERS if build.find(each) is None]:
        return f"{', '.join(unbuilt)} is not built: make peers, and tests/peers/build.py kubernetes"
    return ""


def _has_figures(row: str, outcomes: dict[tuple[str, str], dict[str, Any]]) -> bool:
    """Whether a trial of a row came to its end; else the table of an earlier run stays."""
    return any("failed" not in outcomes[row, way] for way in WAYS)


def _minutes(rows: list[str]) -> int:
    busy = sum(ROWS[row].minutes for row in rows if not ROWS[row].waits) * len(WAYS) / _AT_ONCE
    return math.ceil(max([busy, *(ROWS[row].minutes for row in rows if ROWS[row].waits)]))


def _run(rows: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Run every trial in a process of its own. Returns the outcomes by row and way."""
    waiting = [(row, way) for row in rows if ROWS[row].waits for way in WAYS]
    busy = [(row, way) for row in rows if not ROWS[row].waits for way in WAYS]
    patient, few = ThreadPoolExecutor(max(len(waiting), 1)), ThreadPoolExecutor(_AT_ONCE)
    try:
        found = {each: (patient if each in waiting else few).submit(_trial, *each) for each in (*waiting, *busy)}
        return {each: future.result() for each, future in found.items()}
    finally:  # after Ctrl-C, which stops those that run, no other one starts
        patient.shutdown(cancel_futures=True)
        few.shutdown(cancel_futures=True)


def _trial(row: str, way: str) -> dict[str, Any]:
    command = [*leash(), sys.executable, __file__, f"--row={row}", f"--way={way}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return outcome
    return {"failed": f"ended with exit status {done.returncode}; the terminal has its last words"}


def _say(row: str, way: str, text: str) -> None:
    sys.stderr.write(f"{(time.monotonic() - _BEGAN) / 60:5.1f} min  {row} {way}: {text}\n")
    sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


# ---- the page --------------------------------------------------------------------------------------------------------


def _table(row: str, outcomes: list[dict[str, Any]]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [["", *WAYS]]
    for name, tell in _FIGURES.items():
        cells = ["-" if "failed" in each else tell(each) for each in outcomes]
        if any(cell != "-" for cell in cells):
            lines.append([name, *cells])
    text = [f"| {' | '.join(line)} |" for line in lines]
    notes = [f"{way}: {each['failed']}" for way, each in zip(WAYS, outcomes, strict=True) if "failed" in each]
    machine = (
        f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )
    when = f'{dt.datetime.now(dt.UTC).date().isoformat()}, commit {commit}, {machine}. `make lab ARGS="--row {row}"`'
    return "\n".join([text[0], "|---" * len(lines[0]) + "|", *text[1:], "", *notes, when]) + "\n"


def _sanity(outcome: dict[str, Any]) -> str:
    if outcome["sanity"] is None:
        return "-"
    passed, differences = outcome["sanity"]
    return "; ".join(differences) if differences else f"equal, {passed} passed"


def _times(seconds: list[float]) -> str:
    """The median and the longest."""
    if not seconds:
        return "-"
    return f"{_time(statistics.median(seconds))}, {_time(max(seconds))}"


def _time(seconds: float) -> str:
    if seconds == math.inf:
        return "never"
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _kilobytes(count: float) -> str:
    return f"{count / 1000:,.0f} kB"


def _errors(outcome: dict[str, Any]) -> str:
    return ", ".join(f"{times} {code}" for code, times in sorted(outcome["errors"].items())) or "none"


_FIGURES = {
    "csi-sanity, beside the driver's own socket": _sanity,
    "claim → Bound: median, longest": lambda it: _times(it["bound_s"]),
    "pod → published: median, longest": lambda it: _times(it["published_s"]),
    "line back after a cut of 20 s → claim Bound": lambda it: _times(it["back_s"]),
    "bytes of a volume's life": lambda it: _kilobytes(it["journey_bytes"]),
    "bytes an hour without any change": lambda it: _kilobytes(it["idle_bytes_an_hour"]),
    "errors told to the sidecars": _errors,
    "calls that the driver got while it worked on the same": lambda it: str(it["overlaps"]),
    "starts of a sidecar that had ended": lambda it: str(it["restarts"]),
    "**journeys that failed for good**": lambda it: str(it["unsettled"]),
    "**final codes that the driver did not send**": lambda it: str(it["false_final"]),
    "**volumes lost; made twice**": lambda it: f"{it['lost']}; {it['doubled']}",
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
