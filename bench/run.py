"""The bench: the driver's own socket against the bridge, side by side, as ratios.

    make bench                     every figure, about 40 minutes
    make bench ARGS="--only call"  one group: call, counts, pair, identity, size, link, edges, herd, kubelet, volumes,
                                   idle, claims, stock, changes, objects
    make bench ARGS="--against FILE"   the same, compared with an earlier result
    make bench ARGS="--write"          the tables go into docs/performance.md

Machines are noisy and differ. So the sockets take turns within one run, a call's figures are multiples of what three
bare relays cost in the same run (the floor), and a measurement is repeated until the spread of its ratio is known. The
table has the median, and the interval in which the median lies.

The load comes from a Go program (`bench/loadgen`), which costs less than the bridge. Without Go it comes from Python
(`bench/coarse_loadgen.py`); the table then says so, and judges no time of a call. If this machine lacks something that
a row needs (root, Go, the real kubelet from the peers' cache, strace, sshd), the row is left out and says so.
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import (  # noqa: E402  # a script outside the packages
    call_figures,
    claim_figures,
    counts,
    dial_figures,
    edge_figures,
    kubelet_figures,
    session_pair,
    sync_figures,
)
from bench.chain import Command  # noqa: E402
from bench.earlier import compare, read_result  # noqa: E402
from bench.figure import Figure, NotMeasured  # noqa: E402
from bench.tables import as_markdown, as_text, replaced  # noqa: E402
from tests.peers.build import BuildError, build, module_of  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
COARSE: Command = (sys.executable, str(ROOT / "bench" / "coarse_loadgen.py"))

GROUPS: dict[str, Callable[[Path, Command], list[Figure]]] = {
    "call": call_figures.calls,
    "counts": counts.steps,
    "pair": session_pair.pair,
    "identity": call_figures.identity,
    "size": call_figures.agent_size,
    "link": call_figures.round_trips,
    "edges": dial_figures.idle_edges,
    "herd": dial_figures.herd,
    "kubelet": kubelet_figures.beside_kubelet,
    "volumes": edge_figures.many_volumes,
    "idle": edge_figures.idle_volumes,
    "claims": claim_figures.claims,
    "stock": claim_figures.stock_claims,
    "changes": sync_figures.changes,
    "objects": sync_figures.many_objects,
}

_LOOK_S = 2.0
_BUSY_PERCENT = 10.0
"""On two cores other work of this share makes a call through three processes several times slower."""

_TIMED = frozenset({"call", "identity"})
"""Groups whose figures are no better than the load generator."""


def main() -> int:
    """Measure, print the table, and write the JSON."""
    options = _options()
    earlier = read_result(options.against) if options.against is not None else {}
    loadgen = _loadgen()
    found: dict[str, list[Figure]] = {}
    busy = psutil.cpu_percent(_LOOK_S)
    if busy > _BUSY_PERCENT:
        print(
            f"warning: other work takes {busy:.0f} % of this machine, and will be in all times and ratios",
            file=sys.stderr,
        )
    with tempfile.TemporaryDirectory(prefix="csib-") as directory:
        for name in options.only or GROUPS:
            print(f"measuring: {name}", flush=True)
            here = Path(directory) / name
            here.mkdir()
            try:
                found[name] = _measured(name, here, loadgen)
            except NotMeasured as error:
                print(f"{name}: not measured: {error}", file=sys.stderr)
                return 1
    figures = [figure for of in found.values() for figure in of]
    print(as_text(figures))
    if loadgen == COARSE:
        print("coarse: the load generator costs more than what it measures, so no time of a call is judged\n")
    if earlier:
        print(*compare(earlier, figures), sep="\n", end="\n\n")
    _store(figures, coarse=loadgen == COARSE, busy=busy)
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(), {name: as_markdown(of) for name, of in found.items()}))
        print("the tables are in docs/performance.md")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(GROUPS), action="append", help="measure only this group; repeatable")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="an earlier bench/results/latest.json: say what differs"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    return parser.parse_args()


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


def _store(found: list[Figure], *, coarse: bool, busy: float) -> None:
    RESULTS.mkdir(exist_ok=True)
    record = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "coarse": coarse,
        "busy_percent": busy,
        "compiled": call_figures.COMPILED,
        "figures": [dataclasses.asdict(figure) for figure in found],
    }
    (RESULTS / "latest.json").write_text(json.dumps(record, indent=2) + "\n")
    print("the same as JSON, with all details: bench/results/latest.json")


if __name__ == "__main__":
    sys.exit(main())
