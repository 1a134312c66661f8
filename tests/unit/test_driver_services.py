"""Which of a driver's sockets a call goes to, and what is told of the driver as a whole. No socket is opened."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, PluginCapability
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    NODE_GET_INFO,
    PROBE,
    REPORTED_METHODS,
    Answer,
    DriverReport,
)
from common.errors import CallError
from common.status import Code
from edge.calls.drivers import Driver
from edge.registry.driver_services import (
    ambiguities,
    awaits_controller,
    find_driver,
    has_topology,
    told_reports,
)

NAME = "d.example"
CONTROLLER = "/csi.v1.Controller/CreateVolume"
GROUP = "/csi.v1.GroupController/CreateVolumeGroupSnapshot"
METADATA = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
NODE = "/csi.v1.Node/NodeStageVolume"
UNKNOWN = "/csi.v1.Imagined/Call"

ANNOUNCED = ("CONTROLLER_SERVICE", "GROUP_CONTROLLER_SERVICE", "SNAPSHOT_METADATA_SERVICE")
"""What one binary says in each of its modes: many node plugins announce what only the controller's serves."""

WITH_TOPOLOGY = (*ANNOUNCED, "VOLUME_ACCESSIBILITY_CONSTRAINTS")


class FakeDriver(Driver):
    """A driver that has told its name, or not, or was not asked yet."""

    def __init__(
        self,
        socket: str = "/run/a.sock",
        *,
        name: str = NAME,
        trouble: str = "",
        named: bool = False,
        asked: bool = True,
        announces: Sequence[str] = ANNOUNCED,
        lacks: Sequence[str] = (),
    ) -> None:
        super().__init__(Path(socket), "n1", max_message_bytes=1, changed=lambda: None)
        answers = {method: Answer(0, body=f"{method} of {socket}".encode()) for method in REPORTED_METHODS}
        services = [PluginCapability(service=PluginCapability.Service(type=service)) for service in announces]
        body = GetPluginCapabilitiesResponse(capabilities=services).SerializeToString()
        answers[GET_PLUGIN_CAPABILITIES] = Answer(0, body=body)
        answers |= dict.fromkeys(lacks, Answer(Code.UNIMPLEMENTED, f"not at {socket}"))
        self.report = DriverReport(name, "n1", answers) if name else None
        self.trouble = trouble
        self.named = named
        self.asked = asked


def controller_plugin(*, named: bool = False, announces: Sequence[str] = ANNOUNCED) -> FakeDriver:
    """A vendor's binary in the mode of a controller."""
    return FakeDriver("/c.sock", named=named, announces=announces, lacks=(NODE_GET_CAPABILITIES, NODE_GET_INFO))


def node_plugin(*, named: bool = False, announces: Sequence[str] = ANNOUNCED) -> FakeDriver:
    """The same binary in the mode of a node."""
    lacks = (CONTROLLER_GET_CAPABILITIES, GROUP_GET_CAPABILITIES)
    return FakeDriver("/n.sock", named=named, announces=announces, lacks=lacks)


def found(drivers: Sequence[Driver], method: str) -> Driver:
    return find_driver(drivers, NAME, "n1", method)


async def test_a_driver_is_found_by_the_name_that_it_gave() -> None:
    wanted = FakeDriver()
    assert found([FakeDriver(name=""), FakeDriver(name="e.example"), wanted], CONTROLLER) is wanted


async def test_a_name_that_no_driver_gave_is_missing() -> None:
    with pytest.raises(CallError, match=r"has no driver d\.example;"):
        found([FakeDriver(name="e.example"), FakeDriver(name="")], CONTROLLER)


async def test_a_driver_in_trouble_is_found_as_well() -> None:
    gone = FakeDriver(trouble="connection refused")
    assert found([gone], CONTROLLER) is gone


@pytest.mark.parametrize("method", [CONTROLLER, NODE, PROBE, UNKNOWN])
@pytest.mark.parametrize("trouble", ["", "connection refused"])
async def test_two_drivers_of_one_name_that_serve_the_same_are_named_even_if_one_of_them_is_away(
    trouble: str, method: str
) -> None:
    twins = [FakeDriver("/a.sock", trouble=trouble), FakeDriver("/b.sock")]
    with pytest.raises(CallError, match=r"2 drivers with the name d.example: /a.sock, /b.sock; if"):
        found(twins, method)


@pytest.mark.parametrize("method", [CONTROLLER, GROUP, METADATA, PROBE, GET_PLUGIN_INFO, UNKNOWN])
async def test_what_a_controller_serves_goes_to_the_controllers_socket_whatever_the_nodes_announces(
    method: str,
) -> None:
    controller, node = controller_plugin(), node_plugin()
    assert found([node, controller], method) is controller
    assert found([controller, node], method) is controller


