"""A known node: its record, its links and its reports; whether it can serve; and which machine may have its name.

Rules:

* One name belongs to one machine. The same instance with the same or a later boot replaces its old link, if it shows
  the same key or one that was issued to this node. The hub refuses every other machine while a link lives, and shows
  the conflict. The refusal says nothing about the connected machine: an attacker could use that for a takeover.
* Two machines with a copy of one state directory replace each other's link again and again. After `_MOST_SOON` such
  replacements the hub refuses the newcomer.
* An agent that renews its certificate connects a second link beside the first (`Hello.beside`). New calls go over the
  second link. The hub drains the first link, where its calls finish.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from cloud.claims.election import ServingCandidate
from cloud.nodes.node_records import SHOWN_CHARS, StoredNode
from cloud.nodes.report_judge import RefusedReport, told_topology
from cloud.nodes.visit import Visit
from common.csi.reports import GET_PLUGIN_CAPABILITIES, MAX_DRIVER_BYTES, DriverReport, is_node_only, vendor_version
from common.errors import HandshakeRefused, timestamp
from common.links.uplink import LONGEST_REDIAL_S
from common.messages import Hello, Reason
from common.net.enrolment import generation_of
from common.net.peer import Peer
from common.observe.logs import of_peer
from common.pages.hub import NodeStatus
from common.pages.json_form import time_of
from common.session.link import Link

log = logging.getLogger("csi_bridge.hub.nodes")

# After this time without a refusal, a conflict counts as settled: a refused agent dials again within 30 s.
_CONFLICT_S = 3 * LONGEST_REDIAL_S

# After this time since its hello, an agent has asked all its drivers. Before, its report may lack some.
_ASKED_S = 30.0

# The most refused drivers that the hub remembers of a node; drivers that counted before are not limited. Also the most
# drivers of a node that are shown with one kind of problem. A hostile node can invent thousands.
MOST_REFUSED = 20

# If a second link replaces a link of this age or less, the first one was probably alive: an agent needs twice its
# keepalive (20 s) to give a link up.
SOON_S: Final = 10.0

# Links in a row that may be replaced soon (`SOON_S`). One machine's network may do that once or twice; two machines
# never stop.
_MOST_SOON: Final = 4


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
    write: asyncio.Future[None] | None = None  # the newest write of such reports
    trouble: str = ""  # why the last such write failed; empty if it did not
    has_shut_down: bool = False  # whether its agent had drained the last link when it ended
    visit: Visit | None = None  # the link that takes new calls; None while the node is away
    earlier: Visit | None = None  # the drained link that `visit` came beside; None once it has ended
    rights: tuple[str, ...] = ()  # the drivers that the certificate of the last link names; none: every driver
    refused: Mapping[str, RefusedReport] = field(default_factory=dict)
    conflict: str = ""  # about another machine of this name, which the hub refused at `refused_at`
    refused_at: float = 0.0  # monotonic
    replaced_soon: int = 0  # links in a row that were replaced at once

    def counted(self) -> list[DriverReport]:
        return [report for report in self.stored.reports if report.driver not in self.unwritten]

    def reported(self) -> dict[str, Mapping[str, str]]:
        """The drivers whose reports count, with the topology that Kubernetes is told."""
        return {report.driver: told_topology(report) for report in self.counted() if report.driver not in self.refused}

    def present(self) -> list[DriverReport]:
        """The reports that count of the drivers that the agent has now; while the node is away, those that it had.

        An agent that has just connected may have asked none of its drivers yet: for a while it has them all.
        """
        has_asked = self.visit is not None and time.monotonic() - self.visit.began >= _ASKED_S
        told = self.visit.told if self.visit is not None and has_asked else None
        counted = (report for report in self.counted() if report.driver not in self.refused)
        return [report for report in counted if told is None or report.driver in told]

    def why_refused(self, driver: str) -> str:
        """Why the node gets no call of a driver that it reports; else empty."""
        return self.refused[driver].why if driver in self.refused else ""

    def note_untaken(self, why: str) -> bool:
        """Note why the newest report does not count. Returns False if it was noted already, or if the node is away."""
        if self.visit is None or self.visit.untaken == why:
            return False
        self.visit.untaken = why
        return True

    @property
    def connected_from(self) -> str:
        """The link, such as ` (it is connected since … from …)`; empty while the node is away."""
        if self.visit is None:
            return ""
        return f" (it is connected since {timestamp(self.stored.since)} from {self.visit.link.peer_identity.address})"

    @property
    def away_since(self) -> float | None:
        """In seconds since the epoch; None if the node is connected, or never was."""
        return self.stored.since if self.stored.name and self.visit is None else None

    def gone_at(self, machine: str = "") -> Moment | None:
        """When the node left; None while a link of it lives.

        With `machine` (`Hello.instance`), only links of that machine count. If another machine has the name now, the
        earlier one's link has ended.
        """
        is_gone = self.visit is None and self.earlier is None
        return self.left if is_gone or machine not in ("", self.stored.instance) else None

    @property
    def lease_s(self) -> int:
        """0 if the node is away or announces none."""
        return self.visit.lease_s if self.visit is not None else 0

    def serving_candidate(self, driver: str) -> ServingCandidate:
        """The node as a candidate to serve a driver that every node could serve."""
        if not self.stored.name:
            return ServingCandidate("is not known any more")
        visit = self.visit
        if visit is None:
            if self.has_shut_down:
                return ServingCandidate("has shut down")
            return ServingCandidate("is away", self.left.monotonic)
        why = self._unfit(visit, driver)
        if why:
            return ServingCandidate(why)
        if driver not in visit.told:
            return ServingCandidate("has not reported the driver since it connected", visit.began)
        heard = visit.link.silent_since(time.monotonic())
        return ServingCandidate("is silent", heard) if heard is not None else ServingCandidate()

    def status(self) -> NodeStatus:
        """The node for operators, without its calls."""
        stored = self.stored
        reports = self.counted()
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
            node_only=[
                report.driver for report in reports if is_node_only(report.answers.get(GET_PLUGIN_CAPABILITIES))
            ],
            streams=link.open_streams if link is not None else 0,
            conflict=self.conflict if time.monotonic() - self.refused_at < _CONFLICT_S else "",
        )

    def check_machine(self, hello: Hello, link: Link) -> None:
        """Refuse a link of another machine while one of this machine lives. Raises HandshakeRefused."""
        live = self.visit or self.earlier
        if live is None:
            return
        name = hello.name
        stored = self.stored
        connected = live.link.peer_identity
        newcomer = link.peer_identity
        why = f"another machine is connected as {name}; give each --node a name of its own"
        evidence = ""
        if hello.instance == stored.instance and _follows(connected, newcomer):
            if hello.boot < stored.boot:
                raise HandshakeRefused(Reason.STALE, f"a later start of this machine is connected as {name}")
            if hello.boot > stored.boot or self.replaced_soon < _MOST_SOON:
                return
            why = (
                f"another machine is connected as {name} with this one's identity; give each --node a name and a "
                f"--state-dir of its own, and never copy instance.json"
            )
            evidence = ": one is a copy of the other"
        elif hello.instance == stored.instance:
            evidence = ": its key is another one, and its certificate is no later one"
        self.conflict = (
            f"two machines use the node name {name}: instance {stored.instance} at {connected.address}, connected "
            f"since {timestamp(stored.since)}, stays, instance {hello.instance} at {newcomer.address} is "
            f"refused{evidence}"
        )
        self.refused_at = time.monotonic()
        raise HandshakeRefused(Reason.CONFLICT, why, shown=self.conflict)

    def take_beside(self, live: Visit, link: Link) -> None:
        # The new link takes the new calls. The hub drains the live link: only the hub knows the last call there.
        name = self.stored.name
        earliest = self.earlier
        self.earlier = live
        self.visit = replace(live, link=link, calls=defaultdict(int))
        self.conflict = ""
        log.info(
            "edge %s at %s shows its next certificate on a second link",
            name,
            link.peer_identity.address,
            extra=of_peer(f"edge {name}"),
        )
        if earliest is not None:  # an agent has two links at most
            earliest.ended = time.time()
            earliest.link.goodbye(Reason.REPLACED, f"{name} has connected again")
        live.link.drain(f"{name} goes on over its next link")

    def _unfit(self, visit: Visit, driver: str) -> str:
        # Empty if the reason may be over in a moment: `serving_candidate` gives such reasons.
        if visit.link.draining:
            return "drains"
        if not visit.lease_s:
            return "announces no usable --controller-lease"
        if driver in self.refused:
            return f"is refused: {self.refused[driver].why}"
        if driver in visit.gone:
            return "reports the driver no more"
        report = visit.told.get(driver)
        return f"has lost the driver: {report.away[:SHOWN_CHARS]}" if report is not None and report.away else ""

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
        # An agent sends only the name of a driver whose answers are too large.
        bare = (driver for driver, report in visit.told.items() if not report.answers)
        for driver in islice(bare, MOST_REFUSED):
            yield (
                f"driver {driver} on edge node {name} describes itself in more than {MAX_DRIVER_BYTES} bytes, so the "
                f"hub gets its name alone, without topology and capabilities, and the CSINode may lack it; make the "
                f"driver's answers shorter, above all the manifest in GetPluginInfo, and restart it"
            )
        yield from (f"edge node {name} says: {problem}" for problem in visit.problems)


def comes_beside(live: Visit, hello: Hello, link: Link) -> bool:
    # With the same certificate it may be a copy of the agent, which must not take calls unseen.
    return hello.beside and link.peer_identity.serial != live.link.peer_identity.serial


def _follows(live: Peer, shown: Peer) -> bool:
    # The hub issued `shown` later (`cloud.trust.generations`), or both come from files and `shown` begins later.
    if shown.key == live.key:
        return True
    return (generation_of(shown.uris), shown.not_before) > (generation_of(live.uris), live.not_before)
