"""The capabilities that sidecars are offered of a driver: those that it has on most of its nodes. Pure.

Sidecars know one driver, and read its capabilities once (docs/csi-contract.md#sidecars-read-capabilities-once). So one
node, hostile or with another version of the driver, must not change them for all.

Rules:

* Each node has one vote for each capability. More than half of the votes decide. A tie keeps the earlier offer.
* If nothing was offered earlier, a tie offers a capability only if it is the topology of the vendor's own
  (`cloud.placement.decisions.Mode`).
* A capability to list needs all votes: a list has the entries of all nodes, or is refused.
* A method's answer is an error, or missing, if it is so on most nodes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from cloud.nodes.report_judge import announces_topology
from common.csi.csi_pb2 import (
    ControllerGetCapabilitiesResponse,
    ControllerServiceCapability,
    GetPluginCapabilitiesResponse,
    GroupControllerGetCapabilitiesResponse,
    NodeGetCapabilitiesResponse,
    PluginCapability,
)
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    Answer,
    DriverReport,
)

_RPC = ControllerServiceCapability.RPC
_SERVICE = PluginCapability.Service

# The capabilities to list.
_LISTS: Final = frozenset(
    {_RPC.LIST_VOLUMES, _RPC.LIST_VOLUMES_PUBLISHED_NODES, _RPC.LIST_VOLUME_HEALTH, _RPC.LIST_SNAPSHOTS}
)

# A topology of the vendor's own, for volumes and for snapshots.
_OWN_TOPOLOGY = _SERVICE.VOLUME_ACCESSIBILITY_CONSTRAINTS
_OF_SNAPSHOTS = _SERVICE.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS

_ANSWERS: Final[dict[str, type[Message]]] = {
    GET_PLUGIN_CAPABILITIES: GetPluginCapabilitiesResponse,
    CONTROLLER_GET_CAPABILITIES: ControllerGetCapabilitiesResponse,
    GROUP_GET_CAPABILITIES: GroupControllerGetCapabilitiesResponse,
    NODE_GET_CAPABILITIES: NodeGetCapabilitiesResponse,
}

# Before the name of a capability of the Node service, some of which have the names of the controller's.
_OF_NODE: Final = "Node "

# The bridge supplies these where the vendor lacks them.
_SUPPLIED: Final = frozenset({"VOLUME_ACCESSIBILITY_CONSTRAINTS", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"})

# Different reports of one driver, and the number of nodes with each. Each has the `ESSENTIAL_METHODS`.
Votes = Sequence[tuple[DriverReport, int]]


def voted(votes: Votes, earlier: DriverReport | None) -> DriverReport:
    """The answers that most nodes agree on, each by itself. `earlier`: the last result for this driver, if any."""
    votes = sorted(votes, key=lambda vote: -vote[1])
    first = votes[0][0]
    answers = {GET_PLUGIN_INFO: _most_common(votes, earlier)}
    for method, kind in _ANSWERS.items():
        answer = _answer(method, kind, votes, earlier)
        if answer is not None:
            answers[method] = answer
    # Of the largest group, because the record of an offer names a node.
    return DriverReport(first.driver, first.node, answers)


def with_topology(report: DriverReport) -> DriverReport:
    """A report of a driver that announces a topology: the bridge's for volumes and snapshots, if it has none."""
    if announces_topology(report):
        return report
    plugin = parse_answer(GetPluginCapabilitiesResponse, report.answers[GET_PLUGIN_CAPABILITIES])
    for kind in (_OWN_TOPOLOGY, *[_OF_SNAPSHOTS] * ("CREATE_DELETE_SNAPSHOT" in names(report))):
        if not any(_is_service(each, kind) for each in plugin.capabilities):
            plugin.capabilities.add().service.type = kind
    answer = Answer(0, body=plugin.SerializeToString())
    return DriverReport(report.driver, report.node, {**report.answers, GET_PLUGIN_CAPABILITIES: answer})


def names(report: DriverReport) -> dict[str, str]:
    """The capabilities in a report: the method of the question, by names such as `EXPAND_VOLUME`."""
    told = ((method, parse_answer(kind, report.answers.get(method))) for method, kind in _ANSWERS.items())
    return {_name(method, each): method for method, message in told for each in message.capabilities}


