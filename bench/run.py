"""The bench: the driver's own socket against the bridge, side by side, as ratios.

    make bench                     every figure, about four minutes
    make bench ARGS="--only call"  one group: call, identity, edges, herd, size, link

Machines are noisy: sockets take turns in slices of half a second within one run, and the table quotes differences and
ratios of the same run. The load comes from a Go program (`bench/loadgen`), so that it costs less than what it measures.
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

from bench import figures  # noqa: E402  # a script outside the packages
from bench.figures import Figure  # noqa: E402
from tests.peers.build import BuildError, build, find, module_of  # noqa: E402

GROUPS: dict[str, Callable[[Path, Path], list[Figure]]] = {
    "call": figures.calls,
    "identity": figures.identity,
    "size": figures.agent_size,
    "link": figures.round_trips,
    "edges": figures.idle_edges,
    "herd": figures.herd,
}


def main() -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(GROUPS), action="append", help="measure only this group; repeatable")
    options = parser.parse_args()
    loadgen = _loadgen()
    if loadgen is None:
        return 1
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="csib-") as directory:
        for name in options.only or GROUPS:
            print(f"measuring: {name}", flush=True)
            here = Path(directory) / name
            here.mkdir()
            found += GROUPS[name](here, loadgen)
    print(_table(found))
    _write(found)
    return 0


def _loadgen() -> Path | None:
    try:
        build([module_of("loadgen")])
    except BuildError as error:
        print(f"the load generator cannot be built: {error}", file=sys.stderr)
    return find("loadgen")


def _table(found: list[Figure]) -> str:
    rows = [("figure", "measured", "target", "")]
    rows += [(figure.name, figure.measured, figure.target, figure.verdict) for figure in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["", lines[0], "-" * len(lines[0]), *lines[1:], ""])


def _write(found: list[Figure]) -> None:
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    record = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "figures": [figure.__dict__ for figure in found],
    }
    (results / "latest.json").write_text(json.dumps(record, indent=2) + "\n")
    print("the same as JSON, with all details: bench/results/latest.json")


if __name__ == "__main__":
    sys.exit(main())
