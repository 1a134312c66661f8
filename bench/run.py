"""The bench: the driver's own socket against the bridge, side by side, as ratios.

    make bench                         every figure; it says at the start how long that takes
    make bench ARGS="--only call"      one group: call, counts, pair, identity, size, link, edges, nodes, herd, kubelet,
                                       volumes, idle, small, claims, stock, changes, objects,
                                       records, hubs
    make bench ARGS="--against FILE"   the same, compared with an earlier result
    make bench ARGS="--only hubs --edges 200"
                                       the group hubs with fewer edges, for a quick look
    make bench ARGS="--write"          the tables go into docs/performance.md

Machines are noisy and differ. So the sockets take turns within one run, a call's figures are multiples of what three
bare relays cost in the same run (the floor), and a measurement is repeated until the spread of its ratio is known. The
table has the median, and the interval in which the median lies.

The load comes from a Go program (`bench/loadgen`), which costs less than the bridge. Without Go it comes from Python
(`bench/coarse_loadgen.py`); the table then says so, and judges no time of a call.

Rules:

* If this machine lacks something that a row needs (root, Go, the real kubelet from the peers' cache, strace, sshd), the
  row is left out and says so.
* A group that fails says why in one row, and its table in docs/performance.md stays. The other groups are measured,
  and the exit status is 1.
* Ctrl-C stops every process and removes every mount and file. It stores nothing.
"""

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Never

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import (  # noqa: E402  # a script outside the packages
    call_figures,
    claim_figures,
    counts,
    dial_figures,
    edge_figures,
    hub_figures,
    kubelet_figures,
    node_figures,
    record_figures,
    session_pair,
    small_figures,
    sync_figures,
)
from bench.chain import Command  # noqa: E402
from bench.earlier import BUSY_PERCENT, Result, compare, read_result  # noqa: E402
from bench.figure import Figure, NotMeasured  # noqa: E402
from bench.progress import say  # noqa: E402
from bench.tables import as_markdown, as_text, replaced  # noqa: E402
from tests.kit import prefork  # noqa: E402
from tests.peers.build import BuildError, build, module_of  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
COARSE: Command = (sys.executable, str(ROOT / "bench" / "coarse_loadgen.py"))


@dataclasses.dataclass(frozen=True)
class Group:
    """Figures that are measured together.

    Attributes:
        measure: measures them, with a directory and the command of the load generator.
        minutes: about how long this takes on two cores.
    """

    measure: Callable[[Path, Command], list[Figure]]
    minutes: float


GROUPS = {
    "call": Group(call_figures.calls, 9),
    "counts": Group(counts.steps, 1),
    "pair": Group(session_pair.pair, 0.1),
    "identity": Group(call_figures.identity, 0.4),
    "size": Group(edge_figures.agent_size, 0.5),
    "link": Group(call_figures.round_trips, 0.2),
    "edges": Group(dial_figures.idle_edges, 0.5),
    "nodes": Group(node_figures.nodes, 1.2),
    "herd": Group(dial_figures.herd, 2),
    "kubelet": Group(kubelet_figures.beside_kubelet, 2),
    "volumes": Group(edge_figures.many_volumes, 0.6),
    "idle": Group(edge_figures.idle_volumes, 2.5),
    "small": Group(small_figures.small_device, 3),
    "claims": Group(claim_figures.claims, 5),
    "stock": Group(claim_figures.stock_claims, 4),
    "changes": Group(sync_figures.changes, 6),
    "objects": Group(sync_figures.many_objects, 5),
    "records": Group(record_figures.records, 1.5),
    "hubs": Group(hub_figures.hubs, 6),
}

_LOOK_S = 2.0

_TIMED = frozenset({"call", "identity"})
"""Groups whose figures are no better than the load generator."""


def main() -> int:
    """Measure, print the table, and write the JSON."""
    options = _options()
    try:
        return _run(options)
    except KeyboardInterrupt:
        say("stopped: nothing is stored or written")
        return 130


