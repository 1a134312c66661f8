"""The node records: the hub's knowledge of each node after a restart, when the node may be away.

Rules:

* A node's first report of a driver counts only once its record has the driver (`edge_nodes`): a hub that forgot it
  could take another node for the only one. Whether the node is connected may be forgotten.
* A record has no `DriverReport.away`: it says something about a node that is connected.
"""

from dataclasses import dataclass, replace
from typing import Final

from cloud.records.records import Body, Change, Key, RecordKind
from common.csi.reports import DriverReport, report_from_json, report_to_json

SHOWN_CHARS: Final = 100  # an agent's words about its software are cut here


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node as its record has it."""

    name: str
    instance: str = ""
    boot: int = 0
    since: float = 0.0
    connected: bool = False
    reports: tuple[DriverReport, ...] = ()
    software: str = ""
    certificate_end: float = 0.0


def record_of(node: StoredNode) -> Change:
    body = {
        "instance": node.instance,
        "boot": node.boot,
        "since": node.since,
        "connected": node.connected,
        "software": node.software,
        "certificate_end": node.certificate_end,
        "drivers": [report_to_json(replace(report, away="")) for report in node.reports],
    }
    return Change(RecordKind.NODE, (node.name,), body)


def read_node(key: Key, body: Body) -> StoredNode:
    (name,) = key
    reports = tuple(report_from_json(item) for item in body["drivers"])
    return StoredNode(
        name,
        str(body["instance"]),
        int(body["boot"]),
        float(body["since"]),
        bool(body["connected"]),
        reports,
        str(body["software"]),
        float(body["certificate_end"]),
    )
