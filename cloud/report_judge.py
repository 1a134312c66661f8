"""The report judge: decides whether a node's report of a driver counts. A refused one gives the node no calls.

The first rule that is broken refuses the report:

1. The plugin's name in GetPluginInfo is the name under which the node reports the driver.
2. The policy allows the node to report this driver with this topology.
3. No unique segment of the topology belongs to another node (`cloud.unique_segments`).

The reports come from nodes. A hostile node can report any driver, with the topology of any other node.
"""

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from google.protobuf.message import DecodeError

from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.policy import Verdict
from cloud.unique_segments import UniqueSegments
from common.csi.csi_pb2 import NodeGetInfoResponse
from common.logs import of_peer
from common.metrics import Metrics
from common.reports import GET_PLUGIN_CAPABILITIES, NODE_GET_INFO, DriverReport, plugin_name
from common.topology import has_topology

log = logging.getLogger("csi_bridge.hub.nodes")

_SHOWN_CHARS = 100
"""A peer's own text in a reason is cut here."""


class Cause(StrEnum):
    """The rule that a report breaks. A closed set, for the metrics."""

    NAME = "name"
    SEGMENT = "segment"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused report.

    Attributes:
        cause: the broken rule.
        why: the reason as part of a sentence, with the remedy.
    """

    cause: Cause
    why: str


class ReportPolicy(Protocol):
    """Says which nodes may report which drivers (`cloud.trust.policy_file`)."""

    def allows_report(self, node: str, driver: str, segments: Mapping[str, str]) -> Verdict:
        """Whether a node may report a driver with this topology."""


class ReportJudge:
    """Judges the reports of all nodes, and notes each refusal in the log, the audit log and a metric."""

    def __init__(self, segments: UniqueSegments, policy: ReportPolicy, *, metrics: Metrics) -> None:
        """Judge by these owners of segments, and by a policy."""
        self.segments, self._policy = segments, policy
        self._metrics = metrics

    def refuse(self, report: DriverReport, known: Container[str]) -> Refused | None:
        """Why a report does not count; None if it counts. Changes nothing. `known` are all nodes."""
        if (name := plugin_name(report)) is not None and name != report.driver:
            shown = ascii(name[:_SHOWN_CHARS])
            return Refused(Cause.NAME, f"the plugin there calls itself {shown}; look at the agent's log")
        segments = topology_of(report)
        verdict = self._policy.allows_report(report.node, report.driver, segments)
        if not verdict.allowed:
            return Refused(Cause.POLICY, verdict.why)
        why = self.segments.why_not(report.node, segments, known)
        return Refused(Cause.SEGMENT, why) if why else None

    def accept(self, report: DriverReport) -> None:
        """Give the node the unique segments of a report that counts."""
        self.segments.claim(report.node, report.driver, topology_of(report))

    def note(self, node: str, before: Mapping[str, Refused], now: Mapping[str, Refused]) -> None:
        """Tell of a node's refused reports, by driver, as far as they have changed."""
        for driver, refused in now.items():
            if before.get(driver) != refused:
                line = "the report of driver %s on edge node %s is refused: %s"
                log.warning(line, driver, node, refused.why, extra=of_peer(f"edge {node}"))
                audit.add(Event.REPORT, who=node, driver=driver, refused=refused.cause, why=refused.why)
                if refused.cause is Cause.POLICY:
                    self._metrics.policy_denial("report")
                else:
                    self._metrics.node_conflict(refused.cause)
        for driver in before.keys() - now.keys():
            log.info(
                "the report of driver %s on edge node %s is no longer refused",
                driver,
                node,
                extra=of_peer(f"edge {node}"),
            )
            audit.add(Event.REPORT, who=node, driver=driver)


def announces_topology(report: DriverReport) -> bool:
    """Whether the vendor has a topology of its own."""
    answer = report.answers.get(GET_PLUGIN_CAPABILITIES)
    try:
        return answer is not None and has_topology(answer.body)
    except ValueError:
        return False


def topology_of(report: DriverReport) -> Mapping[str, str]:
    """The topology that the vendor gives the node; empty if the vendor has none of its own."""
    answer = report.answers.get(NODE_GET_INFO)
    if answer is None or answer.code or not announces_topology(report):
        return {}
    try:
        return dict(NodeGetInfoResponse.FromString(answer.body).accessible_topology.segments)
    except DecodeError:
        return {}
