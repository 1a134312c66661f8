"""A known node: its record, its links and its reports; and whether it can serve."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from cloud.claims.election import ServingCandidate
from cloud.nodes.node_records import SHOWN_CHARS, StoredNode
from cloud.nodes.report_judge import RefusedReport
from cloud.nodes.visit import Visit
from common.csi.reports import GET_PLUGIN_CAPABILITIES, MAX_DRIVER_BYTES, DriverReport, is_node_only, vendor_version
from common.links.uplink import LONGEST_REDIAL_S
from common.pages.hub import NodeStatus
from common.pages.json_form import time_of

# After this time without a refusal, a conflict counts as settled: a refused agent dials again within 30 s.
_CONFLICT_S = 3 * LONGEST_REDIAL_S

# After this time since its hello, an agent has asked all its drivers. Before, its report may lack some.
_ASKED_S = 30.0

# Refused drivers that are remembered of a node, apart from drivers that counted before, and drivers with too long
# answers that are shown. A hostile node can invent thousands.
MOST_REFUSED = 20


class Moment(NamedTuple):
    """A moment on both clocks, in seconds."""

    monotonic: float
    wall: float  # since the epoch


@dataclass(slots=True)
class KnownNode:
    """One node that has ever connected."""

    stored: StoredNode
    left: Moment  # when its last link ended, or the hub began
    # drivers in `stored` whose first report is not written yet, so that it does not count
    unwritten: set[str] = field(default_factory=set)
    write: asyncio.Future[None] | None = None  # of such reports, the newest
    trouble: str = ""  # why the last one failed
    has_shut_down: bool = False  # said so itself; a drain without calls ends at once, so nobody may have seen it
    visit: Visit | None = None  # the link that takes new calls; None while it is away
    earlier: Visit | None = None  # the link beside which that one came, until it ends
    rights: tuple[str, ...] = ()  # the drivers that the certificate of the last link names; none: every driver
    refused: Mapping[str, RefusedReport] = field(default_factory=dict)
    conflict: str = ""  # about another machine of this name, which the hub refused at `refused_at`
    refused_at: float = 0.0  # monotonic
    replaced_soon: int = 0  # links in a row that were replaced at once

    def counted(self) -> list[DriverReport]:
        return [report for report in self.stored.reports if report.driver not in self.unwritten]

    def seat(self, driver: str) -> ServingCandidate:
        """The node as a candidate to serve a driver that every node could serve."""
        visit = self.visit
        if visit is None:
            return (
                ServingCandidate("has shut down")
                if self.has_shut_down
                else ServingCandidate("is away", self.left.monotonic)
            )
        if why := self._unfit(visit, driver):
            return ServingCandidate(why)
        if driver not in visit.told:
            return ServingCandidate("has not reported the driver since it connected", visit.began)
        heard = visit.link.silent_since(time.monotonic())
        return ServingCandidate("is silent", heard) if heard is not None else ServingCandidate()

    def status(self) -> NodeStatus:
        """The node for operators, without its calls."""
        stored, reports = self.stored, self.counted()
        link = self.visit.link if self.visit is not None else None
        return NodeStatus(
            node=stored.name,
            connected=link is not None,
            since=time_of(stored.since),
            address=link.peer_identity.address if link is not None else "",
            instance=stored.instance,
            boot=stored.boot,
            software=link.peer.software[:SHOWN_CHARS] if link is not None else "",
            drivers=[report.driver for report in reports],
            rights=list(self.rights),
            refused={driver: refused.why for driver, refused in self.refused.items()},
            problems=[*self._problems(self.visit)] if self.visit is not None else [],
            unreported=self._unreported(reports),
            versions={report.driver: vendor_version(report) for report in reports},
            node_only=[it.driver for it in reports if is_node_only(it.answers.get(GET_PLUGIN_CAPABILITIES))],
            streams=link.open_streams if link is not None else 0,
            conflict=self.conflict if time.monotonic() - self.refused_at < _CONFLICT_S else "",
        )

    def _unfit(self, visit: Visit, driver: str) -> str:
        """Why the connected node cannot be elected, and not only for a moment; else empty."""
        if visit.link.draining:
            return "drains"
        if not visit.lease_s:
            return "announces no usable --controller-lease"
        if driver in self.refused:
            return f"is refused: {self.refused[driver].why}"
        if driver in visit.gone:
            return "reports the driver no more"
        told = visit.told.get(driver)
        return f"has lost the driver: {told.away[:SHOWN_CHARS]}" if told is not None and told.away else ""

    def _unreported(self, reports: list[DriverReport]) -> list[str]:
        if self.visit is None or time.monotonic() - self.visit.began < _ASKED_S:
            return []
        return sorted(report.driver for report in reports if report.driver not in self.visit.told)

    def _problems(self, visit: Visit) -> Iterator[str]:
        name = self.stored.name
        if visit.untaken:
            yield f"the newest report of edge node {name} does not count: {visit.untaken}"
        if self.trouble and self.unwritten:
            drivers = ", ".join(islice(sorted(self.unwritten), MOST_REFUSED))
            yield (
                f"the hub cannot store that edge node {name} has {drivers}, so the node gets no calls of it until the "
                f"hub can: {self.trouble}"
            )
        bare = (driver for driver, report in visit.told.items() if not report.answers)
        for driver in islice(bare, MOST_REFUSED):
            yield (
                f"driver {driver} on edge node {name} describes itself in more than {MAX_DRIVER_BYTES} bytes, so the "
                f"hub gets its name alone, without topology and capabilities, and the CSINode may lack it; make the "
                f"driver's answers shorter, above all the manifest in GetPluginInfo, and restart it"
            )
        yield from (f"edge node {name} says: {problem}" for problem in visit.problems)