async def test_what_a_node_serves_goes_to_the_nodes_socket() -> None:
    controller, node = controller_plugin(), node_plugin()
    assert found([node, controller], NODE) is found([controller, node], NODE) is node


@pytest.mark.parametrize(
    ("method", "service"),
    [(CONTROLLER, "Controller"), (GROUP, "GroupController"), (METADATA, "SnapshotMetadata"), (UNKNOWN, "Imagined")],
)
async def test_a_socket_that_has_refused_controller_gets_no_call_of_what_a_controller_serves(
    method: str, service: str
) -> None:
    with pytest.raises(CallError, match=rf"has no driver d\.example that serves {service};"):
        found([node_plugin()], method)


async def test_a_socket_that_has_refused_node_gets_no_call_of_node() -> None:
    with pytest.raises(CallError, match=r"has no driver d\.example that serves Node;"):
        found([controller_plugin()], NODE)


async def test_a_controller_refuses_groups_itself_also_beside_a_node_plugin_that_does_not() -> None:
    controller = FakeDriver("/c.sock", lacks=(GROUP_GET_CAPABILITIES,))
    node = FakeDriver("/n.sock", lacks=(CONTROLLER_GET_CAPABILITIES,))
    assert found([node, controller], GROUP) is controller


async def test_a_driver_alone_refuses_in_its_own_words_what_not_every_controller_has() -> None:
    alone = FakeDriver(announces=("CONTROLLER_SERVICE",), lacks=(GROUP_GET_CAPABILITIES,))
    assert {found([alone], method) for method in (CONTROLLER, GROUP, METADATA, NODE, UNKNOWN)} == {alone}


async def test_a_node_plugin_alone_says_who_it_is() -> None:
    alone = node_plugin()
    assert found([alone], GET_PLUGIN_INFO) is alone


async def test_a_socket_that_announces_a_service_goes_before_one_that_does_not() -> None:
    silent, plain = FakeDriver("/a.sock", announces=()), FakeDriver("/b.sock", announces=("CONTROLLER_SERVICE",))
    groups = FakeDriver("/g.sock", announces=("GROUP_CONTROLLER_SERVICE",))
    metadata = FakeDriver("/m.sock", announces=("SNAPSHOT_METADATA_SERVICE",))
    sockets = [silent, plain, groups, metadata]
    assert [found(sockets, method) for method in (CONTROLLER, GROUP, METADATA)] == [plain, groups, metadata]


async def test_of_two_that_serve_all_the_one_that_an_operator_named_is_the_controllers() -> None:
    node, controller = FakeDriver("/a.sock"), FakeDriver("/b.sock", named=True)
    assert found([controller, node], CONTROLLER) is found([controller, node], GROUP) is controller
    assert found([controller, node], NODE) is node


async def test_what_a_socket_serves_counts_before_who_named_it() -> None:
    controller, node = controller_plugin(), node_plugin(named=True)
    assert found([node, controller], CONTROLLER) is controller
    assert found([node, controller], NODE) is node


@pytest.mark.parametrize("method", [CONTROLLER, GROUP, METADATA, UNKNOWN])
async def test_no_controller_call_goes_elsewhere_before_a_named_socket_was_asked_for_the_first_time(
    method: str,
) -> None:
    node, controller = FakeDriver("/n.sock"), FakeDriver("/c.sock", named=True)
    unasked = FakeDriver("/c.sock", name="", named=True, asked=False)
    with pytest.raises(CallError, match="that serves"):
        found([unasked, node], method)
    assert found([unasked, node], NODE) is found([unasked, node], PROBE) is node
    assert found([unasked, node, controller], method) is controller, "its own named socket was heard"


async def test_a_named_socket_that_failed_to_answer_holds_up_no_call() -> None:
    node, failed = FakeDriver("/n.sock"), FakeDriver("/c.sock", name="", named=True, trouble="connection refused")
    assert found([failed, node], CONTROLLER) is node


async def test_two_sockets_that_an_operator_named_are_told_apart_by_what_they_serve_alone() -> None:
    both = [controller_plugin(named=True), node_plugin(named=True)]
    assert [found(both, method) for method in (CONTROLLER, NODE)] == both
    with pytest.raises(CallError, match="drivers with the name"):
        found([*both, FakeDriver("/x.sock", named=True)], CONTROLLER)


