"""The parity page, docs/kubelet-parity.md: all scenarios, and the rules that want our records to differ."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.peers.kubelet import catalog, differences
from tests.peers.kubelet.comparer import compare
from tests.peers.kubelet.normal_form import Record
from tests.peers.kubelet.scenarios.refusals import CODES

_INTRODUCTION = f"""\
# Parity with the kubelet {catalog.KUBELET_VERSION}

For vendors and operators: does a driver get the same calls without a kubelet as with one? The kubelet and the agent
each played every scenario with the same driver. A test then compared, for each volume, the order of the calls, all
their fields, and the files, modes, links, mounts and loop devices before and after each call. It ignores calls for a
driver's name and capabilities, because the kubelet makes them more often.

"The node" is the kubelet or the agent. `make parity` writes this file; `make record-kubelet` records the kubelet.
"""


@dataclass(frozen=True, kw_only=True)
class _Played:
    """A scenario's result: name, sentence, number of the kubelet's calls, and the rules that want the differences."""

    name: str
    about: str
    calls: int
    rules: str


def document(ours: Mapping[str, Record]) -> str:
    """The page of our records of all scenarios, which differ from the kubelet's only as the rules want it."""
    played = [_played(catalog.read(name), ours[name]) for name in catalog.BY_NAME]
    return "\n".join(_lines(played)) + "\n"


def _played(kubelet: Record, ours: Record) -> _Played:
    name = kubelet["scenario"]
    calls = sum("call" in step for steps in kubelet["lanes"].values() for step in steps)
    rules = ", ".join(differences.rules(name, compare(kubelet, ours)))
    return _Played(name=name, about=kubelet["about"], calls=calls, rules=rules)


def _lines(played: Sequence[_Played]) -> Iterator[str]:
    yield _INTRODUCTION
    calls, equal = sum(it.calls for it in played), sum(not it.rules for it in played)
    counts = f"Equal: {equal}. Different as wanted: {len(played) - equal}."
    yield f"Scenarios: {len(played)}, with {calls} calls of the kubelet. {counts}"
    yield ""
    yield "## Wanted differences"
    yield ""
    yield "The agent differs from the kubelet on purpose. The scenarios below that have such a difference name it."
    yield ""
    yield "| difference | the kubelet | the agent, and why |"
    yield "|---|---|---|"
    for rule in dict.fromkeys(it.rule for it in differences.ACCEPTED):
        yield f"| {rule.name} | {rule.kubelet} ({rule.source}) | {rule.why} |"
    for topic, members in catalog.TOPICS.items():
        yield ""
        yield f"## {topic}"
        yield ""
        yield from _rows(it for it in played if it.name in members)


def _rows(played: Iterable[_Played]) -> Iterator[str]:
    """One row for each scenario; scenarios that differ only in the error code, by the same rules, share a row."""
    groups: dict[tuple[str, str, str], list[tuple[_Played, str]]] = {}
    for one in played:
        code = next((it for it in CODES if re.search(rf"\b{it}\b", one.about)), "")
        slug = code.lower().replace("_", "-")
        name = re.sub(rf"-{slug}(?=-|$)", "-*", one.name) if code else one.name
        about = re.sub(rf"\b{code}\b", "*", one.about) if code else one.about
        groups.setdefault((name, about, one.rules), []).append((one, code))
    for (name, about, rules), members in groups.items():
        verdict = f" (as wanted: {rules})" if rules else ""
        if len(members) == 1:
            ((one, _),) = members
            yield f"* `{one.name}`: {one.about}{verdict}"
        else:
            yield f"* `{name}`: {about.replace('*', _listed([code for _, code in members]))}{verdict}"


def _listed(codes: Sequence[str]) -> str:
    if len(codes) == len(CODES):
        return f"any of the {len(codes)} error codes"
    return f"{', '.join(codes[:-1])} or {codes[-1]}"
