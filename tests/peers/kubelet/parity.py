"""The parity table: docs/kubelet-parity.md, made from the kubelet's records and ours of the same scenarios.

python -m tests.peers.kubelet.parity OUR-RECORDS > docs/kubelet-parity.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.peers.kubelet import catalog, differences
from tests.peers.kubelet.comparer import Difference, compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.peers.kubelet.normal_form import Record


def table(pairs: Sequence[tuple[Record, Record | None]]) -> str:
    """The document.

    Args:
        pairs: the kubelet's record of each scenario and ours, None where we have none.
    """
    return "\n".join(_lines(pairs)) + "\n"


def _lines(pairs: Sequence[tuple[Record, Record | None]]) -> Iterator[str]:
    found = {kubelet["scenario"]: compare(kubelet, ours) for kubelet, ours in pairs if ours is not None}
    yield f"# Parity with the kubelet {catalog.KUBELET_VERSION}"
    yield ""
    yield "Each scenario was played twice on the same driver: by the kubelet and by the agent. Compared are all calls"
    yield "with all their fields, in order for each volume, and the files, modes, links, mounts and loop devices round"
    yield "each call. Left out is how often a driver is asked for its name and capabilities: the kubelet asks before"
    yield "each step; the agent when the driver registers, when it comes back, and now and then."
    yield ""
    yield "A rule is a letter and a number of the contract that the agent keeps; the reason stands beside it below."
    yield ""
    yield "This file is made by `make parity`, and its records of the kubelet by `make record-kubelet`."
    yield ""
    yield "| scenario | what happens | calls | verdict |"
    yield "|---|---|---|---|"
    for kubelet, ours in pairs:
        name = kubelet["scenario"]
        verdict = _verdict(name, found[name]) if ours is not None else "not played by the agent"
        yield f"| {name} | {kubelet['about']} | {_calls(kubelet)} | {verdict} |"
    yield ""
    yield "## Differences that are wanted"
    yield ""
    yield "| rule | scenarios | why |"
    yield "|---|---|---|"
    yield from dict.fromkeys(f"| {it.rule} | `{it.scenarios}` | {it.why} |" for it in differences.ACCEPTED)
    left = [difference for name in found for difference in differences.unwanted(found[name])]
    if left:
        yield ""
        yield "## Differences that are not"
        yield ""
        yield from (f"    {line}" for difference in left for line in str(difference).splitlines())


def _verdict(scenario: str, found: Sequence[Difference]) -> str:
    left = differences.unwanted(found)
    if left:
        return f"**differs** ({len(left)})"
    wanted = differences.rules(scenario, found)
    return f"as wanted by {', '.join(wanted)}" if wanted else "equal"


def _calls(record: Record) -> int:
    return sum("call" in step for steps in record["lanes"].values() for step in steps)


def main(arguments: Sequence[str]) -> int:
    """Print the document; the exit status says whether all is as wanted."""
    if len(arguments) != 1:
        print("give the directory of our records", file=sys.stderr)  # noqa: T201  this file is a command
        return 2
    directory = Path(arguments[0])
    pairs: list[tuple[Record, Record | None]] = []
    for name in catalog.BY_NAME:
        if (catalog.RECORDS / f"{name}.json").exists():
            own = directory / f"{name}.json"
            pairs.append((catalog.read(name), json.loads(own.read_text()) if own.exists() else None))
    print(table(pairs), end="")  # noqa: T201  this file is a command
    played = [(kubelet, ours) for kubelet, ours in pairs if ours is not None]
    return int(any(differences.unwanted(compare(kubelet, ours)) for kubelet, ours in played))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
