"""Decisions from literal snapshots: those that no call through a hub shows."""

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

from cloud.claims.book import Book
from cloud.claims.claim import IdEntry, Mark
from cloud.claims.rules import VOLUME, Thing
from cloud.nodes.fleet import Fleet
from cloud.placement.decisions import AskAll, Recording, Route, Segment, View
from cloud.placement.find import ListsNeeded
from cloud.placement.route import read_info, route
from cloud.proxy.driver_settings import Mode
from common.csi import csi_pb2 as csi
from common.errors import CallError
from tests.kit.placed_nodes import CONTROLLER, DRIVER, RPC, affinity, create, delete, fleet, on, report

CAN = (RPC.CREATE_DELETE_VOLUME, RPC.LIST_VOLUMES)
FLEET = fleet(*(report(node, capabilities=CAN) for node in ("n1", "n2", "n3")))
VOLUME_1 = Thing(VOLUME, "vol-1")


def book(*made_at: str, open_at: str = "") -> Book:
    """The name pvc-1 has things on nodes, and an open create."""
    found = Book()
    for node in made_at:
        found.put("CreateVolume pvc-1", VOLUME_1, node, IdEntry("CreateVolume pvc-1", 0.0))
    if open_at:
        found.begin("CreateVolume pvc-1", open_at, 0.0)
    return found


def decided(
    method: str, request: Message, known: Book, *, mode: str = Mode.LOCAL, wanted: str = "", away: str = ""
) -> Route | AskAll:
    info = read_info(
        DRIVER, CONTROLLER + method, request.SerializeToString(), named_node=wanted, mode=mode, fleet=FLEET
    )
    return route(info, View(FLEET, FLEET.members.keys() - {away}, known))


def of_nobodys(method: str = "DeleteVolume", request: Message | None = None, **now: Any) -> Any:
    """The decision about a volume that no node has, according to complete lists; or the refusal."""
    path = method if "/" in method else CONTROLLER + method
    info = read_info(
        DRIVER, path, (request or delete()).SerializeToString(), named_node="", mode=Mode.LOCAL, fleet=FLEET
    )
    try:
        return route(info, View(FLEET, ALL, Book(), listed=ALL)._replace(**now))
    except ListsNeeded as needed:
        return needed


def refusing(node: str) -> Fleet:
    """The fleet, of which the hub refuses one node's report."""
    return Fleet({**FLEET.members, node: replace(FLEET.members[node], refused="no right")})


def test_a_create_that_the_hub_places_is_claimed_first_and_its_topology_goes_to_no_vendor_without_one() -> None:
    decision = decided("CreateVolume", create("pvc-1", on("n2")), Book())
    assert decision == Route("n2", FLEET.members["n2"], recording=Recording.AHEAD, segment=Segment.ADDED)


@pytest.mark.parametrize(("mode", "recording"), [(Mode.PINNED, Recording.LATE), ("", Recording.AHEAD)])
def test_a_pinned_create_is_recorded_late_and_an_operators_ahead(mode: str, recording: Recording) -> None:
    decision = decided("CreateVolume", create(), Book(), mode=mode, wanted="n1")
    assert decision == Route("n1", FLEET.members["n1"], recording=recording)


def test_a_pinned_deletion_of_an_id_that_the_store_does_not_have_there_passes_unrecorded() -> None:
    for holder, deletes in (("n1", (VOLUME_1,)), ("n2", ())):
        decision = decided("DeleteVolume", delete(), book(holder), mode=Mode.PINNED, wanted="n1")
        assert isinstance(decision, Route)
        assert (decision.deletes, decision.recording is Recording.NEVER) == (deletes, not deletes)


@pytest.mark.parametrize("away", ["n1", "n2"])
def test_of_two_nodes_that_made_something_under_a_name_the_connected_one_gets_the_next_create(away: str) -> None:
    decision = decided("CreateVolume", create("pvc-1", on("n3")), book("n1", "n2"), away=away)
    assert isinstance(decision, Route)
    assert decision.node == {"n1": "n2", "n2": "n1"}[away]


