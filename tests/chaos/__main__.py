"""The command of the chaos test: `python -m tests.chaos --seed 1 --operations 1000 --seconds 600`."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.site import Site
from tests.chaos.trial import run
from tests.peers import build


def say(line: str) -> None:
    """Print a line now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run once; the exit status says whether all was well."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the faults (default: any)")
    parser.add_argument("--operations", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="the longest time with faults (%(default)s)")
    parser.add_argument("--at-once", type=int, default=24, help="volumes at one time (%(default)s)")
    parser.add_argument("--logs", type=Path, help="a directory for logs and journals")
    given = parser.parse_args()
    logs = given.logs or Path(tempfile.mkdtemp(prefix="csi-chaos-logs-"))
    logs.mkdir(exist_ok=True)
    say(f"seed {given.seed}; logs are in {logs}")
    with tempfile.TemporaryDirectory(prefix="csi-c-") as directory:
        site = Site(Path(directory), logs, build.find)
        try:
            result = run(
                site, given.seed, operations=given.operations, seconds=given.seconds, at_once=given.at_once, say=say
            )
        finally:
            site.stop()
    report = result.report()
    (logs / "report.txt").write_text(report)
    (logs / "histories.txt").write_text(
        "\n".join(f"{life} {line}" for life, lines in result.histories().items() for line in lines)
    )
    say(report)
    return 1 if result.findings or result.complaints else 0


sys.exit(main())
