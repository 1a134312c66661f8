"""The streams of reports: agents report their drivers to the hub, and proxy drivers watch their driver's report."""

import asyncio
import logging

from cloud.nodes.edge_nodes import Nodes
from cloud.placement.placement import Placement
from cloud.trust.admission import foreign_driver
from common.csi.reports import (
    MAX_REPORT_BYTES,
    DriverReport,
    decode_problems,
    decode_reports,
    encode_reports,
    is_problems,
)
from common.errors import CallError, MessageTooLarge, not_carried
from common.observe.logs import of_peer
from common.observe.metrics import Metrics
from common.session.link import Stream

log = logging.getLogger("csi_bridge.hub")

# The loop reads a report up to this size itself. That takes half a millisecond; the largest one takes tens of them.
_QUICK_REPORT_BYTES = 16_384
_MOST_WATCHES = 64  # Watches of one driver at once. Each proxy driver has one; each that is not read holds a report.


class ReportStreams:
    """Serves the reports of agents and the watches of proxy drivers."""

    def __init__(self, nodes: Nodes, placement: Placement, metrics: Metrics) -> None:
        self._nodes = nodes
        self._placement = placement
        self._metrics = metrics
        self._watchers: dict[str, set[asyncio.Event]] = {}
        nodes.subscribe(lambda driver, _node: self.changed(driver))

    async def serve_report(self, stream: Stream) -> None:
        # A report that cannot be taken is a problem of this node alone. The hub has all that it knew before, and the
        # driver that the report may name has made nothing through this hub.
        node = stream.link.peer.name
        async for message in stream:
            try:
                if is_problems(message):
                    problems = decode_problems(message)
                    if (visit := self._nodes.of(node).visit) is not None:
                        visit.problems = problems
                else:
                    await self._nodes.report(node, await _read_reports(message))
            except ValueError as error:
                if self._nodes.of(node).note_untaken(str(error)):
                    log.warning("node %s sent an unreadable report: %s", node, error, extra=of_peer(f"edge {node}"))
                    self._metrics.conflicts.inc("unreadable")
            self._nodes.problems_told(node)  # also by an older agent, which tells none

    async def serve_watch(self, stream: Stream) -> None:
        """Send a proxy driver the Identity and capabilities of its driver, now and at each change."""
        assert stream.opened is not None
        driver = stream.opened.subject
        named_node = stream.opened.node
        if driver != stream.link.peer.name:
            raise foreign_driver(stream.link.peer.name, driver)
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(driver, set())
        if len(watchers) >= _MOST_WATCHES:
            raise not_carried("a watch", f"{_MOST_WATCHES} others watch driver {driver} already")
        watchers.add(changed)
        told: DriverReport | None = None
        try:
            while True:
                changed.clear()
                told = await self._tell(stream, driver, named_node, told)
                await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(driver, None)

    def look_again(self) -> None:
        # A loss of records was settled.
        for driver in self._watchers:
            self._placement.changed(driver)
            self.changed(driver)

    async def _tell(
        self, stream: Stream, driver: str, named_node: str, told: DriverReport | None
    ) -> DriverReport | None:
        # Returns the report that was sent last: this one, or the one `told` before.
        try:
            report = self._placement.report(driver, named_node, stream.link.context.placement)
        except CallError:  # the next report or an operator may make one
            return told
        if report is None or report == told:
            return told
        try:
            await stream.send(encode_reports([report]))
        except MessageTooLarge as error:
            why = str(error)
            log.error("proxy driver %s cannot get the report of its driver on node %s: %s", driver, report.node, why)  # noqa: TRY400  # the sentence says it all
        return report

    def changed(self, driver: str) -> None:
        for changed in self._watchers.get(driver, ()):
            changed.set()


async def _read_reports(message: bytes) -> list[DriverReport]:
    if len(message) > MAX_REPORT_BYTES:
        raise ValueError(
            f"{len(message)} bytes, and {MAX_REPORT_BYTES} is the limit; the node's earlier report stays; run fewer "
            f"drivers there"
        )
    if len(message) <= _QUICK_REPORT_BYTES:
        return decode_reports(message)
    return await asyncio.to_thread(decode_reports, message)
