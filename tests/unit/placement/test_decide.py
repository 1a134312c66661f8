"""Decisions from literal snapshots: those that no call through a hub shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cloud.placement.claim_store import FORGOTTEN, Hold, Holding, IdEntry, NameEntry, Standing
from cloud.placement.decide import ask_for, decide
from cloud.placement.decisions import AskForLists, Decision, Keeping, Mode, Refuse, Segment, Send, Snapshot
from cloud.placement.fleet import Fleet
from cloud.placement.requests import GROUP, VOLUME, Thing
from common.csi import csi_pb2 as csi
from common.errors import NameElsewhere, NoPlace
from tests.kit.placed_nodes import CONTROLLER, DRIVER, RPC, affinity, create, delete, fleet, on, report

if TYPE_CHECKING:
    from google.protobuf.message import Message

CAN = (RPC.CREATE_DELETE_VOLUME, RPC.LIST_VOLUMES)
FLEET = fleet(*(report(node, capabilities=CAN) for node in ("n1", "n2", "n3")))
TWO = NameEntry({"a": Hold("n1", 1), "b": Hold("n2", 1)})
"""A name that two nodes hold, after two hubs used the exemption of pinned creates."""


def decided(
    method: str, request: Message, claims: Standing, *, mode: str = Mode.LOCAL, wanted: str = "", away: str = ""
) -> Decision:
    ask = ask_for(DRIVER, CONTROLLER + method, request.SerializeToString(), wanted=wanted, mode=mode, fleet=FLEET)
    return decide(ask, Snapshot(FLEET, FLEET.members.keys() - {away}, claims))


def of_nobodys(method: str = "DeleteVolume", request: Message | None = None, **now: Any) -> Any:
    """The decision about a volume that no node has, according to complete lists."""
    path = method if "/" in method else CONTROLLER + method
    ask = ask_for(DRIVER, path, (request or delete()).SerializeToString(), wanted="", mode=Mode.LOCAL, fleet=FLEET)
    return decide(ask, Snapshot(FLEET, ALL, NOBODYS, listed=ALL)._replace(**now))


def refusing(node: str) -> Fleet:
    """The fleet, of which the hub refuses one node's report."""
    return Fleet({**FLEET.members, node: replace(FLEET.members[node], refused="no right")})


def test_a_create_that_the_hub_places_is_claimed_first_and_its_topology_goes_to_no_vendor_without_one() -> None:
    decision = decided("CreateVolume", create("pvc-1", on("n2")), Standing())
    assert decision == Send("n2", FLEET.members["n2"], is_placed=True, keeping=Keeping.FIRST, segment=Segment.ADDED)


@pytest.mark.parametrize(("mode", "keeping"), [(Mode.PINNED, Keeping.LATE), ("", Keeping.FIRST)])
def test_a_pinned_create_is_claimed_late_and_an_operators_first(mode: str, keeping: Keeping) -> None:
    decision = decided("CreateVolume", create(), Standing(), mode=mode, wanted="n1")
    assert decision == Send("n1", FLEET.members["n1"], keeping=keeping)


def test_a_pinned_deletion_of_an_id_that_the_store_does_not_have_there_passes_unrecorded() -> None:
    volume = Thing(VOLUME, "vol-1")
    for holder, ends in (("n1", (volume,)), ("n2", ())):
        claims = Standing(ids={volume: IdEntry({holder: Holding("CreateVolume pvc-1")})})
        decision = decided("DeleteVolume", delete(), claims, mode=Mode.PINNED, wanted="n1")
        assert isinstance(decision, Send)
        assert (decision.ends, decision.passes) == (ends, not ends)


@pytest.mark.parametrize("away", ["n1", "n2"])
def test_of_two_nodes_that_hold_a_name_the_connected_one_gets_the_next_create(away: str) -> None:
    decision = decided("CreateVolume", create("pvc-1", on("n3")), Standing(TWO), away=away)
    assert isinstance(decision, Send)
    assert decision.node == {"n1": "n2", "n2": "n1"}[away]


