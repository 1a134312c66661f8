"""The edge nodes that the hub knows: their links, the drivers that they report, and the way to call them.

Rules:

* `reach` finds the link for a call, and says why there is none.
* A node that leaves stays known, with the time at which it left. Its calls are refused with that time. Only an operator
  can say that the node is gone for good.
* A report that the judge refuses does not count, and the node gets no call of that driver. An earlier report that
  counted stays. Without it the hub could take another node for the only one that runs the driver.
* When a link nears its limit of calls, `has_room` keeps the last quarter for drivers with few calls.
* A node's first report of a driver counts only when it is in the records, and the hub repeats a failed write. A hub
  that forgot the node would take another one for the only one that runs the driver.
* All other changes count at once, and the hub writes them soon. One waits longer: when the hub starts, it counts every
  node as away. Half a minute later it writes that of the nodes that have not come back. A fence does not wait for this:
  its own record has the absence, too (`cloud.detach.fences`).
* A report that cannot be read changes nothing, for this node or for any other.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from cloud.nodes.known_node import MOST_REFUSED, SOON_S, KnownNode, Moment, comes_beside
from cloud.nodes.node_records import SHOWN_CHARS, StoredNode, read_node, record_of
from cloud.nodes.question import Question, ask
from cloud.nodes.report_judge import RefusedReport, judge, note, topology_of
from cloud.nodes.unique_segments import UniqueSegments
from cloud.nodes.visit import Visit
from cloud.records.records import Change, RecordKind, Records, stored_bytes
from common.csi.reports import (
    MAX_REPORT_BYTES,
    DriverReport,
    report_to_json,
)
from common.errors import (
    CallError,
    HandshakeRefused,
    Overloaded,
    driver_missing,
    node_offline,
    order_refused,
    shutting_down,
)
from common.links.uplink import LONGEST_REDIAL_S
from common.messages import Hello, Reason
from common.net.enrolment import rights_in
from common.observe.metrics import Metrics
from common.pages.hub import NodeStatus
from common.parsers import LONGEST_NAME_CHARS
from common.session.limits import has_room
from common.session.link import Link
from common.status import Status
from common.store.database_writer import RETRY_S

log = logging.getLogger("csi_bridge.hub.nodes")

DRIFT: Final = 1.01  # by this factor an agent's clock may be slower than the hub's; quartz is better than 0.1 %


class Nodes:
    """All edge nodes that the hub knows, connected or not."""

    def __init__(self, records: Records, segments: UniqueSegments, metrics: Metrics, *, max_nodes: int) -> None:
        self.leads: Callable[[], bool] = lambda: True
        self.problems_told: Callable[[str], None] = lambda _node: None  # called when a node's problems may have changed
        self.max_nodes = max_nodes  # the most known nodes; a known node may always connect
        self.segments = segments
        self._records = records
        self._metrics = metrics
        self._subscribers: list[Callable[[str, str], None]] = []
        self._nodes: dict[str, KnownNode] = {}
        self.connected: set[str] = set()  # those with a visit, for decisions about calls
        self._by_driver: dict[str, set[str]] = {}
        # It stands for a node that the hub does not know, which may have left just before the hub began.
        self._unknown = KnownNode(StoredNode(""), _now())
        started = time.time()
        for stored in records.take(RecordKind.NODE, read_node):
            node = self._nodes[stored.name] = KnownNode(stored, _now())
            if stored.connected:  # the hub was killed, or another one led
                self._put(node, write=False, connected=False, since=started)
            for report in stored.reports:
                self._by_driver.setdefault(report.driver, set()).add(stored.name)
        records.watch(RecordKind.NODE, lambda key: self.record(*key))
        asyncio.get_running_loop().call_later(LONGEST_REDIAL_S, self._note_away, list(self._nodes))
        stored_reports = (report for node in self._nodes.values() for report in node.stored.reports)
        segments.adopt((report.node, report.driver, topology_of(report)) for report in stored_reports)
        self._judge_again(list(self._nodes.values()))

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call `changed` with driver and node whenever a report has changed, in the order of subscription."""
        self._subscribers.append(changed)

    def _changed(self, driver: str, node: str) -> None:
        for changed in self._subscribers:
            changed(driver, node)

    # ---- links come and go -------------------------------------------------------------------------------------------

    def connect(self, hello: Hello, link: Link) -> Link | None:
        """Take the link of a node's agent. Returns the old link if it has replaced one. Raises HandshakeRefused."""
        node = self._nodes.get(hello.name)
        if node is None:
            if len(self._nodes) >= self.max_nodes:
                raise HandshakeRefused(
                    Reason.FULL,
                    f"the hub knows {len(self._nodes)} nodes, which is its limit (--max-nodes), and {hello.name} is a "
                    f"new one; raise it, or run csi-bridge forget NODE for nodes that will not come back",
                )
            node = self._nodes[hello.name] = KnownNode(StoredNode(hello.name), _now())
        node.check_machine(hello, link)
        old = node.visit
        if old is not None and hello.boot == node.stored.boot and comes_beside(old, hello, link):
            node.take_beside(old, link)
            self._put(node, certificate_end=link.peer_identity.not_after)
            self._take_rights(node, link)
            return None
        if old is not None:
            self._replace(node, old, hello)
        node.visit = Visit(hello.name, link, time.monotonic())
        node.conflict = ""
        self.connected.add(hello.name)
        self._metrics.connected_nodes = len(self.connected)
        self._put(
            node,
            instance=hello.instance,
            boot=hello.boot,
            since=time.time(),
            connected=True,
            software=hello.software[:SHOWN_CHARS],
            certificate_end=link.peer_identity.not_after,
        )
        self._take_rights(node, link)
        return old.link if old is not None else None

    def disconnect(self, name: str, link: Link) -> None:
        node = self.of(name)
        visit = node.visit
        earlier = node.earlier
        if earlier is not None and earlier.link is link:
            earlier.ended = earlier.ended or time.time()
            node.earlier = None
            node.left = _now()
        elif visit is not None and visit.link is link:
            self._end(node, visit)
            node.replaced_soon = 0
            self._put(node, write=self.leads(), since=visit.ended, connected=False)

    def _replace(self, node: KnownNode, old: Visit, hello: Hello) -> None:
        is_soon = hello.boot == node.stored.boot and time.monotonic() - old.began < SOON_S
        node.replaced_soon = node.replaced_soon + 1 if is_soon else 0
        self._end(node, old)  # first, so that the end of the old link is not taken for the node's
        old.link.goodbye(Reason.REPLACED, f"{hello.name} has connected again")

    def _take_rights(self, node: KnownNode, link: Link) -> None:
        rights = rights_in(link.peer_identity.uris)
        if rights != node.rights:
            node.rights = rights
            self._judge_again([node])

    def _end(self, node: KnownNode, visit: Visit) -> None:
        visit.ended = visit.ended or time.time()
        node.visit = None
        node.left = _now()
        node.has_shut_down = visit.link.draining
        self.connected.discard(node.stored.name)
        self._metrics.connected_nodes = len(self.connected)

    # ---- reports -----------------------------------------------------------------------------------------------------

    async def report(self, name: str, reports: Iterable[DriverReport]) -> None:
        """Take the reports of a node's agent about its drivers. A driver that is missing there stays known.

        Returns when the reports count, or when the first write of a new driver's report has failed. The caller takes
        the agent's next reports only then. The write goes on if the caller is cancelled.

        Raises:
            ValueError: a driver has no usable name, or the new and the earlier reports are too large together. The
                earlier reports stay.
        """
        node = self._nodes[name]
        new = {report.driver: report for report in reports if report.node == name}
        for driver in new:
            if not (0 < len(driver) <= LONGEST_NAME_CHARS and driver.isprintable()):
                # Without the name: a hostile node could invent one for each report, and each new text is logged.
                raise ValueError("one of the reported names is not a driver's name")
        visit = node.visit
        if visit is not None:
            visit.gone = (visit.gone | visit.told.keys()) - new.keys()
            visit.told = new
            visit.untaken = ""
        write = self._take(node, new)
        if write is not None:
            await asyncio.wait([write])

    def _judge_again(self, nodes: Iterable[KnownNode]) -> None:
        for node in nodes:
            try:
                self._take(node, node.visit.told if node.visit is not None else {})
            except ValueError as error:  # with reports that are no longer refused, the node has too many
                if node.note_untaken(str(error)):
                    log.warning("not all reports of edge node %s can be taken: %s", node.stored.name, error)

    def _take(self, node: KnownNode, reports: Mapping[str, DriverReport]) -> asyncio.Future[None] | None:
        # Judges the earlier reports of other drivers anew, too. Returns the write of first reports.
        name = node.stored.name
        old = {report.driver: report for report in node.stored.reports}
        merged = _merge(name, old, reports)
        all_refused, has_new_segments = self._judge_all(node, merged)
        new = old | {driver: report for driver, report in merged.items() if driver not in all_refused}
        refused = _shortened(all_refused, old.keys())
        refused_before = node.refused
        node.refused = refused
        write = self._write_changes(node, old, new, has_new_segments=has_new_segments)
        for driver, report in new.items():
            if report != old.get(driver) or refused.get(driver) != refused_before.get(driver):
                self._accept(node, driver)
        note(name, refused_before, refused, self._metrics)
        return write

    def _judge_all(self, node: KnownNode, reports: Mapping[str, DriverReport]) -> tuple[dict[str, RefusedReport], bool]:
        # Returns the refused reports, and whether the node has got unique segments.
        refused = dict[str, RefusedReport]()
        has_new_segments = False
        # One after another: a segment given to one driver is taken for the next.
        for driver, report in reports.items():
            refusal = judge(report, node.rights, self.segments, self._nodes)
            if refusal is not None:
                refused[driver] = refusal
            elif self.segments.claim(node.stored.name, driver, topology_of(report)):
                has_new_segments = True
        return refused, has_new_segments

    def _write_changes(
        self,
        node: KnownNode,
        old: Mapping[str, DriverReport],
        new: Mapping[str, DriverReport],
        *,
        has_new_segments: bool,
    ) -> asyncio.Future[None] | None:
        first = new.keys() - old.keys()
        node.unwritten |= first
        # The segments are written before the report that has them.
        if has_new_segments and not first:
            self._records.put(self.segments.record(node.stored.name))
        if new != old:
            # The record holds a report's answers, without `DriverReport.away`: if only that has changed, no write is
            # needed. First reports are written by `_write`, below.
            answers_changed = {driver: report.answers for driver, report in new.items()} != {
                driver: report.answers for driver, report in old.items()
            }
            self._put(node, write=answers_changed and not first, reports=tuple(new.values()))
        return self._write(node) if first else None

    def record(self, name: str) -> Change:
        node = self._nodes.get(name)
        return record_of(node.stored) if node is not None else Change(RecordKind.NODE, (name,), None)

    def _write(self, node: KnownNode) -> asyncio.Future[None]:
        # The segments go first. If the report's write then fails, other nodes just cannot get these segments.
        changes = self.segments.record(node.stored.name), record_of(node.stored)
        node.write = self._records.write(change for change in changes if change.body is not None)
        node.write.add_done_callback(partial(self._written, node))
        return node.write

    def _written(self, node: KnownNode, write: asyncio.Future[None]) -> None:
        error = write.exception()
        if node.write is not write or self._nodes.get(node.stored.name) is not node:  # a newer write or node decides
            return
        if error is not None:
            node.trouble = str(error)
            asyncio.get_running_loop().call_later(RETRY_S, self._write_again, node, write)
            return
        written_drivers = node.unwritten
        node.unwritten = set()
        node.trouble = ""
        for driver in sorted(written_drivers):
            self._accept(node, driver)

    def _write_again(self, node: KnownNode, failed: asyncio.Future[None]) -> None:
        if node.write is failed and node.unwritten and self._nodes.get(node.stored.name) is node:
            self._write(node)

    def _accept(self, node: KnownNode, driver: str) -> None:
        if driver not in node.unwritten:
            self._by_driver.setdefault(driver, set()).add(node.stored.name)
            self._changed(driver, node.stored.name)

    def _put(self, node: KnownNode, *, write: bool = True, **changed: Any) -> None:
        node.stored = replace(node.stored, **changed)
        if write:
            self._records.put(record_of(node.stored))

    def _note_away(self, names: Iterable[str]) -> None:
        # Half a minute after the hub's start, most nodes are back. Only the others need a record that they are away.
        for name in names:
            node = self._nodes.get(name)
            if node is not None and node.visit is None:
                self._put(node)

    def forget(self, name: str, driver: str = "") -> None:
        """Forget a node that is gone for good, or one driver of it. Raises CallError."""
        subject = f"driver {driver} of edge node {name}" if driver else f"edge node {name}"
        failure = f"{subject} is not forgotten"
        node = self._nodes.get(name)
        if node is not None:
            self._forget(node, driver, failure)
        elif not self.segments.forget(name, driver):
            raise order_refused(failure, "the hub knows no such node")
        self._judge_again([node for node in self._nodes.values() if node.refused])

    def _forget(self, node: KnownNode, driver: str, failure: str) -> None:
        name = node.stored.name
        known = {report.driver: report for report in node.stored.reports}
        if not driver and (node.visit is not None or node.earlier is not None):
            raise order_refused(failure, "it is connected; stop its agent first")
        if driver and driver not in known:
            raise order_refused(failure, "it has never reported such a driver")
        if node.visit is not None and driver in node.visit.told and driver not in node.refused:
            raise order_refused(
                failure,
                "its agent still reports it; first stop the vendor's node plugin with its node-driver-registrar on "
                "that node, and take its socket from the agent's --driver if it is named there",
            )
        # First: if the hub dies in between, its next start gives back the segments that a stored report has.
        self.segments.forget(name, driver)
        if driver:
            node.unwritten.discard(driver)
            self._put(node, reports=tuple(report for report in node.stored.reports if report.driver != driver))
        else:
            del self._nodes[name]
            self._records.put(self.record(name))
        for gone in [driver] if driver else known:
            self._by_driver.get(gone, set()).discard(name)
            self._changed(gone, name)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def of(self, name: str) -> KnownNode:
        """A node, to read. One that the hub does not know has no link and no reports."""
        return self._nodes.get(name, self._unknown)

    def knows(self, name: str, driver: str = "") -> bool:
        """Whether a node has ever connected, and has reported the driver if one is named."""
        return self.find_report(driver, name) is not None if driver else name in self._nodes

    def with_driver(self, driver: str) -> Collection[str]:
        """The nodes that have reported a driver, connected or not."""
        return self._by_driver.get(driver, frozenset())

    def drivers(self) -> list[str]:
        return sorted(driver for driver, nodes in self._by_driver.items() if nodes)

    def find_report(self, driver: str, name: str) -> DriverReport | None:
        """A node's report of a driver; None if it has none that counts."""
        return next((report for report in self.of(name).counted() if report.driver == driver), None)

    def owner(self, key: str, value: str, driver: str) -> str:
        """The one node that has a topology segment; empty if there is none, or if that is not certain."""
        return self.segments.owner(key, value, self._nodes, driver)

    def is_connected(self, name: str) -> bool:
        return name in self.connected

    @property
    def known_count(self) -> int:
        """How many nodes have ever connected."""
        return len(self._nodes)

    def describe(self) -> Iterator[NodeStatus]:
        """Yield the status of each node, without its calls. It is read when the node's turn comes."""
        for name in sorted(self._nodes):
            node = self._nodes.get(name)
            if node is not None:  # it may be forgotten between two turns
                yield node.status()

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def ask_node(self, name: str, question: Question) -> tuple[Status, bytes]:
        return await ask(self.reach(name, question.driver), question)

    def reach(self, name: str, driver: str) -> Visit:
        """The link over which a call of a driver goes to a node. Raises a CallError that says why there is none."""
        if not self.leads():
            raise shutting_down("hub")
        node = self._nodes.get(name)
        if node is None:
            raise CallError(
                f"edge node {name} has never connected to this hub; compare --nodeid of the proxy driver with --node "
                f"of the edge agent, and look at the agent's log"
            )
        if node.visit is None:
            raise node_offline(name, node.stored.since)
        if node.visit.link.draining:
            raise shutting_down(f"agent of edge node {name}")
        if driver in node.refused:
            why = node.refused[driver].why
            raise CallError(
                f"edge node {name} gets no call of driver {driver}, because the hub refuses its report: {why}"
            )
        if name not in self._by_driver.get(driver, ()):
            raise driver_missing(driver, name)
        visit = node.visit
        own = visit.calls[driver]
        together = sum(visit.calls.values())
        most = visit.link.peer.max_streams
        # A full link raises Overloaded itself.
        if together < most and not has_room(own, together, most, sharers=len(node.stored.reports)):
            raise Overloaded(f"driver {driver} on edge node {name}", own, "--max-calls")
        return visit


