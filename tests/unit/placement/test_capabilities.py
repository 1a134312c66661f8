"""What the sidecars are told of a driver that runs on several nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud.placement.capabilities import merged
from common.csi import csi_pb2 as csi
from common.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GROUP_GET_CAPABILITIES,
    Answer,
    DriverReport,
)
from tests.unit.placement.world import OWN, RPC, controller, report

SERVICE = csi.PluginCapability.Service


def rpcs(told: DriverReport) -> set[int]:
    body = told.answers[CONTROLLER_GET_CAPABILITIES].body
    return {it.rpc.type for it in csi.ControllerGetCapabilitiesResponse.FromString(body).capabilities}


def services(told: DriverReport) -> set[int]:
    body = told.answers[GET_PLUGIN_CAPABILITIES].body
    return {it.service.type for it in csi.GetPluginCapabilitiesResponse.FromString(body).capabilities}


def test_one_nodes_capabilities_stay_what_they_are() -> None:
    one = report("n1", capabilities=(RPC.CREATE_DELETE_VOLUME, RPC.LIST_VOLUMES))
    assert merged([one], segment=False) == one


def test_only_what_every_node_can_do_is_told() -> None:
    both = [
        report("n1", capabilities=(RPC.CREATE_DELETE_VOLUME, RPC.EXPAND_VOLUME)),
        report("n2", capabilities=(RPC.CREATE_DELETE_VOLUME, RPC.CLONE_VOLUME)),
    ]
    assert rpcs(merged(both, segment=False)) == {RPC.CREATE_DELETE_VOLUME}


@pytest.mark.parametrize("what", [RPC.LIST_VOLUMES, RPC.LIST_VOLUMES_PUBLISHED_NODES, RPC.LIST_VOLUME_HEALTH])
def test_of_several_nodes_what_lists_one_nodes_volumes_is_withheld(what: int) -> None:
    both = [report(node, capabilities=(RPC.CREATE_DELETE_VOLUME, what)) for node in ("n1", "n2")]
    assert rpcs(merged(both, segment=False)) == {RPC.CREATE_DELETE_VOLUME}


def test_snapshots_can_still_be_asked_for_one_by_one() -> None:
    both = [report(node, capabilities=(RPC.LIST_SNAPSHOTS,)) for node in ("n1", "n2")]
    assert rpcs(merged(both, segment=False)) == {RPC.LIST_SNAPSHOTS}


def test_the_bridges_topology_is_told_as_the_drivers_own() -> None:
    assert services(merged([report("n1", capabilities=())], segment=True)) == {OWN}
    with_snapshots = report("n1", capabilities=(RPC.CREATE_DELETE_SNAPSHOT,))
    assert services(merged([with_snapshots], segment=True)) == {OWN, SERVICE.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS}


def test_a_method_that_one_node_does_not_have_is_told_as_missing() -> None:
    group = csi.GroupControllerGetCapabilitiesResponse()
    group.capabilities.add().rpc.type = csi.GroupControllerServiceCapability.RPC.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
    can, cannot = Answer(0, body=group.SerializeToString()), Answer(12, "no groups here")
    both = [with_answer(report("n1"), can), with_answer(report("n2"), cannot)]
    assert merged(both, segment=False).answers[GROUP_GET_CAPABILITIES] == cannot
    assert GROUP_GET_CAPABILITIES not in merged([both[0], report("n2")], segment=False).answers


def test_an_answer_that_does_not_parse_has_no_capability() -> None:
    broken = replace(
        report("n1"), answers={**report("n1").answers, CONTROLLER_GET_CAPABILITIES: Answer(0, body=b"\xff")}
    )
    assert rpcs(merged([broken, report("n2")], segment=False)) == set()


def with_answer(told: DriverReport, answer: Answer) -> DriverReport:
    return replace(told, answers={**told.answers, GROUP_GET_CAPABILITIES: answer})


def test_the_order_of_a_drivers_capabilities_stays() -> None:
    wanted = (RPC.EXPAND_VOLUME, RPC.CREATE_DELETE_VOLUME, RPC.CLONE_VOLUME)
    told = merged([report(node, capabilities=wanted) for node in ("n1", "n2")], segment=False)
    assert told.answers[CONTROLLER_GET_CAPABILITIES].body == controller(*wanted)
