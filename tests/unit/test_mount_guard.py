"""The mount guard: no detach while the node has the volume mounted or may have, and every way out."""

import itertools
from typing import Any

import pytest

from cloud.detach.mount_guard import VolumeView, why_held
from common.objects.objects import Ref
from tests.kit.cluster_objects import DRIVER, claim, pod, volume
from tests.kit.guarded import BROKE, HANDLE, IN_USE, LEFT, LEFT_TEXT, Guarded, only_links

AWAY = "it is offline since then"
OUT = (
    "bring the node back, or, if its machine is off for certain, run csi-bridge fence n2 on the hub's host or give its "
    "Node the taint node.kubernetes.io/out-of-service"
)
HAD = (
    f"volume {HANDLE} of driver {DRIVER} is not detached from node n2: it is offline since {LEFT_TEXT}, and had it "
    f"mounted; {OUT}"
)


@pytest.fixture
def world() -> Guarded:
    return Guarded()


# -------------------- the rule --------------------


@pytest.mark.parametrize(
    ("absence", "is_given_up", "is_mounted", "is_wanted", "tells_all", "why"),
    [
        (AWAY, False, True, False, True, f"{AWAY}, and had it mounted"),
        (AWAY, False, True, True, True, f"{AWAY}, and had it mounted"),
        (AWAY, False, None, False, True, f"{AWAY}, and may have it mounted"),
        (AWAY, False, None, False, False, f"{AWAY}, and may have it mounted"),
        (AWAY, False, False, False, True, ""),
        (AWAY, True, True, True, True, ""),
        (AWAY, True, None, False, True, ""),
        ("", False, True, False, True, "it still has it mounted"),
        ("", False, True, False, False, "it still has it mounted"),
        ("", False, True, True, True, ""),
        ("", False, None, False, True, "it has not told whether it has it mounted"),
        ("", False, None, False, False, ""),
        ("", False, False, False, True, ""),
        ("", True, True, False, True, ""),
    ],
)
def test_the_rule(
    *, absence: str, is_given_up: bool, is_mounted: bool | None, is_wanted: bool, tells_all: bool, why: str
) -> None:
    assert why_held(VolumeView(False, absence, is_given_up, is_mounted, is_wanted, tells_all)) == why


def test_what_an_earlier_machine_used_is_held_whatever_the_present_one_says() -> None:
    for absence, is_mounted, is_wanted in itertools.product(("", AWAY), (True, False, None), (True, False)):
        why = "an earlier machine of this name had it mounted"
        assert why_held(VolumeView(True, absence, False, is_mounted, is_wanted, True)) == why
        assert not why_held(VolumeView(True, absence, True, is_mounted, is_wanted, True))


# -------------------- another machine under the same name --------------------

EARLIER = (
    f"volume {HANDLE} of driver {DRIVER} is not detached from node n2: an earlier machine of this name had it mounted; "
    f"if that machine is off for certain, or was started anew since, run csi-bridge fence n2 on the hub's host or give "
    f"its Node the taint node.kubernetes.io/out-of-service"
)


@pytest.mark.parametrize("away", [None, LEFT])
async def test_a_fence_lets_the_volumes_of_an_earlier_machine_go_and_keeps_those_of_the_present_one(
    world: Guarded, away: float | None
) -> None:
    world.agent("n2", "kubernetes.io/csi/d.example^other", away=away)
    world.earlier_use["n2"] = frozenset({IN_USE})
    world.attach("n2")
    world.attach("n2", pv="pv-2")
    assert world.held("n2") == EARLIER
    said = await world.fence("n2")
    assert said[:2] == [
        "the earlier machine of node n2 is fenced: the volumes that it used may be detached",
        f"it used {IN_USE}",
    ]
    assert not world.held("n2")
    assert world.fences.is_fenced("n2") is (away is not None)


