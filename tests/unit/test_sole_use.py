"""Sole use: a volume of one writer without an attachment is withheld from a second node while the first may have it."""

from __future__ import annotations

from typing import Any

import pytest

from cloud.kinds.nodes import NodeState
from cloud.mounts import Mounts, name_in_use
from cloud.sole_use import SoleUse
from cloud.sources.source import Objects
from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import Fact
from common.objects import Ref, Stamp
from common.sole_use import is_sole
from tests.kit.cluster_objects import DRIVER, claim, driver, entries, node, pod, volume

PV = Ref("PersistentVolume", "", "v")
IN_USE = name_in_use(DRIVER, "h-v")


class World:
    """A hub's closures, over objects and facts in memory. Nodes come with an agent that lists what it uses."""

    def __init__(self, *, has_cluster: bool = False) -> None:
        self.source = Objects()
        self.source.is_ready = True
        self.facts: dict[str, dict[Ref, Fact]] = {}
        self.states: dict[str, NodeState] = {}
        self.given_up: set[str] = set()
        self.away: dict[str, str] = {}
        self.behind: set[str] = set()
        """The nodes that may work with an earlier state of their objects."""
        self.told: list[tuple[list[str], str]] = []
        self.ends: dict[str, Any] = {}
        self.has_cluster = has_cluster
        self.put(driver(attachRequired=False), claim("data", volume="v"), volume("v", claim="default/data"))
        self.start()

    def start(self) -> None:
        """Start the hub: the facts are on its disk, all else is unknown."""
        mounts = Mounts(
            self.source,
            facts=lambda name: self.facts.get(name, {}),
            node_state=self.states.get if self.has_cluster else None,
        )
        self.sole_use = SoleUse(
            self.source, mounts, self.users, tell=lambda pods, text: self.told.append(([it.name for it in pods], text))
        )
        self.closures = Closures(self.source, permit=self.sole_use.permit)
        self.sole_use.follow(self.closures, lambda name, _ref: name in self.behind)
        self.sole_use.begin(lambda name: self.away.get(name, ""), lambda name: name in self.given_up)

    def users(self, name: str) -> set[str]:
        return {
            node
            for node, facts in self.facts.items()
            for fact in facts.values()
            if name in fact.body["status"]["volumesInUse"]
        }

    def put(self, *objects: Any) -> None:
        self.source.update({ref: entry.item for ref, entry in entries(*objects).items()})

    def drop(self, name: str) -> None:
        self.source.update({Ref("Pod", "default", name): None})

    def tell(self, name: str, *in_use: str, lists: bool = True) -> None:
        """An agent tells which volumes its node uses."""
        status = {"volumesInUse": list(in_use), **({"soleUse": True} if lists else {})}
        self.facts[name] = {Ref("Node", "", name): Fact(Stamp("", "1"), {"status": status})}

    def come(self, *names: str) -> None:
        for name in names:
            if name not in self.facts:
                self.tell(name)
            self.ends[name] = self.closures.watch(name, lambda: None)

    def go(self, name: str) -> None:
        self.ends.pop(name)()
        self.away[name] = "it is offline since yesterday"

    def has(self, name: str) -> bool:
        self.sole_use.look()
        return self.closures.holds(name, PV)

    @property
    def problems(self) -> list[str]:
        return list(self.sole_use.problems())


def a_pod(name: str, on: str, **more: Any) -> Any:
    return {**pod(name, node=on, claims=("data",)), **more}


@pytest.fixture
def world() -> World:
    """Two nodes, each with a pod of the volume. The first one has got it."""
    world = World()
    world.put(a_pod("a", "n1"), a_pod("b", "n2"))
    world.come("n1", "n2")
    return world


async def test_the_first_node_gets_the_volume_and_the_second_does_not(world: World) -> None:
    assert (world.has("n1"), world.has("n2")) == (True, False)
    why = (
        "volume v is withheld from node n2: node n1 has got it, and may use it; one node at a time may have it "
        "(attachRequired: false): delete its pods that use it"
    )
    assert (world.problems, world.told) == ([why], [(["b"], why)])


async def test_the_second_node_gets_it_when_the_first_has_let_go(world: World) -> None:
    world.tell("n1", IN_USE)
    world.drop("a")
    world.behind = {"n1"}
    assert not world.has("n2")
    assert "node n1 has got it, and may use it" in world.problems[0]
    world.behind = set()
    assert not world.has("n2")
    assert "node n1 uses it" in world.problems[0]
    world.tell("n1")
    assert (world.has("n2"), world.problems) == (True, [])


async def test_a_node_whose_copy_may_still_have_the_pod_may_mount_it_any_moment(world: World) -> None:
    world.drop("a")
    world.behind = {"n1"}
    assert not world.has("n2")
    world.behind = set()
    assert world.has("n2")


