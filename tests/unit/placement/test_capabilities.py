"""What the sidecars are told of a driver that runs on several nodes."""

from dataclasses import replace

import pytest

from cloud.nodes.capabilities import lacking, names, voted, with_topology
from cloud.nodes.report_judge import announces_topology
from common.csi import csi_pb2 as csi
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    NODE_GET_INFO,
    Answer,
    DriverReport,
)
from tests.kit.placed_nodes import DRIVER, OWN, RPC, controller, report

SERVICE = csi.PluginCapability.Service
CREATE, EXPAND, CLONE = RPC.CREATE_DELETE_VOLUME, RPC.EXPAND_VOLUME, RPC.CLONE_VOLUME


def rpcs(told: DriverReport) -> set[int]:
    body = told.answers[CONTROLLER_GET_CAPABILITIES].body
    return {it.rpc.type for it in csi.ControllerGetCapabilitiesResponse.FromString(body).capabilities}


def services(told: DriverReport) -> set[int]:
    body = told.answers[GET_PLUGIN_CAPABILITIES].body
    return {it.service.type for it in csi.GetPluginCapabilitiesResponse.FromString(body).capabilities}


def can(*kinds: int, nodes: int = 1) -> tuple[DriverReport, int]:
    """So many nodes with these capabilities."""
    return report("n1", capabilities=kinds), nodes


def with_answer(told: DriverReport, answer: Answer, method: str = GROUP_GET_CAPABILITIES) -> DriverReport:
    return replace(told, answers={**told.answers, method: answer})


def test_one_nodes_answers_stay_what_they_are() -> None:
    one = report("n1", capabilities=(CREATE, RPC.LIST_VOLUMES))
    told = voted([(one, 1)], None)
    assert told.answers == {method: answer for method, answer in one.answers.items() if method != NODE_GET_INFO}


def test_a_capability_that_most_nodes_have_is_told_and_any_other_is_not() -> None:
    assert rpcs(voted([can(CREATE, EXPAND, nodes=2), can(CLONE)], None)) == {CREATE, EXPAND}
    assert rpcs(voted([can(CREATE, EXPAND, nodes=2), can()], None)) == {CREATE, EXPAND}
    assert rpcs(voted([can(CREATE), can(CREATE, EXPAND), can(EXPAND, CLONE)], None)) == {CREATE, EXPAND}


def test_a_tie_keeps_what_was_told_earlier() -> None:
    two = [can(CREATE, EXPAND), can(CREATE, CLONE)]
    for earlier in two:
        assert rpcs(voted(two, earlier[0])) == rpcs(earlier[0])


def test_a_tie_without_anything_earlier_tells_what_all_nodes_can_do_and_that_there_is_a_topology() -> None:
    assert rpcs(voted([can(CREATE, EXPAND), can(CREATE, CLONE)], None)) == {CREATE}
    assert announces_topology(voted([(report("n1", segments={"zone": "a"}), 1), (report("n2"), 1)], None))


@pytest.mark.parametrize(
    "what", [RPC.LIST_VOLUMES, RPC.LIST_VOLUMES_PUBLISHED_NODES, RPC.LIST_VOLUME_HEALTH, RPC.LIST_SNAPSHOTS]
)
def test_what_lists_is_told_if_every_node_can(what: int) -> None:
    assert rpcs(voted([can(CREATE, what, nodes=2)], None)) == {CREATE, what}
    assert rpcs(voted([can(CREATE, what, nodes=2), can(CREATE)], None)) == {CREATE}


def test_the_bridges_topology_is_told_as_the_drivers_own() -> None:
    assert services(with_topology(report("n1", capabilities=()))) == {OWN}
    with_snapshots = report("n1", capabilities=(RPC.CREATE_DELETE_SNAPSHOT,))
    assert services(with_topology(with_snapshots)) == {OWN, SERVICE.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS}
    own = report("n1", segments={"zone": "a"})
    assert with_topology(own) == own


def test_a_method_is_told_as_most_nodes_have_it() -> None:
    group = csi.GroupControllerGetCapabilitiesResponse()
    group.capabilities.add().rpc.type = csi.GroupControllerServiceCapability.RPC.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
    yes, no = Answer(0, body=group.SerializeToString()), Answer(12, "no groups here")
    can_, cannot, silent = with_answer(report("n1"), yes), with_answer(report("n2"), no), report("n3")

    def told(*votes: tuple[DriverReport, int], earlier: DriverReport | None = None) -> Answer | None:
        return voted(votes, earlier).answers.get(GROUP_GET_CAPABILITIES)

    assert told((can_, 2), (cannot, 1)) == yes
    assert told((can_, 1), (cannot, 2)) == no
    assert told((can_, 1), (silent, 2)) is None
    for earlier, answer in ((can_, yes), (cannot, no)):
        assert told((can_, 1), (cannot, 1), earlier=earlier) == answer
    assert told((can_, 1), (cannot, 1)) == no
    assert told((can_, 1), (cannot, 1), (silent, 1)) is None


def test_the_version_of_most_nodes_is_told_and_a_tie_keeps_the_earlier_one() -> None:
    def version(text: str) -> DriverReport:
        info = csi.GetPluginInfoResponse(name=DRIVER, vendor_version=text)
        return with_answer(report("n1"), Answer(0, body=info.SerializeToString()), GET_PLUGIN_INFO)

    def told(*votes: tuple[DriverReport, int], earlier: DriverReport | None = None) -> str:
        body = voted(votes, earlier).answers[GET_PLUGIN_INFO].body
        return csi.GetPluginInfoResponse.FromString(body).vendor_version

    assert told((version("1"), 1), (version("2"), 2)) == "2"
    assert told((version("1"), 1), (version("2"), 1), earlier=version("2")) == "2"
    assert told((version("1"), 1), (version("2"), 1), earlier=version("3")) == "1"


def test_an_answer_that_does_not_parse_has_no_capability() -> None:
    broken = with_answer(report("n1"), Answer(0, body=b"\xff"), CONTROLLER_GET_CAPABILITIES)
    assert rpcs(voted([(broken, 1)], None)) == set()


def test_the_order_of_a_drivers_capabilities_stays() -> None:
    wanted = (EXPAND, CREATE, CLONE)
    assert voted([can(*wanted, nodes=2)], None).answers[CONTROLLER_GET_CAPABILITIES].body == controller(*wanted)


def test_a_node_lacks_the_offered_capabilities_that_it_does_not_have_and_that_the_bridge_does_not_supply() -> None:
    offered = with_topology(report("n1", capabilities=(CREATE, EXPAND, RPC.CREATE_DELETE_SNAPSHOT)))
    assert lacking(report("n2", capabilities=(CREATE,)), offered) == {"EXPAND_VOLUME", "CREATE_DELETE_SNAPSHOT"}


def test_a_question_that_a_node_has_not_answered_yet_tells_nothing_of_its_capabilities() -> None:
    stage = csi.NodeGetCapabilitiesResponse()
    stage.capabilities.add().rpc.type = csi.NodeServiceCapability.RPC.STAGE_UNSTAGE_VOLUME
    offered = with_answer(report("n1"), Answer(0, body=stage.SerializeToString()), NODE_GET_CAPABILITIES)
    assert lacking(report("n2"), offered) == set()
    none = with_answer(report("n2"), Answer(0), NODE_GET_CAPABILITIES)
    assert lacking(none, offered) == {"Node STAGE_UNSTAGE_VOLUME"}


def test_capabilities_of_a_later_csi_have_numbers_for_names() -> None:
    assert set(names(report("n1", capabilities=(CREATE, 99)))) == {"CREATE_DELETE_VOLUME", "99"}