async def test_the_taint_settles_an_earlier_machine_also_after_it_is_taken_away(world: Guarded) -> None:
    world.agent("n2")
    world.earlier_use["n2"] = frozenset({IN_USE})
    world.attach("n2")
    said = "another machine has joined as node n2 (it joined at noon from 10.0.0.9:7), and"
    assert any(said in it and IN_USE in it for it in world.fences.problems())
    world.states["n2"] = world.states["n2"]._replace(is_out_of_service=True)
    assert not world.held("n2")
    await world.fences.look()
    world.states["n2"] = world.states["n2"]._replace(is_out_of_service=False)
    assert not world.held("n2")
    assert not list(world.fences.problems())


def test_the_lease_of_the_present_machine_says_nothing_of_an_earlier_one(world: Guarded) -> None:
    world.agent("n2", away=LEFT)
    told = {"leaseSeconds": 60, "watchdogSeconds": 60, "staged": [IN_USE], "staging": []}
    world.tell("n2", IN_USE, fence=told)
    world.attach("n2")
    world.put({**volume("pv-1"), "metadata": {"name": "pv-1", "annotations": {"csi-bridge.io/offline": "fence"}}})
    world.monotonic = 1_000.0
    assert not world.held("n2")
    world.earlier_use["n2"] = frozenset({IN_USE})
    assert world.held("n2") == EARLIER


# -------------------- a node without a kubelet --------------------


def test_a_volume_that_a_node_used_when_it_left_is_held_and_the_way_out_is_named(world: Guarded) -> None:
    world.agent("n2", IN_USE, away=LEFT)
    world.attach("n2")
    assert world.held("n2") == HAD


def test_a_volume_that_a_node_did_not_use_when_it_left_is_detached(world: Guarded) -> None:
    world.agent("n2", "kubernetes.io/csi/d.example^other", away=LEFT)
    world.attach("n2")
    assert not world.held("n2")


def test_a_node_that_is_back_is_waited_for_until_it_has_unmounted(world: Guarded) -> None:
    world.agent("n2", IN_USE)
    world.attach("n2")
    assert world.held("n2").endswith(
        "it still has it mounted; it is detached when the node has told that it is unmounted"
    )
    world.tell("n2")
    assert not world.held("n2")


def test_a_node_whose_facts_are_lost_may_have_every_volume(world: Guarded) -> None:
    world.agent("n2", away=LEFT)
    world.facts.clear()
    world.attach("n2")
    assert f"since {LEFT_TEXT}, and may have it mounted" in world.held("n2")
    world.links.away["n2"] = None
    assert "it has not told whether it has it mounted" in world.held("n2")


def test_a_node_that_the_hub_has_lost_may_have_every_volume_while_it_has_a_node(world: Guarded) -> None:
    world.agent("n2", away=LEFT)
    world.facts.clear()
    world.links.away.clear()
    world.attach("n2")
    assert "its agent has never connected, and may have it mounted" in world.held("n2")


async def test_a_fence_lets_the_volume_go(world: Guarded) -> None:
    world.agent("n2", IN_USE, away=LEFT)
    world.attach("n2")
    await world.fence("n2")
    assert not world.held("n2")


@pytest.mark.parametrize("has_kubelet", [False, True])
def test_a_volume_that_waits_for_its_detach_and_for_its_next_pod_on_the_same_node_is_detached(
    world: Guarded, has_kubelet: bool
) -> None:
    (world.kubelet if has_kubelet else world.agent)("n2", IN_USE)
    world.attach("n2")
    world.put(volume("pv-1", claim="default/data"), pod("next", node="n2", claims=("data",)))
    assert not world.held("n2")


NEXT = pod("next", node="n2", claims=("data",))


@pytest.mark.parametrize(
    "other",
    [
        pod("next", node="n1", claims=("data",)),
        pod("next", node="n2", claims=("other",)),
        pod("next", node="n2", namespace="other", claims=("data",)),
        {**NEXT, "status": {"phase": "Succeeded"}},
        {**NEXT, "metadata": {**NEXT["metadata"], "deletionTimestamp": "2027-01-15T07:43:20Z"}},
    ],
)
def test_no_other_pod_takes_a_volume_from_a_node_that_still_has_it_mounted(world: Guarded, other: Any) -> None:
    world.agent("n2", IN_USE)
    world.attach("n2")
    world.put(volume("pv-1", claim="default/data"), other)
    assert "it still has it mounted" in world.held("n2")


