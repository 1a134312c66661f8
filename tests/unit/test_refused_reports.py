"""The reports that a hub refuses: wrong names, drivers outside of the certificate, topology segments of other nodes."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.unique_segments import HOSTNAME, UniqueKeys, UniqueSegments
from cloud.records.records import Change, RecordKind
from cloud.records.sqlite import SqliteRecords
from cloud.trust.audit import Event
from common.csi.reports import DriverReport
from common.errors import CallError
from common.net.peer import Peer as Address
from common.objects.topology import NODE_SEGMENT
from common.observe.exposition import registry_of
from common.observe.metrics import Metrics
from common.observe.version import introduce
from common.pages.hub import NodeStatus
from common.session.link import Link
from tests.kit.audit import Line
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.spoken_node import report
from tests.kit.waiting import settle

DRIVER, OTHER = "d.example", "e.example"
HOST = "topology.d.example/host"
H1, H2 = {HOST: "h1"}, {HOST: "h2"}


class ReportedNodes:
    """The nodes of a hub, with one unique key."""

    def __init__(self, directory: Path, *, keys: tuple[str, ...] = (HOST, HOSTNAME)) -> None:
        self._directory = directory
        self.records, self.metrics = SqliteRecords(directory), Metrics()
        self.changes: list[str] = []
        segments = UniqueSegments(self.records, UniqueKeys(keys))
        self.nodes = Nodes(self.records, segments, self.metrics, max_nodes=10)
        self.nodes.subscribe(lambda driver, _node: self.changes.append(driver))
        self._links: dict[str, tuple[Link, Link]] = {}
        self._closed = False

    async def come(self, node: str, *reports: DriverReport, rights: tuple[str, ...] = ()) -> None:
        """A node connects with a certificate for these drivers, and reports."""
        identity = Address("10.0.0.1:7", local=False, uris=tuple(f"csi-bridge:may-run:{each}" for each in rights))
        self._links[node] = link_pair(Peer(), Peer(accepts=False), identity=identity)
        await settle()
        self.nodes.connect(introduce("edge", node, instance=f"i-{node}", boot=1), self._links[node][0])
        if reports:
            await self.nodes.report(node, reports)

    async def leave(self, node: str) -> None:
        """A node's link ends."""
        self.nodes.disconnect(node, self._links[node][0])
        cut(*self._links.pop(node))
        await settle()

    def refused(self, node: str) -> dict[str, str]:
        """The drivers of a node that are refused, and why."""
        return self.described(node).refused

    def described(self, node: str) -> NodeStatus:
        return next(it for it in self.nodes.describe() if it.node == node)

    def conflicts(self, cause: str) -> float | None:
        return registry_of(self.metrics).get_sample_value("csi_bridge_node_conflicts_total", {"cause": cause})

    async def restart(self) -> "ReportedNodes":
        """The hub that starts after this one."""
        await self.close()
        return ReportedNodes(self._directory)

    async def close(self) -> None:
        """End the links and the store. Idempotent."""
        for node in list(self._links):
            await self.leave(node)
        if not self._closed:
            self._closed = True
            await self.records.close()


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[ReportedNodes]:
    hub = ReportedNodes(tmp_path)
    yield hub
    await hub.close()


def belongs_to(node: str, segment: str) -> str:
    return f"its topology says {segment}, which belongs to edge node {node}"


# -------------------- what is refused --------------------


async def test_a_plugin_that_calls_itself_by_another_name_does_not_count(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", name=OTHER), report(OTHER, "n1"))
    assert hub.refused("n1") == {DRIVER: "the plugin there calls itself 'e.example'; look at the agent's log"}
    assert (hub.described("n1").drivers, list(hub.nodes.with_driver(DRIVER))) == ([OTHER], [])
    assert hub.changes == [OTHER]
    with pytest.raises(CallError, match=r"edge node n1 gets no call of driver d.example, because the hub refuses"):
        hub.nodes.reach("n1", DRIVER)


async def test_a_report_of_a_drivers_name_alone_counts(hub: ReportedNodes) -> None:
    await hub.come("n1", DriverReport(DRIVER, "n1", {}))
    assert list(hub.nodes.with_driver(DRIVER)) == ["n1"]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 254, "\ud800"])