async def test_what_a_node_that_is_away_told_last_counts_until_somebody_gives_it_up(world: World) -> None:
    world.tell("n1", IN_USE)
    world.go("n1")
    world.drop("a")
    assert not world.has("n2")
    (problem,) = world.problems
    assert problem == (
        "volume v is withheld from node n2: node n1 used it, and it is offline since yesterday; one node at a time may "
        "have it (attachRequired: false): bring it back, or if it is dead: csi-bridge fence n1, or the taint "
        "node.kubernetes.io/out-of-service"
    )
    world.given_up = {"n1"}
    assert world.has("n2")


async def test_a_node_that_is_away_and_never_listed_it_holds_nothing(world: World) -> None:
    world.go("n1")
    assert world.has("n2")
    world.come("n1")
    assert (world.has("n1"), world.has("n2")) == (False, True)


async def test_a_forgotten_node_holds_nothing(world: World) -> None:
    world.tell("n1", IN_USE)
    world.go("n1")
    del world.facts["n1"]
    assert world.has("n2")


async def test_after_a_restart_of_the_hub_the_nodes_own_word_on_the_disk_counts(world: World) -> None:
    world.tell("n1", IN_USE)
    world.start()
    world.come("n2")
    assert not world.has("n2")
    world.come("n1")
    assert (world.has("n1"), world.has("n2")) == (True, False)


async def test_after_a_restart_two_nodes_do_not_wait_for_each_other(world: World) -> None:
    world.start()
    world.come("n2", "n1")
    assert (world.has("n1"), world.has("n2")) == (False, True)


async def test_a_node_that_has_it_mounted_keeps_it_whatever_another_one_tells(world: World) -> None:
    world.tell("n1", IN_USE)
    world.tell("n2", IN_USE)
    assert (world.has("n1"), world.has("n2")) == (True, True)
    world.start()
    world.come("n1", "n2")
    assert (world.has("n1"), world.has("n2")) == (True, True)


async def test_a_node_that_got_it_is_not_disturbed_by_a_late_word_of_another_one(world: World) -> None:
    world.go("n1")
    assert world.has("n2")
    world.tell("n1", IN_USE)
    assert world.has("n2")


async def test_several_pods_of_one_node_share_it(world: World) -> None:
    world.put(a_pod("c", "n1"))
    assert {"c", "a"} <= {ref.name for ref in world.closures.stamps("n1")}
    assert world.has("n1")
    world.drop("a")
    assert (world.has("n1"), world.has("n2")) == (True, False)


async def test_a_pod_that_has_ended_holds_nothing(world: World) -> None:
    world.put(a_pod("a", "n1", status={"phase": "Succeeded"}))
    assert world.has("n2")


async def test_a_pod_that_waits_in_vain_and_goes_is_forgotten(world: World) -> None:
    assert not world.has("n2")
    world.drop("b")
    assert not world.has("n2")
    assert world.problems == []


@pytest.mark.parametrize("modes", [["ReadWriteMany"], ["ReadWriteOnce", "ReadOnlyMany"]])
async def test_a_volume_of_several_nodes_is_withheld_from_none(modes: list[str]) -> None:
    world = World()
    world.put(a_pod("a", "n1"), a_pod("b", "n2"), volume("v", claim="default/data", accessModes=modes))
    world.come("n1", "n2")
    assert (world.has("n1"), world.has("n2")) == (True, True)


@pytest.mark.parametrize("spec", [{}, {"attachRequired": True}])
async def test_a_volume_that_kubernetes_attaches_is_withheld_from_none(spec: dict[str, Any]) -> None:
    world = World()
    world.put(a_pod("a", "n1"), a_pod("b", "n2"), driver(**spec))
    world.come("n1", "n2")
    assert (world.has("n1"), world.has("n2")) == (True, True)


async def test_a_question_about_a_node_that_nobody_watches_gives_it_nothing() -> None:
    world = World()
    world.put(a_pod("a", "n1"), a_pod("b", "n2"))
    world.closures.stamps("n2")
    world.come("n1", "n2")
    assert (world.has("n1"), world.has("n2")) == (True, False)


async def test_an_agent_that_lists_no_such_volumes_is_waited_for_while_its_pod_is_the_older_one() -> None:
    world = World()
    world.put(a_pod("a", "n1"), a_pod("b", "n2"), a_pod("c", "n3"))
    for name in ("n1", "n3"):
        world.tell(name, lists=False)
    world.come("n2")
    assert not world.has("n2")
    assert "node n1 may use it for its pod default/a" in world.problems[0]
    world.drop("a")
    assert world.has("n2")


async def test_the_pod_of_a_kubelet_is_waited_for(world: World) -> None:
    world = World(has_cluster=True)
    world.states["k1"] = NodeState("True", "", frozenset(), is_out_of_service=False)
    world.put(node("k1"), a_pod("a", "k1"), a_pod("b", "n2"))
    world.come("n2")
    assert not world.has("n2")
    world.drop("a")
    assert world.has("n2")


def test_without_access_modes_a_volume_is_one_writers() -> None:
    assert is_sole([], attach_required=False)
    assert not is_sole([], attach_required=True)