def test_a_pod_of_a_later_claim_of_this_name_takes_no_volume_from_a_node_that_still_has_it_mounted(
    world: Guarded,
) -> None:
    world.agent("n2", IN_USE)
    world.attach("n2")
    released = volume("pv-1", claim="default/data")
    released["spec"]["claimRef"]["uid"] = "of-the-claim-before"
    world.put(released, claim("data", volume="pv-2"), NEXT)
    assert "it still has it mounted" in world.held("n2")


def test_a_pod_on_a_node_that_is_away_frees_nothing(world: Guarded) -> None:
    world.agent("n2", IN_USE, away=LEFT)
    world.attach("n2")
    world.put(volume("pv-1", claim="default/data"), pod("next", node="n2", claims=("data",)))
    assert world.held("n2") == HAD


# -------------------- a node with a kubelet --------------------


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_kubelets_node_that_is_not_ready_keeps_the_volumes_that_its_node_lists(world: Guarded, ready: str) -> None:
    world.kubelet("n2", IN_USE, ready=ready)
    world.attach("n2")
    assert f"its Node is not Ready since {BROKE}, and had it mounted; {OUT}" in world.held("n2")
    world.kubelet("n2", ready=ready)
    assert not world.held("n2")


def test_the_bridges_link_says_nothing_of_a_kubelets_mounts(world: Guarded) -> None:
    world.kubelet("n2", IN_USE, ready="Unknown")
    world.attach("n2")
    world.links.away["n2"] = None
    assert "its Node is not Ready" in world.held("n2")
    world.kubelet("n2")
    world.links.away["n2"] = LEFT
    assert not world.held("n2")


def test_an_old_copy_of_the_nodes_proves_nothing(world: Guarded) -> None:
    world.kubelet("n2")
    world.attach("n2")
    world.source.nodes_trouble = "the API server does not answer"
    assert "it has not told whether it has it mounted" in world.held("n2")


def test_a_kubelets_node_whose_node_was_deleted_is_not_free_while_the_hub_knows_it(world: Guarded) -> None:
    world.kubelet("n2", IN_USE)
    world.attach("n2")
    world.links.away["n2"] = None
    world.drop(Ref("Node", "", "n2"))
    del world.states["n2"]
    assert "it has no Node in Kubernetes, and may have it mounted" in world.held("n2")


def test_a_node_that_nobody_knows_holds_nothing(world: Guarded) -> None:
    world.attach("n2", node_id="n2")
    assert not world.held("n2")


def test_before_the_hub_has_read_all_objects_nothing_is_detached(world: Guarded) -> None:
    world.source.is_ready = False
    assert "the hub has not read all objects yet" in world.held("n2")


def test_manifests_that_were_never_good_as_a_whole_hold_nothing_of_a_connected_node() -> None:
    world = Guarded(has_cluster=False)
    world.source.is_ready = False  # as with an empty directory: it may be the wrong one
    world.agent("n2")
    assert not world.held("n2")


# -------------------- the node of a call --------------------


def test_a_call_finds_its_node_by_the_drivers_id(world: Guarded) -> None:
    world.agent("n2", IN_USE, node_id="i-0002", away=LEFT)
    world.agent("n3", node_id="i-0003")
    world.attach("n2")
    assert world.held("i-0002") == HAD
    assert not world.held("i-0003")


def test_the_id_of_the_attach_counts_when_the_node_has_told_another_one_since(world: Guarded) -> None:
    world.agent("n2", IN_USE, node_id="new", away=LEFT)
    world.attach("n2", node_id="old")
    assert world.held("old") == HAD
    assert world.held("new") == HAD


def test_an_attached_node_without_a_known_id_may_be_the_one(world: Guarded) -> None:
    world.agent("n2", IN_USE, away=LEFT)
    world.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}})
    world.attach("n2")
    assert world.held("i-0002") == HAD


