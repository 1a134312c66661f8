"""A normal form: a recording without what differs from run to run, so that two runs of a scenario have the same.

Rules:

* Ids, names and paths become words such as `HANDLE(data)` and `UID(a)`; loop devices lose their numbers, secrets and
  tokens their content.
* Each volume has a lane of its own, because a node works on several at a time: its calls, and of the trees round them
  what is its own. What belongs to no volume is in the lane `shared`, looked at when the script says so.
* A tree is told as what was added to the one before and what was removed from it.
* Calls that are repeated with the same end, and with the same trees round them, are one step, `one or more` times. What
  only goes on after a mark is not told again.
* How often something is tried that fails is a matter of time. A call that fails is told of one or more even if it was
  made once, and so are the calls between it and the next like it: they belong to the next try. One that fails again and
  changes nothing more is no step of its own.
* A time-out is rounded up to ten seconds: what was asked before the call took some of it.
* Calls that only ask are named once for the whole scenario (`asked`): how often they come depends on time.
* So are calls that measure (`measured`), if the scenario is about them, with their requests.
* Driver messages are left out: they hold paths and are the driver's own.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from common.csi import csi_pb2 as pb
from tests.peers.kubelet.recorder import Call, Mark, Recording
from tests.peers.kubelet.tree import EMPTY, Tree

Record = dict[str, Any]
Step = dict[str, Any]

SHARED = "shared"  # the lane of what belongs to no volume

_ASKING = frozenset(
    {
        "GetPluginInfo",
        "GetPluginCapabilities",
        "Probe",
        "NodeGetCapabilities",
        "ControllerGetCapabilities",
        "GroupControllerGetCapabilities",
    }
)

_REGISTRATION_LIMIT_S = 60.0  # a NodeGetInfo of a registration has the kubelet's 2 minutes; one with less only asks
_ASKED_FIRST_S = 10
"""What is asked before a call, of the driver and of the API server, takes a part of the call's time-out."""

_MEASURING = frozenset({"NodeGetVolumeStats", "NodeGetVolumeHealth", "NodeGetStorageHealth"})
_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
_LONGEST_CYCLE = 4
_LOOP = re.compile(r"\bloop\d+")
_OF_VOLUME = re.compile(r"\b(?!UID)[A-Z]+\((?:[^(),]+, )?([^(),]+)\)")
_MORE = "one or more"


def normal_form(
    recording: Recording,
    *,
    scenario: str,
    about: str,
    names: Mapping[str, str],
    notes: Mapping[str, Any],
    measures: bool,
) -> Record:
    """The record of a scenario, ready to be written as JSON.

    Args:
        recording: what was seen.
        about: what happens in it.
        names: what this run's names and ids stand for.
        notes: what else the script saw.
        measures: whether calls that measure belong into it.
    """
    naming = _Naming(names)
    events = [it for it in recording.events if isinstance(it, Mark) or not (_only_asks(it) or it.method in _MEASURING)]
    moments = [_moment(event, naming) for event in events]
    lanes = sorted({moment.lane for moment in moments if moment.lane} | {SHARED})
    return {
        "scenario": scenario,
        "about": about,
        **({"measured": _measured(recording, naming)} if measures else {}),
        "asked": sorted({it.method for it in recording.events if isinstance(it, Call) and _only_asks(it)}),
        "lanes": {lane: list(_told(_shortened(_retried(_of_lane(lane, moments))))) for lane in lanes},
        "notes": naming.of_value(dict(notes)),
    }


@dataclass(frozen=True)
class _Moment:
    """A mark or a call, with the trees round it.

    Attributes:
        before, after: the trees, None where nobody looked.
    """

    step: Step  # as it is told
    lane: str  # whose call it is; empty for a mark, which is in all lanes
    before: Tree | None
    after: Tree | None
    more: bool = False  # whether it is told of several

    @property
    def fails(self) -> bool:
        return "call" in self.step and self.step["status"] != "OK"

    def repeats(self, earlier: "_Moment") -> bool:
        """Whether this is the same call once more."""
        if not self.lane or self.step != earlier.step:
            return False
        found, left = (earlier.before, earlier.after), (earlier.after, earlier.after)
        return (self.before, self.after) in ({found, left} if self.fails else {found})


class _Naming:
    def __init__(self, names: Mapping[str, str]) -> None:
        # The longest first: some are parts of others.
        self._names = sorted(names.items(), key=lambda pair: len(pair[0]), reverse=True)

    def of(self, text: str) -> str:
        for actual, word in self._names:
            text = text.replace(actual, word)
        return _LOOP.sub("loop*", text)

    def of_value(self, value: Any) -> Any:
        """Anything JSON can hold, in the record's words."""
        match value:
            case str():
                return self.of(value)
            case dict():
                return {self.of(key): self.of_value(inner) for key, inner in value.items()}
            case list():
                return [self.of_value(inner) for inner in value]
        return value

    def of_tree(self, tree: Tree | None) -> Tree | None:
        return None if tree is None else frozenset(self.of(line) for line in tree)