def test_a_name_with_an_open_create_goes_to_its_node_alone_whatever_another_one_made_under_it() -> None:
    decision = decided("CreateVolume", create("pvc-1", on("n3")), book("n1", open_at="n2"), away="n2")
    assert isinstance(decision, Route)
    assert decision.node == "n2"


def test_a_pinned_create_goes_to_any_of_two_nodes_that_made_something_under_its_name_and_to_no_third() -> None:
    for node in ("n1", "n2"):
        decision = decided("CreateVolume", create(), book("n1", "n2"), mode=Mode.PINNED, wanted=node)
        assert isinstance(decision, Route)
        assert decision.node == node
    with pytest.raises(CallError, match="may have carried out") as refused:
        decided("CreateVolume", create(), book("n1", "n2"), mode=Mode.PINNED, wanted="n3")
    assert refused.value.node == "n3"


def marked(*, nodes: str = "", forgotten: str = "", open_at: str = "", listed: str = "") -> Book:
    """What makes the hub doubt that nobody has vol-1."""
    found = Book()
    if nodes:
        found.put("CreateVolume x", Thing(VOLUME, "x"), nodes, IdEntry("CreateVolume x", 0.0))
    if forgotten:
        found.mark(forgotten, Mark.FORGOTTEN)
    if open_at:
        found.begin("CreateVolume y", open_at, 0.0)
    if listed:
        found.list(VOLUME_1, listed, 0.0)
    return found


ALL = frozenset(FLEET.members)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"listed": ALL - {"n3"}}, "the nodes' lists leave it open"),
        ({"connected": ALL - {"n3"}}, "n3 cannot be asked for a list"),
        ({"fleet": fleet(*(report(node, capabilities=CAN) for node in ("n1", "n2")), report("n3"))}, "n3 cannot be"),
        ({"fleet": refusing("n2")}, "n2 cannot be asked for a list"),
        ({"volumes": affinity("n2", "n3", handle="vol-1"), "connected": ALL - {"n1"}}, "n1 cannot be asked for a list"),
        ({"book": marked(nodes="n9")}, "n9 cannot be asked for a list"),
        ({"book": marked(forgotten="n9")}, "has forgotten n9, which had volumes or snapshots;"),
        ({"book": marked(open_at="n2")}, "does not know the outcome of a create on n2 yet"),
        ({"book": marked(listed="n2")}, "the nodes' lists leave it open"),
        ({"loss": "state.db was gone"}, "has lost others (state.db was gone)"),
    ],
)
def test_the_deletion_of_what_no_node_lists_goes_nowhere_while_a_node_may_have_it(
    now: dict[str, Any], why: str
) -> None:
    assert why in str(of_nobodys(**now).error)


def test_the_deletion_of_what_no_node_has_goes_to_the_first_node_that_may_have_it_and_is_not_recorded() -> None:
    back = marked(forgotten="n2")
    for node, now in (("n1", {}), ("n1", {"book": back}), ("n2", {"volumes": affinity("n2", "n3", handle="vol-1")})):
        decision = of_nobodys(**now)
        assert isinstance(decision, Route)
        assert (decision.node, decision.deletes, decision.recording) == (node, (), Recording.NEVER)


def test_no_other_call_and_no_secret_goes_to_a_node_by_the_lists_of_others() -> None:
    expand, secrets = csi.ControllerExpandVolumeRequest(volume_id="vol-1"), csi.DeleteVolumeRequest(volume_id="vol-1")
    secrets.secrets["key"] = "value"
    group = csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id="g")
    assert isinstance(of_nobodys("ControllerExpandVolume", expand), ListsNeeded)
    assert "sends the Secrets of this call to no node without it" in str(of_nobodys(request=secrets).error)
    assert isinstance(of_nobodys("/csi.v1.GroupController/DeleteVolumeGroupSnapshot", group), ListsNeeded)