def test_of_two_attached_nodes_with_one_id_both_must_be_free(world: Guarded) -> None:
    world.agent("n1", node_id="same")
    world.agent("n2", IN_USE, node_id="same", away=LEFT)
    world.attach("n1")
    world.attach("n2")
    assert world.held("same") == HAD


def test_a_node_that_claims_anothers_id_and_has_not_the_volume_holds_nothing(world: Guarded) -> None:
    world.agent("n2", node_id="i-0002")
    world.agent("n3", IN_USE, node_id="i-0002", away=LEFT)
    world.attach("n2", node_id="i-0002")
    assert not world.held("i-0002")


@pytest.mark.parametrize("told", ["i-0002", "another"], ids=["which it keeps", "which it renounces"])
def test_a_node_that_claims_anothers_id_frees_nothing(world: Guarded, told: str) -> None:
    world.agent("n2", IN_USE, node_id=told, away=LEFT)
    world.agent("n3", node_id="i-0002")
    world.attach("n2", node_id="i-0002")
    world.attach("n3", node_id="i-0003")
    assert world.held("i-0002") == HAD


def test_a_deleted_node_is_not_stood_in_for_by_one_that_claims_its_id(world: Guarded) -> None:
    world.attach("n2", node_id="i-0002")
    world.agent("n3", IN_USE, node_id="i-0002", away=LEFT)
    assert not world.held("i-0002")


def test_a_call_without_an_id_is_about_every_attached_node(world: Guarded) -> None:
    world.agent("n1")
    world.agent("n2", IN_USE, away=LEFT)
    world.attach("n1")
    assert not world.held("")
    world.attach("n2")
    assert world.held("") == HAD


def test_a_volume_without_an_attachment_is_looked_for_at_the_nodes_with_the_id(world: Guarded) -> None:
    world.agent("n2", IN_USE, node_id="i-0002", away=LEFT)
    assert world.held("i-0002") == HAD
    assert not world.held("i-0003")


def test_if_the_node_itself_would_serve_the_call_and_has_no_link_the_guard_is_silent(world: Guarded) -> None:
    world.agent("n2", IN_USE, away=LEFT)
    world.attach("n2")
    assert not world.held("n2", serving="n2")


def test_a_kubelets_node_that_serves_its_own_detach_is_guarded(world: Guarded) -> None:
    world.kubelet("n2", IN_USE, ready="Unknown")
    world.attach("n2")
    world.links.away["n2"] = None
    assert "its Node is not Ready" in world.held("n2", serving="n2")


def test_an_endless_id_is_cut_in_the_message(world: Guarded) -> None:
    world.agent("n2", IN_USE, away=LEFT)
    world.facts.clear()
    assert len(world.held("n2", handle="x" * 100_000)) < 1_000


def test_a_request_that_does_not_parse_is_left_to_the_driver(world: Guarded) -> None:
    world.guard.check(DRIVER, b"\xff", "server")


# -------------------- a hub without a cluster --------------------


def test_without_objects_the_link_decides() -> None:
    world = only_links()
    world.links.away, world.links.ids = {"n2": None}, {"n2": "i-0002"}
    assert not world.held("i-0002")
    world.links.away["n2"] = LEFT
    assert f"it is offline since {LEFT_TEXT}, and may have it mounted; {OUT}" in world.held("i-0002")
    assert "from node n2" in world.held("")
    assert not world.held("unknown")


async def test_without_objects_a_fence_lets_the_volume_go() -> None:
    world = only_links()
    world.links.away, world.links.ids = {"n2": LEFT}, {"n2": "i-0002"}
    await world.fence("n2")
    assert not world.held("i-0002")


def test_with_manifests_the_facts_decide() -> None:
    world = Guarded(has_cluster=False)
    world.agent("n2", IN_USE, away=LEFT)
    assert world.held("n2") == HAD
    world.tell("n2")
    assert not world.held("n2")
