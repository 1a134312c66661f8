"""The judge: compares what the callers were told with what the drivers' own journals say. Pure.

The journals are the truth. A step is one thing that a caller wants done, with all its retries.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import NamedTuple

from tests.kit.testdriver.call_log import Call

KEYS = {
    "CreateVolume": ("name",),
    "DeleteVolume": ("volume_id",),
    "ControllerPublishVolume": ("volume_id", "node_id"),
    "ControllerUnpublishVolume": ("volume_id", "node_id"),
    "ControllerExpandVolume": ("volume_id",),
    "CreateSnapshot": ("name",),
    "DeleteSnapshot": ("snapshot_id",),
}
"""The methods that are judged, and the fields of a journal that tell which step a call belongs to."""

MADE = {"CreateVolume": "volume_id", "CreateSnapshot": "snapshot_id"}

MAY_RETRY = {"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "ABORTED"}
"""The codes that say nothing for certain; docs/csi-contract.md#a-final-code-makes-a-sidecar-forget."""

OUT_OF_ORDER = {"NOT_FOUND", "FAILED_PRECONDITION"}
"""A driver's refusals of a call that came too early or too late. The callers ask in order, so there are none."""


class Attempt(NamedTuple):
    """One call of a caller."""

    begin: float
    end: float
    code: str
    message: str = ""


@dataclass
class Step:
    """One thing that a caller wants done."""

    life: str  # the name of the volume that it is about
    method: str  # the CSI method
    key: tuple[str, ...]  # the values of the request's fields in `KEYS`
    begin: float  # when the caller began with it
    attempts: list[Attempt] = field(default_factory=list)  # its calls
    made: str = ""  # the id in the answer to a create
    over: float = math.inf  # when the caller knew the outcome, or that of the opposite step; never: `math.inf`


class Left(NamedTuple):
    """Something that is there when all is deleted."""

    where: str
    name: str
    what: str


class Finding(NamedTuple):
    """One thing that must not be: the name of the volume, and what happened to it."""

    life: str
    what: str


class Done(NamedTuple):
    """One call in a journal."""

    where: str
    call: Call

    @property
    def step(self) -> tuple[str, ...]:
        return self.call.method, *(self.call.fields.get(part, "") for part in KEYS[self.call.method])

    def __str__(self) -> str:
        length = "no end" if self.call.end is None else f"{self.call.end - self.call.start:.3f} s"
        return f"{self.where}: {' '.join(self.step)}: {self.call.code or '-'} ({length})"


def judge(steps: list[Step], journals: dict[str, list[Call]], left: Iterable[Left] = ()) -> list[Finding]:
    """Return all that must not be.

    Args:
        steps: of all callers.
        journals: by driver process.
        left: what is there at the end, though all was deleted.
    """
    done = [Done(where, call) for where, calls in journals.items() for call in calls if call.method in KEYS]
    asked: dict[tuple[str, ...], list[Step]] = defaultdict(list)
    for step in steps:
        asked[step.method, *step.key].append(step)
    by_step: dict[tuple[str, ...], list[Done]] = defaultdict(list)
    for each in done:
        by_step[each.step].append(each)
    return [
        *(Finding(it.name, f"left at the end at {it.where}: {it.what}") for it in left),
        *(it for step in steps for it in _judge_step(step, by_step[step.method, *step.key])),
        *(it for each in done for it in _judge_call(each, asked[each.step])),
        *(it for key, calls in by_step.items() for it in _doubled(key, calls)),
        *_beside(done, asked),
        *_attached_twice(done, {step.made: step.life for step in steps if step.made}),
    ]