async def test_a_report_with_a_driver_that_has_no_usable_name_is_not_taken(hub: ReportedNodes, name: str) -> None:
    await hub.come("n1", report(DRIVER, "n1"))
    with pytest.raises(ValueError, match="is not a driver's name"):
        await hub.nodes.report("n1", [DriverReport(name, "n1", {}), report(OTHER, "n1")])
    assert hub.described("n1").drivers == [DRIVER]


def not_for(*rights: str) -> str:
    return f"the node's certificate is for {', '.join(rights)}; let it join again with a token for this driver"


async def test_a_driver_that_the_certificate_does_not_name_is_refused(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1"), report(OTHER, "n1"), rights=(DRIVER, "f.example"))
    assert hub.refused("n1") == {OTHER: not_for(DRIVER, "f.example")}
    assert hub.described("n1").rights == [DRIVER, "f.example"]
    assert hub.conflicts("rights") == 1
    with pytest.raises(CallError, match="the hub refuses its report"):
        hub.nodes.reach("n1", OTHER)


async def test_a_node_has_only_its_own_node_segment_even_if_no_other_node_is_known(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments={NODE_SEGMENT: "n7"}))
    assert hub.refused("n1") == {DRIVER: belongs_to("n7", "csi-bridge.io/node=n7")}
    await hub.nodes.report("n1", [report(DRIVER, "n1", segments={NODE_SEGMENT: "n1"})])
    assert hub.refused("n1") == {}


async def test_a_topology_that_the_vendor_does_not_announce_claims_nothing(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments=H1))
    silent = report(DRIVER, "n2")
    told = dict(report(DRIVER, "n2", segments=H1).answers)
    plugin = "/csi.v1.Identity/GetPluginCapabilities"
    await hub.come("n2", DriverReport(DRIVER, "n2", {**told, plugin: silent.answers[plugin]}))
    assert hub.refused("n2") == {}


async def test_a_unique_segment_belongs_to_its_first_node_for_every_driver(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments={**H1, "zone": "z"}))
    await hub.come("n2", report(DRIVER, "n2", segments=H1), report(OTHER, "n2", segments={**H1, "zone": "z"}))
    assert hub.refused("n2") == dict.fromkeys((DRIVER, OTHER), belongs_to("n1", f"{HOST}=h1"))
    assert list(hub.nodes.with_driver(DRIVER)) == ["n1"]
    await hub.come("n3", report(DRIVER, "n3", segments={"zone": "z"}))
    assert hub.refused("n3") == {}


async def test_a_node_keeps_a_segment_that_it_no_longer_reports_also_after_a_restart(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments=H1))
    await hub.nodes.report("n1", [report(DRIVER, "n1", segments=H2)])
    again = await hub.restart()
    await again.come("n2", report(DRIVER, "n2", segments=H1))
    assert again.refused("n2") == {DRIVER: belongs_to("n1", f"{HOST}=h1")}
    await again.close()


@pytest.mark.parametrize("missing", [RecordKind.NODE, RecordKind.SEGMENTS])
async def test_a_segment_stays_with_its_node_if_one_of_two_records_is_missing_until_an_operator_forgets_the_node(
    hub: ReportedNodes, missing: RecordKind
) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments=H1))
    await hub.leave("n1")
    await hub.records.write([Change(missing, ("n1",), None)])
    again = await hub.restart()
    await again.come("n2", report(DRIVER, "n2", segments=H1))
    assert again.refused("n2") == {DRIVER: belongs_to("n1", f"{HOST}=h1")}
    again.nodes.forget("n1")
    assert again.refused("n2") == {}
    await again.close()