def _only_asks(call: Call) -> bool:
    soon = call.timeout_s is not None and call.timeout_s < _REGISTRATION_LIMIT_S
    return call.method in _ASKING or (call.method == "NodeGetInfo" and soon)


def _moment(event: Call | Mark, naming: _Naming) -> _Moment:
    if isinstance(event, Mark):
        return _Moment({"mark": naming.of(event.text)}, "", naming.of_tree(event.tree), None)
    request = naming.of_value(_request(event.request))
    step: Step = {"call": event.method, "request": request}
    if event.timeout_s is not None:
        step["timeout"] = f"{math.ceil(event.timeout_s / _ASKED_FIRST_S) * _ASKED_FIRST_S} s"
    step["status"] = event.status or "NO ANSWER"
    lane = _lane(request.get("volume_id", ""))
    return _Moment(step, lane, naming.of_tree(event.before), naming.of_tree(event.after))


def _measured(recording: Recording, naming: _Naming) -> list[Step]:
    steps = [_moment(event, naming).step for event in recording.events if _measures(event)]
    different = {json.dumps(step, sort_keys=True): step for step in steps}
    return [different[key] for key in sorted(different)]


def _measures(event: Call | Mark) -> bool:
    return isinstance(event, Call) and event.method in _MEASURING


def _lane(text: str) -> str:
    found = _OF_VOLUME.search(text)
    return found[1] if found else SHARED


def _of_lane(lane: str, moments: Sequence[_Moment]) -> list[_Moment]:
    def own(tree: Tree | None) -> Tree | None:
        return None if tree is None else frozenset(line for line in tree if _lane(line) == lane)

    return [
        replace(moment, before=own(moment.before), after=own(moment.after))
        for moment in moments
        if moment.lane in {"", lane}
    ]


def _retried(moments: Sequence[_Moment]) -> list[_Moment]:
    """The moments; calls that fail, and what stands between two that fail alike, are told of one or more."""
    told = [replace(moment, more=moment.fails) for moment in moments]
    for at, moment in enumerate(moments):
        if moment.fails:
            last = max((before for before in range(at) if moments[before].step == moment.step), default=at)
            told[last:at] = [replace(one, more=bool(one.lane)) for one in told[last:at]]
    return told


def _shortened(moments: Sequence[_Moment]) -> list[_Moment]:
    """The moments with repetitions told once: first of single calls, then of cycles of several."""
    told = list(moments)
    for length in range(1, _LONGEST_CYCLE + 1):
        at = 0
        while at + 2 * length <= len(told):
            one, other = told[at : at + length], told[at + length : at + 2 * length]
            if all(again.repeats(moment) for moment, again in zip(one, other, strict=True)):
                told[at : at + 2 * length] = [replace(moment, more=True) for moment in one]
            else:
                at += 1
    return _without_going_on(told)


def _without_going_on(moments: Sequence[_Moment]) -> list[_Moment]:
    """The moments without repetitions that marks stand between: a mark does not change what goes on anyway."""
    told: list[_Moment] = []
    last = -1  # where the last call is
    for moment in moments:
        # What belongs to no volume is a registration, which goes on by nobody's retry.
        if last >= 0 and moment.lane != SHARED and moment.repeats(told[last]):
            told[last] = replace(told[last], more=True)
            continue
        if moment.lane:
            last = len(told)
        told.append(moment)
    return told


def _told(moments: Sequence[_Moment]) -> Iterator[Step]:
    tree = EMPTY
    for moment in moments:
        if moment.before is not None:
            yield from _change(tree, moment.before)
            tree = moment.before
        yield {**moment.step, "times": _MORE} if moment.more else moment.step
        if moment.after is not None:
            yield from _change(tree, moment.after)
            tree = moment.after


def _change(old: Tree, new: Tree) -> Iterator[Step]:
    change = {"added": sorted(new - old), "removed": sorted(old - new)}
    if new != old:
        yield {"tree": {key: lines for key, lines in change.items() if lines}}


def _request(message: Message) -> Record:
    shown: Record = MessageToDict(message, preserving_proto_field_name=True)
    for field in message.DESCRIPTOR.fields:
        options: Any = field.GetOptions()  # types-protobuf does not know that a generated extension is an extension
        if field.name in shown and options.Extensions[pb.csi_secret]:
            shown[field.name] = {key: _marker(key, value) for key, value in sorted(shown[field.name].items())}
    context = shown.get("volume_context", {})
    if _TOKENS in context:
        context[_TOKENS] = _tokens(context[_TOKENS])
    return _ordered(shown)


def _ordered(shown: Record) -> Record:
    """The same with sorted keys: Go sends its maps in any order."""
    return {key: _ordered(value) if isinstance(value, dict) else value for key, value in sorted(shown.items())}


def _marker(key: str, value: str) -> str:
    if key == _TOKENS:
        return _tokens(value)
    return f"secret of digest {hashlib.sha256(value.encode()).hexdigest()[:12]}"


def _tokens(text: str) -> str:
    return json.dumps({audience: sorted(token) for audience, token in sorted(json.loads(text).items())})