def _stop(_number: int, _frame: object) -> Never:
    """Stop in order, once: a second Ctrl-C would leave processes and mounts behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    say("stopping all processes")
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> int:
    prefork.FORKS = False
    loadgen = _loadgen()
    busy = psutil.cpu_percent(_LOOK_S)
    if busy > BUSY_PERCENT:
        say(f"warning: other work takes {busy:.0f} % of this machine, and will be in all times and ratios")
    if options.edges:
        GROUPS["hubs"] = dataclasses.replace(GROUPS["hubs"], measure=partial(hub_figures.hubs, edges=options.edges))
    found, failed = _measured(options.only or list(GROUPS), loadgen)
    figures = [figure for of in found.values() for figure in of]
    print(as_text(figures))
    if loadgen == COARSE:
        print("coarse: the load generator costs more than what it measures, so no time of a call is judged\n")
    record = _record(figures, coarse=loadgen == COARSE, busy=busy)
    if options.against:
        rows = [*options.against.doubts(record), *compare(options.against.figures, figures)]
        print(*rows, sep="\n", end="\n\n")
    _store(record)
    if options.write:
        tables = {name: as_markdown(of) for name, of in found.items() if name not in failed}
        PAGE.write_text(replaced(PAGE.read_text(), tables))
        print("the tables are in docs/performance.md", *(f"(except for {name}, which failed)" for name in failed))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(GROUPS), action="append", help="measure only this group; repeatable")
    parser.add_argument(
        "--against", type=_earlier, metavar="FILE", help="an earlier bench/results/latest.json: say what differs"
    )
    parser.add_argument("--edges", type=int, metavar="N", help="the edges of the group hubs; its figures are for 2,000")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    return parser.parse_args()


def _earlier(path: str) -> Result:
    try:
        return read_result(Path(path))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _loadgen() -> Command:
    module = module_of("loadgen")
    try:
        build([module])
    except BuildError as error:
        print(f"the load comes from Python, not from Go: {error}", file=sys.stderr)
        return COARSE
    return (str(module.directory / "loadgen"),)


def _measured(groups: Sequence[str], loadgen: Command) -> tuple[dict[str, list[Figure]], list[str]]:
    """Return the figures by group, and the groups that failed."""
    found: dict[str, list[Figure]] = {}
    failed = []
    say(f"groups of figures: {len(groups)}; this takes about {_told(sum(GROUPS[name].minutes for name in groups))}")
    with tempfile.TemporaryDirectory(prefix="csib-") as directory:
        for number, name in enumerate(groups, 1):
            group = GROUPS[name]
            say(f"{number} of {len(groups)}: {name}, about {_told(group.minutes)}")
            here = Path(directory) / name
            here.mkdir()
            try:
                found[name] = group.measure(here, loadgen)
            except Exception as error:  # noqa: BLE001  # whatever one group does, the others are measured
                found[name] = [Figure(f"{name}: all rows", f"not measured: {_reason(error)}")]
                failed.append(name)
            if loadgen == COARSE and name in _TIMED:
                for figure in found[name]:
                    figure.met = None
    return found, failed


def _told(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes > 1.5 else f"{minutes * 60:.0f} seconds"


def _reason(error: Exception) -> str:
    """Return the first line of an error, and print the rest."""
    if not isinstance(error, NotMeasured):
        traceback.print_exception(error)
    return (str(error) or repr(error)).splitlines()[0]


def _record(found: list[Figure], *, coarse: bool, busy: float) -> dict[str, Any]:
    return {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "coarse": coarse,
        "busy_percent": busy,
        "figures": [dataclasses.asdict(figure) for figure in found],
    }


def _store(record: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(record, indent=2) + "\n")
    print("the same as JSON, with all details: bench/results/latest.json")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    sys.exit(main())
