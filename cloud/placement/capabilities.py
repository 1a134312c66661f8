"""The capabilities of a fleet: those that a driver has on all of its nodes, as one driver's report. Pure.

Sidecars know one driver, and read its capabilities once (docs/csi-contract.md#sidecars-read-capabilities-once). So the
proxy driver may announce only capabilities that hold on every node. It announces no list of volumes if several nodes
run the driver, because a list would have one node's volumes only.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from common.csi.csi_pb2 import (
    ControllerGetCapabilitiesResponse,
    ControllerServiceCapability,
    GetPluginCapabilitiesResponse,
    GroupControllerGetCapabilitiesResponse,
    NodeGetCapabilitiesResponse,
    PluginCapability,
)
from common.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    Answer,
    DriverReport,
)

_RPC, _SERVICE = ControllerServiceCapability.RPC, PluginCapability.Service

_LISTS: Final = frozenset({_RPC.LIST_VOLUMES, _RPC.LIST_VOLUMES_PUBLISHED_NODES, _RPC.LIST_VOLUME_HEALTH})
"""Not announced for several nodes. LIST_SNAPSHOTS is announced: the snapshotter asks for one snapshot by it."""

_ANSWERS: Final[dict[str, type[Message]]] = {
    GET_PLUGIN_CAPABILITIES: GetPluginCapabilitiesResponse,
    CONTROLLER_GET_CAPABILITIES: ControllerGetCapabilitiesResponse,
    GROUP_GET_CAPABILITIES: GroupControllerGetCapabilitiesResponse,
    NODE_GET_CAPABILITIES: NodeGetCapabilitiesResponse,
}


def merged(reports: Sequence[DriverReport], *, segment: bool) -> DriverReport:
    """The report that a proxy driver gets of a driver on these nodes.

    Args:
        reports: reports of one driver, at least one, each with the `ESSENTIAL_METHODS`. The result has the first one's
            answers, except the capabilities.
        segment: whether the bridge supplies the topology. Then the report announces it as the driver's.
    """
    first = reports[0]
    answers = dict(first.answers)
    for method, kind in _ANSWERS.items():
        answer = _common(kind, [report.answers.get(method) for report in reports])
        if answer is not None:
            answers[method] = answer
        else:
            answers.pop(method, None)
    if segment:
        answers[GET_PLUGIN_CAPABILITIES] = Answer(0, body=_with_segment(answers))
    return DriverReport(first.driver, first.node, answers)


def _common(kind: type[Message], told: Sequence[Answer | None]) -> Answer | None:
    """The answer that holds on each node: none if one node has none, an error if one node has an error."""
    distinct = list({(it.code, it.message, it.body) if it is not None else None: it for it in told}.values())
    if None in distinct:
        return None
    answers = [it for it in distinct if it is not None]
    refused = next((it for it in answers if it.code), None)
    return refused or Answer(0, body=_capabilities(kind, answers, several=len(told) > 1))


def _capabilities(kind: type[Message], told: Sequence[Answer], *, several: bool) -> bytes:
    """The capabilities that are in each answer."""
    messages = [_parse(kind, answer.body) for answer in told]
    others = [{each.SerializeToString(deterministic=True) for each in message.capabilities} for message in messages[1:]]
    common = kind()
    capabilities: Any = common.capabilities  # type: ignore[attr-defined]  # each of these kinds has them
    for capability in messages[0].capabilities:
        everywhere = all(capability.SerializeToString(deterministic=True) in other for other in others)
        if everywhere and not (several and _is_list(capability)):
            capabilities.append(capability)
    return common.SerializeToString()


def _is_list(capability: Any) -> bool:  # one of four message classes
    return isinstance(capability, ControllerServiceCapability) and capability.rpc.type in _LISTS


def _with_segment(answers: dict[str, Answer]) -> bytes:
    """A plugin's capabilities, with those of the topology that the bridge supplies for volumes and snapshots.

    See docs/csi-contract.md#the-bridges-topology-for-vendors-without-one.
    """
    plugin = _parse(GetPluginCapabilitiesResponse, answers[GET_PLUGIN_CAPABILITIES].body)
    controller = _parse(ControllerGetCapabilitiesResponse, answers[CONTROLLER_GET_CAPABILITIES].body)
    supplied = [_SERVICE.VOLUME_ACCESSIBILITY_CONSTRAINTS]
    if any(each.rpc.type == _RPC.CREATE_DELETE_SNAPSHOT for each in controller.capabilities):
        supplied.append(_SERVICE.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
    for kind in supplied:
        _add_service(plugin, kind)
    body: bytes = plugin.SerializeToString()
    return body


def _add_service(plugin: Any, kind: int) -> None:  # a GetPluginCapabilitiesResponse
    if kind not in _services(plugin.capabilities):
        plugin.capabilities.add().service.type = kind


def _services(capabilities: Iterable[Any]) -> set[int]:
    return {each.service.type for each in capabilities if each.WhichOneof("type") == "service"}


def _parse(kind: type[Message], body: bytes) -> Any:  # one of four message classes
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return kind()
    return message
