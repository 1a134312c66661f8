"""Kubernetes' own storage tests, direct and through the bridge; writes docs/upstream-e2e.md.

python -m tests.e2e.upstream [--focus REGEX] [--procs N] [--logs DIRECTORY]

The exit status says whether each spec ended the same way in both. With --focus the document is printed
instead of written.
"""

import argparse
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e import debian
from tests.e2e.upstream.cluster import UpstreamCluster
from tests.e2e.upstream.comparison import Comparison
from tests.peers import build

_DOCUMENT = Path(__file__).parents[3] / "docs/upstream-e2e.md"


def main() -> int:
    """Run both, compare them, and say what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.upstream", description=__doc__)
    parser.add_argument("--focus", action="append", help="run only the specs whose names match (repeatable)")
    parser.add_argument("--procs", type=int, default=4, help="how many specs run at a time (%(default)s)")
    parser.add_argument("--logs", type=Path, help="a directory that is not there yet, for logs and reports")
    arguments = parser.parse_args()
    focus = arguments.focus or [".*"]
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="csi-bridge-upstream-"))
    logs.mkdir(exist_ok=True)
    _say(f"logs and reports are in {logs}")
    with tempfile.TemporaryDirectory(prefix="csi-u-", ignore_cleanup_errors=True) as directory:
        cluster = UpstreamCluster(Path(directory), logs, peer=_peer, tool=_tool)
        try:
            cluster.start()
            with cluster.direct():
                _say("running the specs on the driver's own socket")
                direct = cluster.run("direct", focus=focus, processes=arguments.procs)
            with cluster.bridged():
                _say("running the specs through the bridge")
                bridge = cluster.run("bridge", focus=focus, processes=arguments.procs)
        finally:
            cluster.stop()
    comparison = Comparison(direct, bridge)
    document = comparison.document(datetime.now(UTC).date())
    if arguments.focus:
        _say(document)
    else:
        _DOCUMENT.write_text(document)
        _say(f"wrote {_DOCUMENT}")
    faults = comparison.faults()
    for fault in faults:
        _say(fault)
    _say(f"{len(comparison.names)} specs, {len(faults)} faults")
    return int(bool(faults) or not comparison.names)


def _peer(name: str) -> Path:
    found = build.find(name)
    if found is None:
        raise SystemExit(f"{name} is not built: run make e2e-upstream")
    return found


def _tool(name: str) -> Path:
    found = debian.find(name)
    if found is None:
        raise SystemExit(f"{name} is missing (Debian's package {debian.PACKAGES[name]}), and could not be installed")
    return found


def _say(text: str) -> None:
    print(f"upstream: {text}", flush=True)  # noqa: T201  this file is a command


if __name__ == "__main__":
    raise SystemExit(main())