def _judge_step(step: Step, done: list[Done]) -> Iterator[Finding]:
    if step.over == math.inf:
        told = step.attempts[-1] if step.attempts else None
        yield Finding(step.life, f"{step.method} {step.key} has no outcome; the last one told: {told}")
    for attempt in step.attempts:
        if attempt.code in MAY_RETRY:
            continue
        sent = [
            it.call.fields
            for it in done
            if it.call.code == attempt.code and step.begin <= it.call.start and (it.call.end or math.inf) <= attempt.end
        ]
        if not sent:
            yield Finding(step.life, f"no driver answered {step.method} {step.key} with {attempt.code}: {attempt}")
        elif attempt.code == "OK" and step.made and step.made not in {it.get(MADE[step.method]) for it in sent}:
            yield Finding(step.life, f"no driver answered {step.method} {step.key} with {step.made}")


def _judge_call(done: Done, asked: list[Step]) -> Iterator[Finding]:
    life = asked[0].life if asked else done.call.fields.get("name", done.call.fields.get("volume_id", ""))
    if not any(step.begin <= done.call.start <= step.over for step in asked):
        why = "after its caller knew the outcome" if asked else "that nobody asked for"
        yield Finding(life, f"a driver began a call {why}: {done}")
    if done.call.code in OUT_OF_ORDER:
        yield Finding(life, f"a driver refused a call as out of order: {done}")


def _doubled(key: tuple[str, ...], done: list[Done]) -> Iterator[Finding]:
    method, name = key[:2]
    if method in MADE:
        made = {it.call.fields.get(MADE[method], "") for it in done if it.call.code == "OK"}
        if len(made) > 1:
            yield Finding(name, f"{method} made more than one of this name: {sorted(made)}")


def _beside(done: list[Done], asked: dict[tuple[str, ...], list[Step]]) -> Iterator[Finding]:
    """Find things on which two nodes worked at one time. A call without an end was that of a killed driver."""
    about: dict[str, list[Done]] = defaultdict(list)
    for it in done:
        if it.call.end is not None:
            about[it.step[1]].append(it)
    for calls in about.values():
        for one, other in combinations(calls, 2):
            if one.where != other.where and max(one.call.start, other.call.start) < min(one.call.end, other.call.end):
                life = asked[one.step][0].life if asked[one.step] else one.step[1]
                yield Finding(life, f"two nodes worked on it at one time: {one}; {other}")


def _attached_twice(done: list[Done], lives: dict[str, str]) -> Iterator[Finding]:
    """Find volumes that were attached to a node before they were detached from another one."""
    attached: dict[str, set[str]] = defaultdict(set)
    answered = (it for it in done if it.call.code == "OK" and it.call.end is not None)
    for it in sorted(answered, key=lambda it: it.call.end or 0.0):
        volume, node = it.call.fields.get("volume_id", ""), it.call.fields.get("node_id", "")
        if it.call.method == "ControllerPublishVolume":
            attached[volume].add(node)
            if len(attached[volume]) > 1:
                yield Finding(lives.get(volume, volume), f"attached to {sorted(attached[volume])}: {it}")
        elif it.call.method == "ControllerUnpublishVolume":
            attached[volume].discard(node)


def histories(steps: list[Step], journals: dict[str, list[Call]]) -> dict[str, list[str]]:
    """Return all that callers and drivers did, by volume in the order of time. A line has an answer, or equal ones."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    lives = {(step.method, *step.key): step.life for step in steps}
    for step in steps:
        what = f"caller: {' '.join((step.method, *step.key))}"
        for (code, message), calls in groupby(step.attempts, key=lambda it: (it.code, it.message)):
            first, *others = calls
            text = f"{what}: {code} after {first.end - first.begin:.3f} s {message}"
            more = f" ({len(others)} times more, the last one at {others[-1].begin:.3f})" if others else ""
            found[step.life].append((first.begin, text.rstrip() + more))
    for where, calls in journals.items():
        for done in (Done(where, call) for call in calls if call.method in KEYS):
            found[lives.get(done.step, done.step[1])].append((done.call.start, str(done)))
    return {life: [f"{at:.3f} {line}" for at, line in sorted(lines)] for life, lines in found.items()}
