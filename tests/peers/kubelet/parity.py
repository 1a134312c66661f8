"""The parity page: docs/kubelet-parity.md, made from the kubelet's records and ours of the same scenarios.

python -m tests.peers.kubelet.parity OUR-RECORDS > docs/kubelet-parity.md
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.status import Code
from tests.peers.kubelet import catalog, differences
from tests.peers.kubelet.comparer import Difference, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.peers.kubelet.normal_form import Record

_CODES = tuple(code.name for code in Code if code is not Code.OK)

_EQUAL = "equal"
_WANTED = "as wanted:"

_INTRODUCTION = f"""\
# Parity with the kubelet {catalog.KUBELET_VERSION}

For vendors and operators: does a driver get the same calls without a kubelet as with one? The kubelet and the agent
each played every scenario with the same driver. A test then compared, for each volume, the order of the calls, all
their fields, and the files, modes, links, mounts and loop devices before and after each call. It ignores calls for a
driver's name and capabilities, because the kubelet makes them more often.

"The node" is the kubelet or the agent. `make parity` writes this file; `make record-kubelet` records the kubelet.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the page: a scenario, or several that differ only in the driver's error code.

    Attributes:
        name: the scenario's, or a pattern of several names.
        about: the scenario as a sentence.
        verdict: how the agent's record compares.
    """

    name: str
    about: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Played:
    """A scenario's result: its name, its sentence, the kubelet's number of calls, and the verdict."""

    name: str
    about: str
    calls: int
    verdict: str


def table(pairs: Sequence[tuple[Record, Record | None]]) -> str:
    """The document.

    Args:
        pairs: the kubelet's record of each scenario and ours, None where we have none.
    """
    found = {kubelet["scenario"]: compare(kubelet, ours) for kubelet, ours in pairs if ours is not None}
    played = [
        Played(
            name=name,
            about=kubelet["about"],
            calls=_calls(kubelet),
            verdict=_verdict(name, found[name]) if ours is not None else "not played by the agent",
        )
        for kubelet, ours in pairs
        if (name := kubelet["scenario"])
    ]
    left = [difference for name in found for difference in differences.unwanted(found[name])]
    return document(played, left)


def document(played: Sequence[Played], left: Sequence[Difference]) -> str:
    """The document of scenarios that are compared already, and of the differences that no rule wants."""
    return "\n".join(_lines(played, left)) + "\n"


def grouped(played: Iterable[Played]) -> list[Row]:
    """One row for each scenario; scenarios that differ only in the error code, with one verdict, share a row."""
    groups: dict[tuple[str, str, str], list[tuple[Played, str]]] = {}
    for one in played:
        code = next((it for it in _CODES if re.search(rf"\b{it}\b", one.about)), "")
        slug = code.lower().replace("_", "-")
        name = re.sub(rf"-{slug}(?=-|$)", "-*", one.name) if code else one.name
        about = re.sub(rf"\b{code}\b", "*", one.about) if code else one.about
        groups.setdefault((name, about, one.verdict), []).append((one, code))
    return [_row(*key, members) for key, members in groups.items()]


def _row(name: str, about: str, verdict: str, members: Sequence[tuple[Played, str]]) -> Row:
    if len(members) == 1:
        return Row(name=members[0][0].name, about=members[0][0].about, verdict=verdict)
    codes = [code for _, code in members]
    every = len(codes) == len(_CODES)
    told = f"any of the {len(codes)} error codes" if every else f"{', '.join(codes[:-1])} or {codes[-1]}"
    return Row(name=name, about=about.replace("*", told), verdict=verdict)


def _lines(played: Sequence[Played], left: Sequence[Difference]) -> Iterator[str]:
    yield _INTRODUCTION
    yield from _counts(played)
    yield ""
    yield "## Wanted differences"
    yield ""
    yield "The agent differs from the kubelet on purpose. The scenarios below that have such a difference name it."
    yield ""
    yield "| difference | the kubelet | the agent, and why |"
    yield "|---|---|---|"
    for rule in dict.fromkeys(it.rule for it in differences.ACCEPTED):
        yield f"| {rule.name} | {rule.kubelet} ({rule.source}) | {rule.why} |"
    if left:
        yield ""
        yield "## Unwanted differences"
        yield ""
        yield from (f"    {line}" for difference in left for line in str(difference).splitlines())
    for topic, members in catalog.TOPICS.items():
        yield from _section(topic, [it for it in played if it.name in members])
    yield from _section("Others", [it for it in played if it.name not in catalog.BY_NAME])


def _section(topic: str, played: Sequence[Played]) -> Iterator[str]:
    if played:
        yield ""
        yield f"## {topic}"
        yield ""
        for row in grouped(played):
            yield f"* `{row.name}`: {row.about}" + ("" if row.verdict == _EQUAL else f" ({row.verdict})")


def _counts(played: Sequence[Played]) -> Iterator[str]:
    equal = sum(it.verdict == _EQUAL for it in played)
    wanted = sum(it.verdict.startswith(_WANTED) for it in played)
    calls = sum(it.calls for it in played)
    yield f"Scenarios: {len(played)}, with {calls} calls of the kubelet. Equal: {equal}. Different as wanted: {wanted}."
    if rest := [it.name for it in played if it.verdict != _EQUAL and not it.verdict.startswith(_WANTED)]:
        yield f"Otherwise: {', '.join(f'`{name}`' for name in rest)}."


def _verdict(scenario: str, found: Sequence[Difference]) -> str:
    left = differences.unwanted(found)
    if left:
        return f"**differs** ({len(left)})"
    wanted = differences.rules(scenario, found)
    return f"{_WANTED} {', '.join(wanted)}" if wanted else _EQUAL


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
