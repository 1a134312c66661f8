"""A driver's fleet: the nodes that run it, and the parts of their reports that placement uses."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from cloud.claims.rules import LISTINGS
from cloud.nodes.capabilities import parse_answer
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.offers import NOTHING, OfferedCapabilities, Offers, digest
from cloud.nodes.report_judge import announces_topology, topology_of
from common.csi.csi_pb2 import (
    ControllerGetCapabilitiesResponse,
    GetPluginCapabilitiesResponse,
    NodeGetInfoResponse,
    PluginCapability,
)
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    ESSENTIAL_METHODS,
    GET_PLUGIN_CAPABILITIES,
    NODE_GET_INFO,
    DriverReport,
)
from common.objects.topology import segment_of

_CONTROLLER_SERVICE = PluginCapability.Service.CONTROLLER_SERVICE
_LISTS = frozenset(listing.capability for listing in LISTINGS.values())


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a fleet.

    A report may have the driver's name alone. Then both `has_topology` and `lacks_topology` are False.
    """

    node: str  # its name
    report: DriverReport  # its newest report
    has_topology: bool  # whether the vendor there has a topology of its own
    lacks_topology: bool  # whether the vendor announces that it has none, so that the bridge supplies one
    segments: Mapping[str, str]  # the node's topology: the vendor's segments, or the bridge's own one
    labels: Mapping[str, str]  # the labels of its Node that follow from the report
    node_id: str  # the vendor's id of the node; empty if it has none
    lists: frozenset[int]  # the driver's capabilities to list (`LISTINGS`)
    has_controller: bool  # whether the vendor there serves the Controller service
    vote: bytes  # the digest of its report, for the vote on the offer; empty if that has the driver's name alone
    # why the node gets no call, because the hub refuses its newest report or judges this one anew; empty if it gets
    # calls. The node may have volumes all the same.
    refused: str = ""

    @property
    def tells_segments(self) -> bool:
        """Whether the hub knows the node's topology. A vendor that has just started may not answer NodeGetInfo yet."""
        return bool(self.segments) or not self.has_topology

    def matches(self, term: Mapping[str, str]) -> bool:
        return term.items() <= self.segments.items()


class Fleet:
    """The nodes that run one driver, in the order of their names. Without a node that describes it, it has no offer."""

    def __init__(self, members: Mapping[str, Member], offer: OfferedCapabilities | None = None) -> None:
        self.members = members
        self.offer = offer
        self.is_mixed = offer is not None and bool(offer.lacking)  # whether a node lacks an offered capability
        # whether the vendor has a topology of its own on most of them.
        self.has_topology = offer is not None and announces_topology(offer.report)
        # By key: the members without such a label. Requests use few keys.
        self._unlabelled: dict[str, list[Member]] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    def lacking(self, node: str) -> frozenset[str]:
        return self.offer.lacking.get(node, NOTHING) if self.offer is not None else NOTHING

    def at(self, term: Mapping[str, str]) -> list[str]:
        """The nodes in a term of a topology. Each term is a look-up, because a request may have thousands of terms."""
        fewest = min((self._at.get(segment, []) for segment in term.items()), key=len, default=[])
        return [member.node for member in fewest if member.matches(term)]

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """The keys of all `Member.labels`. A Node may have other labels."""
        return frozenset(key for key, _ in self._labelled)

    def with_label(self, key: str, values: Iterable[str]) -> list[Member]:
        """The nodes with one of these values of a label, and the nodes whose reports say nothing about it."""
        if key not in self._unlabelled:
            self._unlabelled[key] = [member for member in self if key not in member.labels]
        return [
            *(member for value in values for member in self._labelled.get((key, value), ())),
            *self._unlabelled[key],
        ]

    @cached_property
    def _labelled(self) -> Mapping[tuple[str, str], list[Member]]:
        return _grouped((label, member) for member in self for label in member.labels.items())

    @cached_property
    def _at(self) -> Mapping[tuple[str, str], list[Member]]:
        return _grouped((segment, member) for member in self for segment in member.segments.items())

    @cached_property
    def untold(self) -> str:
        """The first node whose topology the hub does not know; empty: it knows all."""
        return next((member.node for member in self if not member.tells_segments), "")

    def with_node_id(self, node_id: str) -> list[str]:
        return self._by_node_id.get(node_id, [])

    @cached_property
    def _by_node_id(self) -> Mapping[str, list[str]]:
        return _grouped((member.node_id, member.node) for member in self if member.node_id)


class Fleets:
    """The fleet of every driver. A report is parsed once, until the node sends another one."""

    def __init__(self, nodes: Nodes, offers: Offers) -> None:
        self.nodes = nodes
        self._offers = offers
        self.present: dict[str, Fleet] = {}  # those that no report has changed since they were asked for
        self._known: dict[str, Mapping[str, Member]] = {}

    def changed(self, driver: str) -> None:
        self.present.pop(driver, None)

    def of(self, driver: str) -> Fleet:
        if (fleet := self.present.get(driver)) is not None:
            return fleet
        known = self._known.get(driver, {})
        members = {}
        for node in sorted(self.nodes.with_driver(driver)):
            report = self.nodes.find_report(driver, node)
            if report is not None:
                member = known.get(node)
                refused = self.nodes.of(node).why_refused(driver)
                if member is None or member.report is not report:
                    member = _member(report)
                members[node] = member if member.refused == refused else replace(member, refused=refused)
        votes = [(it.report, it.vote) for it in members.values() if it.vote and not it.refused]
        if not members:
            self._offers.forget(driver)
        self._known[driver] = members
        fleet = self.present[driver] = Fleet(members, self._offers.vote(driver, votes))
        return fleet


def _member(report: DriverReport) -> Member:
    segment = segment_of(report.node)
    info = parse_answer(NodeGetInfoResponse, report.answers.get(NODE_GET_INFO))
    own = announces_topology(report)
    describes = report.answers.keys() >= set(ESSENTIAL_METHODS)  # else it has the driver's name alone
    lacks = describes and not own
    segments = topology_of(report) if own else segment if lacks else {}
    plugin = parse_answer(GetPluginCapabilitiesResponse, report.answers.get(GET_PLUGIN_CAPABILITIES))
    told = parse_answer(ControllerGetCapabilitiesResponse, report.answers.get(CONTROLLER_GET_CAPABILITIES))
    return Member(
        node=report.node,
        report=report,
        has_topology=own,
        lacks_topology=lacks,
        segments=segments,
        labels={**segment, **segments},
        node_id=info.node_id,
        lists=frozenset(each.rpc.type for each in told.capabilities) & _LISTS,
        has_controller=any(each.service.type == _CONTROLLER_SERVICE for each in plugin.capabilities),
        vote=digest(report) if describes else b"",
    )


_K = TypeVar("_K")
_V = TypeVar("_V")


def _grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    found: dict[_K, list[_V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
