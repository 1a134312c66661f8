"""The report judge: decides whether a node's report of a driver counts. A refused one gives the node no calls.

The first rule that is broken refuses the report:

1. The plugin's name in GetPluginInfo is the name under which the node reports the driver.
2. The certificate of the node names the driver, or names none.
3. No unique segment of the topology belongs to another node (`cloud.nodes.unique_segments`).

The reports come from nodes. A hostile node can report any driver, with the topology of any other node.
"""

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from google.protobuf.message import DecodeError

from cloud.nodes.unique_segments import UniqueSegments
from cloud.trust import audit
from cloud.trust.audit import Event
from common.csi.csi_pb2 import NodeGetInfoResponse
from common.csi.reports import GET_PLUGIN_CAPABILITIES, NODE_GET_INFO, DriverReport, plugin_name
from common.objects.topology import csi_node_driver, has_topology, segment_of
from common.observe.logs import of_peer
from common.observe.metrics import Metrics

log = logging.getLogger("csi_bridge.hub.nodes")

_SHOWN_CHARS = 100  # a peer's own text in a reason is cut here


class Cause(StrEnum):
    """The rule that a report breaks. A closed set, for the metrics."""

    NAME = "name"
    SEGMENT = "segment"
    RIGHTS = "rights"


@dataclass(frozen=True, slots=True)
class RefusedReport:
    """A refused report; `why` is part of a sentence, with the remedy."""

    cause: Cause
    why: str


def judge(
    report: DriverReport, rights: Sequence[str], segments: UniqueSegments, known: Container[str]
) -> RefusedReport | None:
    """Why a report does not count; None if it counts. No rights are those for every driver. `known` are all nodes."""
    if (name := plugin_name(report)) is not None and name != report.driver:
        shown = ascii(name[:_SHOWN_CHARS])
        return RefusedReport(Cause.NAME, f"the plugin there calls itself {shown}; look at the agent's log")
    if rights and report.driver not in rights:
        why = f"the node's certificate is for {', '.join(rights)}; let it join again with a token for this driver"
        return RefusedReport(Cause.RIGHTS, why)
    why = segments.why_not(report.node, report.driver, topology_of(report), known)
    return RefusedReport(Cause.SEGMENT, why) if why else None


def note(node: str, before: Mapping[str, RefusedReport], now: Mapping[str, RefusedReport], metrics: Metrics) -> None:
    """Note in the log, the audit log and a metric which reports of a node are refused now, and which no longer."""
    extra = of_peer(f"edge {node}")
    for driver, refused in now.items():
        if before.get(driver) != refused:
            line = "the report of driver %s on edge node %s is refused: %s"
            log.warning(line, driver, node, refused.why, extra=extra)
            audit.add(Event.REPORT, who=node, driver=driver, refused=refused.cause, why=refused.why)
            metrics.conflicts.inc(refused.cause)
    for driver in before.keys() - now.keys():
        log.info("the report of driver %s on edge node %s is no longer refused", driver, node, extra=extra)
        audit.add(Event.REPORT, who=node, driver=driver)


def announces_topology(report: DriverReport) -> bool:
    answer = report.answers.get(GET_PLUGIN_CAPABILITIES)
    try:
        return answer is not None and not answer.code and has_topology(answer.body)
    except ValueError:
        return False


def told_topology(report: DriverReport) -> Mapping[str, str]:
    """The topology of the node that Kubernetes is told: the vendor's, or the bridge's segment."""
    if announces_topology(report):
        return topology_of(report)
    return segment_of(report.node)


def csi_node_entry(report: DriverReport) -> dict[str, Any] | None:
    """The driver's entry in the node's CSINode; None if its node plugin has not said who the node is."""
    answer = report.answers.get(NODE_GET_INFO)
    try:
        info = NodeGetInfoResponse.FromString(answer.body if answer is not None and not answer.code else b"")
    except DecodeError:
        return None
    if not info.node_id:
        return None
    return csi_node_driver(report.driver, info.node_id, told_topology(report), info.max_volumes_per_node)


def topology_of(report: DriverReport) -> Mapping[str, str]:
    """The topology that the vendor gives the node; empty if the vendor has none of its own."""
    answer = report.answers.get(NODE_GET_INFO)
    if answer is None or answer.code or not announces_topology(report):
        return {}
    try:
        return dict(NodeGetInfoResponse.FromString(answer.body).accessible_topology.segments)
    except DecodeError:
        return {}