async def test_the_name_of_a_node_counts_as_its_hostname(hub: ReportedNodes) -> None:
    await hub.come("n2")
    await hub.come("n1", report(DRIVER, "n1", segments={HOSTNAME: "n2"}))
    assert hub.refused("n1") == {DRIVER: belongs_to("n2", "kubernetes.io/hostname=n2")}
    await hub.nodes.report("n1", [report(DRIVER, "n1", segments={HOSTNAME: "web-7"})])
    assert hub.refused("n1") == {}


async def test_a_node_cannot_have_unique_segments_without_end(hub: ReportedNodes) -> None:
    await hub.come("n1")
    for number in range(300):
        await hub.nodes.report("n1", [report(DRIVER, "n1", segments={HOST: f"h{number}"})])
    assert hub.refused("n1") == {DRIVER: "it has had 256 unique segments; run csi-bridge forget n1 if that is no fault"}
    await hub.come("n2", report(DRIVER, "n2", segments={HOST: "h256"}))
    assert hub.refused("n2") == {}
    drivers = [f"{number}.example" for number in range(260)]
    await hub.come("n3", *(report(driver, "n3", segments={HOST: f"of-{driver}"}) for driver in drivers))
    assert hub.described("n3").drivers == drivers[:256]


async def test_a_value_that_cannot_be_a_label_is_no_unique_segment(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments={HOST: "x" * 64}))
    assert "which cannot be a label" in hub.refused("n1")[DRIVER]


# -------------------- a driver that counted before --------------------


async def test_a_refused_driver_that_counted_before_is_a_candidate_without_calls(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments=H1))
    await hub.come("n2", report(DRIVER, "n2", segments=H2))
    hub.changes.clear()
    await hub.nodes.report("n2", [report(DRIVER, "n2", segments=H1)])
    assert sorted(hub.nodes.with_driver(DRIVER)) == ["n1", "n2"]
    assert hub.nodes.find_report(DRIVER, "n2") == report(DRIVER, "n2", segments=H2)
    assert hub.nodes.of("n2").why_refused(DRIVER) == belongs_to("n1", f"{HOST}=h1")
    assert hub.changes == [DRIVER]
    with pytest.raises(CallError, match="the hub refuses its report"):
        hub.nodes.reach("n2", DRIVER)
    await hub.nodes.report("n2", [report(DRIVER, "n2", segments=H2)])
    hub.nodes.reach("n2", DRIVER)
    assert hub.changes == [DRIVER, DRIVER]