def lacking(report: DriverReport, offered: DriverReport) -> frozenset[str]:
    """The offered capabilities that a node's driver lacks. A question that it has not answered yet tells nothing."""
    asked = {name for name, method in names(offered).items() if method in report.answers}
    return frozenset(asked - names(report).keys() - _SUPPLIED)


def _most_common(votes: Votes, earlier: DriverReport | None) -> Answer:
    # Of several answers that most nodes give, the earlier one, else the first.
    count: dict[Answer, int] = {}
    for report, nodes in votes:
        answer = report.answers[GET_PLUGIN_INFO]
        count[answer] = count.get(answer, 0) + nodes
    most = max(count.values())
    kept = earlier.answers.get(GET_PLUGIN_INFO) if earlier is not None else None
    if kept is not None and count.get(kept) == most:
        return kept
    return next(answer for answer, nodes in count.items() if nodes == most)


def _answer(method: str, kind: type[Message], votes: Votes, earlier: DriverReport | None) -> Answer | None:
    everyone = sum(nodes for _, nodes in votes)
    told = [(report.answers.get(method), nodes) for report, nodes in votes]

    def most(holds: Callable[[Answer | None], bool]) -> bool:
        return 2 * sum(nodes for answer, nodes in told if holds(answer)) > everyone

    if most(lambda answer: answer is None):
        return None
    if most(lambda answer: answer is not None and bool(answer.code)):
        return next(answer for answer, _ in told if answer is not None and answer.code)
    if not most(lambda answer: answer is not None and not answer.code):
        kept = earlier.answers.get(method) if earlier is not None else None
        if kept is None:  # neither most nodes nor earlier ones tell: the least that a node tells
            missing = any(answer is None for answer, _ in told)
            return None if missing else next(answer for answer, _ in told if answer is not None and answer.code)
        if kept.code:
            return kept
    return Answer(0, body=_capabilities(method, kind, votes, earlier))


def _capabilities(method: str, kind: type[Message], votes: Votes, earlier: DriverReport | None) -> bytes:
    everyone = sum(nodes for _, nodes in votes)
    count: dict[bytes, int] = {}
    found: dict[bytes, Any] = {}
    for report, nodes in votes:
        for key, capability in _keys(kind, report.answers.get(method)).items():
            count[key] = count.get(key, 0) + nodes
            found.setdefault(key, capability)
    kept = _keys(kind, earlier.answers.get(method)) if earlier is not None else {}
    result: Any = kind()
    for key, capability in found.items():
        if _is_list(capability):
            offers = count[key] == everyone
        elif 2 * count[key] == everyone:
            offers = key in kept or (earlier is None and _is_service(capability, _OWN_TOPOLOGY))
        else:
            offers = 2 * count[key] > everyone
        if offers:
            result.capabilities.append(capability)
    body: bytes = result.SerializeToString()
    return body


def _is_list(capability: Any) -> bool:  # one of four message classes
    return isinstance(capability, ControllerServiceCapability) and capability.rpc.type in _LISTS


def _keys(kind: type[Message], answer: Answer | None) -> dict[bytes, Any]:
    # By their bytes: those of different nodes are the same if their bytes are.
    return {each.SerializeToString(deterministic=True): each for each in parse_answer(kind, answer).capabilities}


def _is_service(capability: Any, kind: int) -> bool:
    if not isinstance(capability, PluginCapability) or capability.WhichOneof("type") != "service":
        return False
    return capability.service.type == kind


def _name(method: str, capability: Any) -> str:  # one of four message classes
    part = capability.WhichOneof("type")
    if part is None:
        return "an unknown capability"
    field = getattr(capability, part)
    known = field.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number.get(field.type)
    name = known.name if known is not None else str(field.type)
    prefix = _OF_NODE if method == NODE_GET_CAPABILITIES else "VolumeExpansion " if part == "volume_expansion" else ""
    return prefix + name


def parse_answer(kind: type[Message], answer: Answer | None) -> Any:  # one of four message classes
    """The answer as a message; an empty one if there is none, if it is an error, or if it does not parse."""
    message = kind()
    try:
        message.ParseFromString(answer.body if answer is not None and not answer.code else b"")
    except DecodeError:
        return kind()
    return message
