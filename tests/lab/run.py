"""The link laboratory: what becomes of volumes on bad links, with the bridge and with the simple alternatives.

    make lab                                    every row and way, and writes docs/links.md
    make lab ARGS="--row lte"                   one row
    make lab ARGS="--row lte --way bridge"      one trial: prints what it saw, and writes nothing

A trial (one row, one way) has a site of its own: see `tests.lab.site`. Trials that mostly wait run all at once; of the
others four run at a time. It takes root, the peers (`make peers`), and Debian's openssh-server, netcat-openbsd,
tinyproxy-bin, iproute2 and iptables.
"""

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
from concurrent.futures import ThreadPoolExecutor, as_completed
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
_AT_ONCE = 4


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
    _say("lab", "all", f"{', '.join(rows)}, {len(WAYS)} ways each; about {_minutes(rows)} minutes")
    return int(not _run(rows))


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


def _minutes(rows: list[str]) -> int:
    busy = sum(ROWS[row].minutes for row in rows if not ROWS[row].waits) * len(WAYS) / _AT_ONCE
    return math.ceil(max([busy, *(ROWS[row].minutes for row in rows if ROWS[row].waits)]))


def _run(rows: list[str]) -> bool:
    """Run every trial in a process of its own, and write each row's table when its trials are over.

    Returns whether all trials came to their end. A row without one keeps its table.
    """
    waiting = [(row, way) for row in rows if ROWS[row].waits for way in WAYS]
    busy = [(row, way) for row in rows if not ROWS[row].waits for way in WAYS]
    patient, few = ThreadPoolExecutor(max(len(waiting), 1)), ThreadPoolExecutor(_AT_ONCE)
    outcomes: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        futures = {(patient if each in waiting else few).submit(_trial, *each): each for each in (*waiting, *busy)}
        for done in as_completed(futures):
            row, _ = futures[done]
            outcomes[futures[done]] = done.result()
            of_row = [outcomes[row, way] for way in WAYS if (row, way) in outcomes]
            if len(of_row) == len(WAYS) and any("failed" not in each for each in of_row):
                PAGE.write_text(replaced(PAGE.read_text(), {row: _table(row, of_row)}))
                _say(row, "all", f"the table is in {PAGE.relative_to(ROOT)}")
    finally:  # after Ctrl-C, which stops those that run, no other one starts
        patient.shutdown(cancel_futures=True)
        few.shutdown(cancel_futures=True)
    return all("failed" not in each for each in outcomes.values())


def _trial(row: str, way: str) -> dict[str, Any]:
    command = [*leash(), sys.executable, __file__, f"--row={row}", f"--way={way}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    _say(row, way, "over")
    if done.returncode == 0:
        outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return outcome
    return {"failed": f"ended with exit status {done.returncode}; the terminal has its last words"}


def _say(row: str, way: str, text: str) -> None:
    now = dt.datetime.now(dt.UTC).strftime("%H:%M:%S")
    sys.stderr.write(f"{now}  {row} {way}: {text}\n")
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
    load = max((each["load"] for each in outcomes if "failed" not in each), default=0.0)
    system = f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    machine = f"{os.cpu_count()} cores with a load of {load:.0f}, {system}"
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
    "claim created → Bound: median, longest": lambda it: _times(it["bound_s"]),
    "pod created → volume published: median, longest": lambda it: _times(it["published_s"]),
    "line back after 40 s → claim Bound: median, longest": lambda it: _times(it["back_s"]),
    "bytes of a volume's life": lambda it: _kilobytes(it["journey_bytes"]),
    "bytes an hour without any change": lambda it: _kilobytes(it["idle_bytes_an_hour"]),
    "errors told to the sidecars": _errors,
    "calls that met one of their own at the driver": lambda it: str(it["overlaps"]),
    "starts of a sidecar that had ended": lambda it: str(it["restarts"]),
    "**journeys that did not come to their end**": lambda it: f"{it['unsettled']} of {it['journeys']}",
    "**final codes that the driver did not send**": lambda it: str(it["false_final"]),
    "**volumes lost; made twice**": lambda it: f"{it['lost']}; {it['doubled']}",
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