async def test_a_narrower_certificate_counts_from_its_first_link_on_before_any_report(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1"), report(OTHER, "n1"))
    await hub.leave("n1")
    hub.changes.clear()
    await hub.come("n1", rights=(DRIVER,))
    assert (hub.refused("n1"), hub.changes) == ({OTHER: not_for(DRIVER)}, [OTHER])
    await hub.leave("n1")
    assert hub.refused("n1") == {OTHER: not_for(DRIVER)}
    await hub.come("n1", rights=(DRIVER, OTHER))
    assert hub.refused("n1") == {}


async def test_after_a_restart_of_the_hub_the_certificate_counts_before_any_report(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1"))
    again = await hub.restart()
    await again.come("n1", rights=(OTHER,))
    assert again.refused("n1") == {DRIVER: not_for(OTHER)}
    await again.close()


# -------------------- forgetting --------------------


async def test_once_the_first_node_is_forgotten_its_segment_belongs_to_the_next_one_at_once(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments=H1))
    await hub.come("n2", report(DRIVER, "n2", segments=H1))
    await hub.leave("n1")
    assert hub.refused("n2")
    hub.nodes.forget("n1")
    assert (hub.refused("n2"), hub.changes[-1]) == ({}, DRIVER)
    again = await hub.restart()
    await again.come("n1", report(DRIVER, "n1", segments=H1))
    assert again.refused("n1") == {DRIVER: belongs_to("n2", f"{HOST}=h1")}
    await again.close()


async def test_a_segment_is_free_only_when_its_last_driver_is_forgotten(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1", segments=H1), report(OTHER, "n1", segments=H1))
    await hub.come("n2", report(DRIVER, "n2", segments=H1))
    await hub.leave("n1")
    hub.nodes.forget("n1", DRIVER)
    assert hub.refused("n2")
    hub.nodes.forget("n1", OTHER)
    assert not hub.refused("n2")


async def test_a_refused_driver_can_be_forgotten_while_its_agent_reports_it(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1"))
    with pytest.raises(CallError, match="its agent still reports it"):
        hub.nodes.forget("n1", DRIVER)
    await hub.leave("n1")
    await hub.come("n1", report(DRIVER, "n1"), rights=(OTHER,))
    hub.nodes.forget("n1", DRIVER)
    assert not hub.nodes.with_driver(DRIVER)
    with pytest.raises(CallError, match="the hub refuses its report"):
        hub.nodes.reach("n1", DRIVER)


# -------------------- a key that becomes unique later --------------------


async def test_of_several_nodes_that_had_a_segment_before_its_key_was_unique_none_gets_calls_until_one_is_forgotten(
    tmp_path: Path,
) -> None:
    before = ReportedNodes(tmp_path, keys=())
    for node in ("a-thief", "n2"):
        await before.come(node, report(DRIVER, node, segments=H1))
    await before.come("n3", report(DRIVER, "n3", segments=H2))
    hub = await before.restart()
    why = (
        f"its topology says {HOST}=h1, which the edge nodes a-thief, n2 have all reported; run csi-bridge forget NODE "
        f"DRIVER for each but the right one"
    )
    assert hub.refused("a-thief") == hub.refused("n2") == {DRIVER: why}
    assert hub.refused("n3") == {}
    hub.nodes.forget("a-thief", DRIVER)
    assert hub.refused("n2") == {}
    await hub.come("a-thief", report(DRIVER, "a-thief", segments=H1))
    assert hub.refused("a-thief") == {DRIVER: belongs_to("n2", f"{HOST}=h1")}
    await hub.close()


async def test_a_disputed_segment_belongs_to_the_node_of_its_value(tmp_path: Path) -> None:
    before = ReportedNodes(tmp_path, keys=())
    for node in ("a-thief", "n2"):
        await before.come(node, report(DRIVER, node, segments={HOST: "n2"}))
    hub = await before.restart()
    assert (hub.refused("n2"), set(hub.refused("a-thief"))) == ({}, {DRIVER})
    await hub.close()


# -------------------- who is told --------------------


async def test_a_refusal_is_told_once_in_log_audit_log_and_metric_and_so_is_its_end(
    audit_lines: list[Line], hub: ReportedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await hub.come("n1", report(DRIVER, "n1", name=OTHER))
    for _ in range(3):
        await hub.nodes.report("n1", [report(DRIVER, "n1", name=OTHER)])
    why = "the plugin there calls itself 'e.example'; look at the agent's log"
    logged = [record for record in caplog.records if record.name == "csi_bridge.hub.nodes"]
    assert [record.getMessage() for record in logged] == [
        f"the report of driver d.example on edge node n1 is refused: {why}"
    ]
    assert audit_lines == [(Event.REPORT, "n1", "", {"driver": DRIVER, "refused": "name", "why": why})]
    assert (hub.conflicts("name"), hub.conflicts("segment")) == (1, 0)
    await hub.nodes.report("n1", [report(DRIVER, "n1")])
    assert "the report of driver d.example on edge node n1 is no longer refused" in caplog.messages
    assert audit_lines[1:] == [(Event.REPORT, "n1", "", {"driver": DRIVER})]


async def test_of_a_node_that_invents_drivers_only_the_first_refusals_are_kept(hub: ReportedNodes) -> None:
    await hub.come("n1", report(DRIVER, "n1"))
    lies = [report(f"d{number}.example", "n1", name=OTHER) for number in range(100)]
    await hub.nodes.report("n1", [*lies, report(DRIVER, "n1", name=OTHER)])
    assert len(hub.refused("n1")) == 21
    assert DRIVER in hub.refused("n1")
    with pytest.raises(CallError, match="has no driver"):
        hub.nodes.reach("n1", "d99.example")