async def test_what_is_ambiguous_is_said_once_for_each_name() -> None:
    twins = [FakeDriver("/a.sock"), FakeDriver("/b.sock"), FakeDriver("/e.sock", name="e.example")]
    text = (
        "edge node n1 has 2 drivers with the name d.example: /a.sock, /b.sock; if one of them is the controller, name "
        "only its socket with the agent's --driver; otherwise stop one of them"
    )
    assert ambiguities(twins, "n1") == [text]
    assert ambiguities([controller_plugin(), node_plugin()], "n1") == []


async def test_of_each_service_the_hub_is_told_what_the_socket_says_that_serves_it() -> None:
    controller, node = controller_plugin(), node_plugin()
    assert controller.report is not None
    assert node.report is not None
    nodes = {method: node.report.answers[method] for method in (NODE_GET_INFO, NODE_GET_CAPABILITIES)}
    whole = DriverReport(NAME, "n1", {**controller.report.answers, **nodes})
    assert told_reports([node, controller], ()) == told_reports([controller, node], ()) == [whole]


async def test_each_driver_is_told_once_in_its_own_words() -> None:
    one, other = FakeDriver(), FakeDriver("/e.sock", name="e.example")
    assert told_reports([one, FakeDriver(name=""), other], ()) == [one.report, other.report]


async def test_a_driver_is_away_if_the_socket_of_its_controller_is() -> None:
    controller, node = controller_plugin(), node_plugin()
    node.away = "no such socket"
    assert [report.away for report in told_reports([node, controller], ())] == [""]
    node.away, controller.away = "", "connection refused"
    assert [report.away for report in told_reports([node, controller], ())] == ["connection refused"]


async def test_what_nobody_has_answered_is_not_told() -> None:
    alone = FakeDriver()
    assert alone.report is not None
    alone.report = DriverReport(NAME, "n1", {GET_PLUGIN_INFO: Answer(0)})
    assert told_reports([alone], ()) == [alone.report]


async def test_of_two_that_serve_the_same_one_is_told() -> None:
    twins = [FakeDriver("/a.sock"), FakeDriver("/b.sock")]
    assert told_reports(twins, ()) == [twins[0].report]


async def test_a_driver_is_not_told_while_its_controller_may_be_at_a_named_socket_that_has_not_answered() -> None:
    node, unheard = node_plugin(), FakeDriver("/c.sock", name="", named=True)
    whole = FakeDriver("/e.sock", name="e.example")
    assert told_reports([unheard, node, whole], ()) == [whole.report]
    assert told_reports([FakeDriver("/c.sock", name=""), node], ()) == [node.report]
    assert [report.driver for report in told_reports([controller_plugin(named=True), node], ())] == [NAME]


async def test_before_a_named_socket_was_asked_only_drivers_whose_own_named_socket_was_heard_are_told() -> None:
    unasked = FakeDriver("/c.sock", name="", named=True, asked=False)
    whole, named = FakeDriver(), FakeDriver("/e.sock", name="e.example", named=True)
    assert told_reports([unasked, whole, named], ()) == [named.report]
    assert awaits_controller([unasked, whole, named], NAME)
    assert not awaits_controller([unasked, whole, named], "e.example")


async def test_a_driver_has_a_topology_if_any_socket_of_it_says_so_or_one_that_had_it_may_still_say_so() -> None:
    node, controller = node_plugin(), controller_plugin(announces=WITH_TOPOLOGY)
    other, unheard = FakeDriver("/e.sock", name="e.example", announces=WITH_TOPOLOGY), FakeDriver(name="")
    unheard_named = FakeDriver(name="", named=True)
    assert has_topology([node, controller], NAME, ())
    assert not has_topology([node, other, unheard], NAME, ())
    assert not has_topology([node, unheard_named], NAME, ())
    assert has_topology([node, unheard_named], NAME, {NAME})
    assert not has_topology([node, unheard], NAME, {NAME})


@pytest.mark.parametrize("there", ["controller", "node", "both"])
async def test_the_hub_hears_of_a_topology_from_whichever_socket_announces_it(there: str) -> None:
    controller = controller_plugin(announces=ANNOUNCED if there == "node" else WITH_TOPOLOGY)
    node = node_plugin(announces=ANNOUNCED if there == "controller" else WITH_TOPOLOGY)
    (report,) = told_reports([node, controller], ())
    assert controller.report is not None
    said = controller.report.answers[GET_PLUGIN_CAPABILITIES].body
    added = b"\n\x04\n\x02\x08\x02" if there == "node" else b""
    assert report.answers[GET_PLUGIN_CAPABILITIES] == Answer(0, body=said + added)
