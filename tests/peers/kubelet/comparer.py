"""A comparer: what differs between the kubelet's record of a scenario and ours.

Calls and marks are lined up first, each lane by itself. Where they match, requests are compared field by field and
trees line by line; a line that differs is told once, where it differs first, and not again for as long as it does.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

from tests.peers.kubelet.normal_form import Record, Step


class Kind(StrEnum):
    CALL = "call"  # a call that only one of them made, or made with this end, or made again and again
    FIELD = "field"  # a field of a call's request, or its time-out
    TREE = "tree"  # a line of the tree
    NOTE = "note"  # something that the script saw: a claim's status, the registration


@dataclass(frozen=True)
class Difference:
    """One difference."""

    scenario: str
    lane: str  # of which volume
    kind: Kind
    where: str  # at which call or mark, or which field
    kubelet: str  # what the kubelet has there; empty for nothing
    ours: str  # what we have there; empty for nothing

    def __str__(self) -> str:
        return (
            f"{self.scenario}, {self.lane}, {self.kind} at {self.where}:\n"
            f"    kubelet: {self.kubelet or 'nothing'}\n    ours:    {self.ours or 'nothing'}"
        )


@dataclass(frozen=True)
class _Point:
    """A call or a mark, with the tree just before it and just after it."""

    step: Step
    before: frozenset[str]
    after: frozenset[str]

    @property
    def title(self) -> str:
        if "mark" in self.step:
            return str(self.step["mark"])
        return f"{self.step['call']} {self.step['status']}"


def compare(kubelet: Record, ours: Record) -> list[Difference]:
    """All differences between two records of one scenario."""
    name = kubelet["scenario"]
    found: list[Difference] = []
    for lane in sorted({*kubelet["lanes"], *ours["lanes"]}):
        found += _lane(name, lane, kubelet["lanes"].get(lane, []), ours["lanes"].get(lane, []))
    found += _measured(name, kubelet.get("measured", ()), ours.get("measured", ()))
    found += _notes(name, "notes", kubelet["notes"], ours["notes"])
    return found  # what was asked is told, and is everybody's own


def _measured(name: str, kubelet: Sequence[Step], ours: Sequence[Step]) -> Iterator[Difference]:
    for step in kubelet:
        if step not in ours:
            yield Difference(name, "all", Kind.NOTE, "measured", _shown(step), "")
    for step in ours:
        if step not in kubelet:
            yield Difference(name, "all", Kind.NOTE, "measured", "", _shown(step))


def _notes(name: str, key: str, kubelet: Any, ours: Any) -> Iterator[Difference]:
    if isinstance(kubelet, dict) and isinstance(ours, dict):
        for inner in sorted({*kubelet, *ours}):
            yield from _notes(name, f"{key}: {inner}", kubelet.get(inner), ours.get(inner))
    elif kubelet != ours:
        yield Difference(name, "all", Kind.NOTE, key, _shown(kubelet), _shown(ours))


def _lane(name: str, lane: str, kubelet: Sequence[Step], ours: Sequence[Step]) -> Iterator[Difference]:
    theirs, own = _points(kubelet), _points(ours)
    matcher = SequenceMatcher(None, [it.title for it in theirs], [it.title for it in own], autojunk=False)
    told: set[tuple[str, bool]] = set()
    for tag, first, end, own_first, own_end in matcher.get_opcodes():
        if tag == "equal":
            for their, our in zip(theirs[first:end], own[own_first:own_end], strict=True):
                yield from _trees(name, lane, f"before {their.title}", (their.before, our.before), told)
                yield from _requests(name, lane, their, our)
                yield from _trees(name, lane, f"after {their.title}", (their.after, our.after), told)
        else:
            where = f"after {theirs[first - 1].title}" if first else "start"
            for point in theirs[first:end]:
                yield Difference(name, lane, Kind.CALL, where, point.title, "")
            for point in own[own_first:own_end]:
                yield Difference(name, lane, Kind.CALL, where, "", point.title)


def _requests(name: str, lane: str, their: _Point, our: _Point) -> Iterator[Difference]:
    if "mark" in their.step:
        return
    times, our_times = their.step.get("times", "once"), our.step.get("times", "once")
    if times != our_times:
        yield Difference(name, lane, Kind.CALL, f"times of {their.title}", times, our_times)
    fields, our_fields = _flat(their.step["request"]), _flat(our.step["request"])
    fields["timeout"], our_fields["timeout"] = their.step.get("timeout"), our.step.get("timeout")
    for field in sorted({*fields, *our_fields}):
        if fields.get(field) != our_fields.get(field):
            yield Difference(
                name,
                lane,
                Kind.FIELD,
                f"{field} of {their.title}",
                _shown(fields.get(field)),
                _shown(our_fields.get(field)),
            )


def _trees(
    name: str, lane: str, where: str, trees: tuple[frozenset[str], frozenset[str]], told: set[tuple[str, bool]]
) -> Iterator[Difference]:
    kubelet, ours = trees
    now = {(line, True) for line in kubelet - ours} | {(line, False) for line in ours - kubelet}
    for line, is_kubelets in sorted(now - told):
        yield Difference(name, lane, Kind.TREE, where, line if is_kubelets else "", "" if is_kubelets else line)
    told.clear()
    told.update(now)


def _points(steps: Sequence[Step]) -> list[_Point]:
    points: list[_Point] = []
    tree: frozenset[str] = frozenset()
    pending: Step | None = None
    before = tree
    for step in steps:
        if "tree" in step:
            tree = (tree - set(step["tree"].get("removed", ()))) | set(step["tree"].get("added", ()))
            continue
        if pending is not None:
            points.append(_Point(pending, before, tree))
        pending, before = step, tree
    if pending is not None:
        points.append(_Point(pending, before, tree))
    return points


def _flat(request: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(request, dict) or (path and not request):
        return {path: request}
    found: dict[str, Any] = {}
    for key, value in request.items():
        found.update(_flat(value, f"{path}.{key}" if path else key))
    return found


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
