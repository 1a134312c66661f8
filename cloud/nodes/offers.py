"""The offers: the answers that sidecars get about each driver, and the nodes whose driver lacks a part of them.

An offer outlives the hub, because a tie of votes keeps the earlier one (`capabilities`). It does not follow from the
reports that the hub has: they do not tell which of two answers was offered first.
"""

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from cloud.nodes.capabilities import lacking, voted
from cloud.records.records import Body, Change, Key, RecordKind, Records
from common.csi.reports import NODE_GET_INFO, DriverReport, report_from_json, report_to_json
from common.observe.logs import of_peer
from common.observe.metrics import Metrics

log = logging.getLogger("csi_bridge.hub.placement")

_SHOWN: Final = 20  # a line names at most this many capabilities

NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class OfferedCapabilities:
    """The offer of one driver."""

    report: DriverReport  # the answers that sidecars get, without the topology that the bridge supplies
    # by node: the offered capabilities that its driver lacks. A node that lacks none is left out.
    lacking: Mapping[str, frozenset[str]]


class Offers:
    """The offers of all drivers."""

    def __init__(self, records: Records, metrics: Metrics) -> None:
        self._records = records
        self._metrics = metrics
        self._earlier = dict(records.take(RecordKind.OFFER, _read))
        self._lacking: dict[str, Mapping[str, frozenset[str]]] = {}

    def vote(self, driver: str, votes: Collection[tuple[DriverReport, bytes]]) -> OfferedCapabilities | None:
        """The offer of a driver by its nodes' reports, each with its `digest`; None without reports.

        It is the earlier one of the next vote. The reports have the `ESSENTIAL_METHODS`.
        """
        if not votes:
            return None
        count: dict[bytes, int] = {}
        for _, its in votes:
            count[its] = count.get(its, 0) + 1
        # Backwards, so that the report of the first of several nodes with the same answers stands for all.
        reports = {its: report for report, its in reversed([*votes])}
        earlier = self._earlier.get(driver)
        report = voted([(reports[its], nodes) for its, nodes in count.items()], earlier)
        if earlier is not None and report.answers == earlier.answers:
            report = earlier
        else:
            self._earlier[driver] = report
            told = report_to_json(report)
            self._records.put(Change(RecordKind.OFFER, (driver,), {"node": told["node"], "answers": told["answers"]}))
        missing = {its: lacking(one, report) for its, one in reports.items()}
        found = {one.node: missing[its] for one, its in votes if missing[its]}
        self._note(driver, found)
        return OfferedCapabilities(report, found)

    def forget(self, driver: str) -> None:
        # No node has it any more.
        self._lacking.pop(driver, None)
        if self._earlier.pop(driver, None) is not None:
            self._records.put(Change(RecordKind.OFFER, (driver,), None))

    def _note(self, driver: str, found: Mapping[str, frozenset[str]]) -> None:
        before = self._lacking.get(driver, {})
        self._lacking[driver] = found
        for node, missing in found.items():
            if before.get(node) != missing:
                named = ", ".join(sorted(missing)[:_SHOWN])
                line = "driver %s on edge node %s lacks %s, which most of its nodes have"
                log.warning(line, driver, node, named, extra=of_peer(f"edge {node}"))
                self._metrics.conflicts.inc("capability")


def digest(report: DriverReport) -> bytes:
    """The same for all reports with these answers. That to NodeGetInfo does not count."""
    told = [(method, it.code, it.message, it.body) for method, it in report.answers.items() if method != NODE_GET_INFO]
    return hashlib.sha256(ascii(sorted(told)).encode()).digest()


def _read(key: Key, body: Body) -> tuple[str, DriverReport]:
    (driver,) = key
    return driver, report_from_json({**body, "driver": driver})