def test_a_pinned_create_goes_to_any_of_two_nodes_that_hold_its_name_and_to_no_third() -> None:
    found = [decided("CreateVolume", create(), Standing(TWO), mode=Mode.PINNED, wanted=f"n{n}") for n in (1, 2, 3)]
    assert [type(decision) for decision in found] == [Send, Send, Refuse]
    assert isinstance(found[2], Refuse)
    assert (type(found[2].error), found[2].node) == (NameElsewhere, "n3")


VOLUME_1, NOBODYS = Thing(VOLUME, "vol-1"), Standing(ids={Thing(VOLUME, "vol-1"): IdEntry()})
ALL = frozenset(FLEET.members)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"listed": ALL - {"n3"}}, "the nodes' lists leave it open"),
        ({"connected": ALL - {"n3"}}, "n3 cannot be asked for a list"),
        ({"fleet": fleet(*(report(node, capabilities=CAN) for node in ("n1", "n2")), report("n3"))}, "n3 cannot be"),
        ({"fleet": refusing("n2")}, "n2 cannot be asked for a list"),
        ({"volumes": affinity("n2", "n3", handle="vol-1"), "connected": ALL - {"n1"}}, "n1 cannot be asked for a list"),
        ({"claims": NOBODYS._replace(nodes={"n9"})}, "n9 cannot be asked for a list"),
        ({"claims": NOBODYS._replace(lists={("n9", FORGOTTEN)})}, "has forgotten n9, which had volumes or snapshots;"),
        ({"claims": NOBODYS._replace(open={"n2": 1})}, "does not know the outcome of a create on n2 yet"),
        ({"claims": Standing(ids={VOLUME_1: IdEntry({"n2": Holding()})})}, "the nodes' lists leave it open"),
        ({"lost_reports": ("hub.db was damaged",)}, "has lost others (hub.db was damaged)"),
        ({"lost_claims": ("placement.db was damaged",)}, "has lost others (placement.db was damaged)"),
    ],
)
def test_the_deletion_of_what_no_node_lists_goes_nowhere_while_a_node_may_have_it(
    now: dict[str, Any], why: str
) -> None:
    assert why in str(of_nobodys(**now).error)


def test_the_deletion_of_what_no_node_has_goes_to_the_first_node_that_may_have_it_and_is_not_recorded() -> None:
    back = NOBODYS._replace(lists={("n2", FORGOTTEN)})
    for node, now in (("n1", {}), ("n1", {"claims": back}), ("n2", {"volumes": affinity("n2", "n3", handle="vol-1")})):
        decision = of_nobodys(**now)
        assert isinstance(decision, Send)
        assert (decision.node, decision.ends, decision.keeping) == (node, (), Keeping.NEVER)


def test_no_other_call_and_no_secret_goes_to_a_node_by_the_lists_of_others() -> None:
    expand, secrets = csi.ControllerExpandVolumeRequest(volume_id="vol-1"), csi.DeleteVolumeRequest(volume_id="vol-1")
    secrets.secrets["key"] = "value"
    group = csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id="g")
    assert isinstance(of_nobodys("ControllerExpandVolume", expand), AskForLists)
    assert "sends the Secrets of this call to no node without it" in str(of_nobodys(request=secrets).error)
    claims = Standing(ids={Thing(GROUP, "g"): IdEntry()})
    assert isinstance(
        of_nobodys("/csi.v1.GroupController/DeleteVolumeGroupSnapshot", group, claims=claims), AskForLists
    )


def test_the_nodes_that_are_asked_for_lists_are_connected_and_can_list() -> None:
    decision = decided("DeleteVolume", delete(), Standing(ids={Thing(VOLUME, "vol-1"): IdEntry()}), away="n2")
    assert isinstance(decision, AskForLists)
    assert (decision.kind, decision.nodes, type(decision.error)) == (VOLUME, ("n1", "n3"), NoPlace)
