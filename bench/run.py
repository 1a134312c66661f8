"""The bench: the driver's own socket against the bridge, side by side, as ratios.

    make bench                     every figure, about half an hour
    make bench ARGS="--only call"  one group: call, identity, edges, herd, size, link, kubelet, volumes, idle,
                                   claims, stock, changes, objects

Machines are noisy. So the sockets take turns in slices of half a second within one run, and the table quotes
differences and ratios of the same run. The load comes from a Go program (`bench/loadgen`), which costs less than the
bridge. Without Go it comes from Python (`bench/coarse_loadgen.py`); the table then says so, and judges no time of a
call. If this machine lacks something that a row needs (root, Go, the real kubelet from the peers' cache), the row is
left out and says so.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import (  # noqa: E402  # a script outside the packages
    claim_figures,
    edge_figures,
    figures,
    kubelet_figures,
    sync_figures,
)
from bench.figures import Command, Figure, NotMeasured  # noqa: E402
from tests.peers.build import BuildError, build, module_of  # noqa: E402

RESULTS = ROOT / "bench" / "results"
COARSE: Command = (sys.executable, str(ROOT / "bench" / "coarse_loadgen.py"))

GROUPS: dict[str, Callable[[Path, Command], list[Figure]]] = {
    "call": figures.calls,
    "identity": figures.identity,
    "size": figures.agent_size,
    "link": figures.round_trips,
    "edges": figures.idle_edges,
    "herd": figures.herd,
    "kubelet": kubelet_figures.beside_kubelet,
    "volumes": edge_figures.many_volumes,
    "idle": edge_figures.idle_volumes,
    "claims": claim_figures.claims,
    "stock": claim_figures.stock_claims,
    "changes": sync_figures.changes,
    "objects": sync_figures.many_objects,
}

_TIMED = frozenset({"call", "identity"})
"""Groups whose figures are no better than the load generator."""


def main() -> int:
    """Measure, print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(GROUPS), action="append", help="measure only this group; repeatable")
    options = parser.parse_args()
    loadgen = _loadgen()
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="csib-") as directory:
        for name in options.only or GROUPS:
            print(f"measuring: {name}", flush=True)
            here = Path(directory) / name
            here.mkdir()
            try:
                found += _measured(name, here, loadgen)
            except NotMeasured as error:
                print(f"{name}: not measured: {error}", file=sys.stderr)
                return 1
    print(_table(found))
    if loadgen == COARSE:
        print("coarse: the load generator costs more than what it measures, so no time of a call is judged\n")
    _write(found, coarse=loadgen == COARSE)
    return 0


def _loadgen() -> Command:
    module = module_of("loadgen")
    try:
        build([module])
    except BuildError as error:
        print(f"the load comes from Python, not from Go: {error}", file=sys.stderr)
        return COARSE
    return (str(module.directory / "loadgen"),)


def _measured(group: str, directory: Path, loadgen: Command) -> list[Figure]:
    found = GROUPS[group](directory, loadgen)
    if loadgen == COARSE and group in _TIMED:
        for figure in found:
            figure.met = None
    return found


def _table(found: list[Figure]) -> str:
    rows = [("figure", "measured", "target", "")]
    rows += [(figure.name, figure.measured, figure.target, figure.verdict) for figure in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["", lines[0], "-" * len(lines[0]), *lines[1:], ""])


def _write(found: list[Figure], *, coarse: bool) -> None:
    RESULTS.mkdir(exist_ok=True)
    record = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "coarse": coarse,
        "figures": [figure.__dict__ for figure in found],
    }
    (RESULTS / "latest.json").write_text(json.dumps(record, indent=2) + "\n")
    print("the same as JSON, with all details: bench/results/latest.json")


if __name__ == "__main__":
    sys.exit(main())