def _now() -> Moment:
    return Moment(time.monotonic(), time.time())


def _shortened(refused: Mapping[str, RefusedReport], counted: Collection[str]) -> dict[str, RefusedReport]:
    others = islice((driver for driver in refused if driver not in counted), MOST_REFUSED)
    kept = {*others, *counted}
    return {driver: refusal for driver, refusal in refused.items() if driver in kept}


def _merge(name: str, old: Mapping[str, DriverReport], reports: Mapping[str, DriverReport]) -> dict[str, DriverReport]:
    # Keep the earlier answers: a restarted agent has not asked its drivers yet, and without them a call could go to
    # another node.
    merged = {**old, **{driver: _with_former(report, old.get(driver)) for driver, report in reports.items()}}
    if merged == old:
        return merged
    size = stored_bytes([*map(report_to_json, merged.values())])
    if size > MAX_REPORT_BYTES:
        raise ValueError(
            f"{len(merged)} drivers with the earlier ones, {size} bytes in all, and {MAX_REPORT_BYTES} is the limit; "
            f"the node's earlier report stays; run csi-bridge forget {name} DRIVER for each that is gone"
        )
    return merged


def _with_former(report: DriverReport, former: DriverReport | None) -> DriverReport:
    # Keep answers that the new report lacks, such as the node's topology while its node plugin is away.
    return replace(report, answers={**former.answers, **report.answers}) if former is not None else report
