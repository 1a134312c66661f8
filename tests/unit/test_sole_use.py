"""Sole use: the hub lets one node at a time have a volume of one writer that Kubernetes does not attach."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud.detach.mounts import Mounts
from cloud.detach.sole_use import SoleUse
from cloud.kinds.nodes import NodeState
from cloud.records.records import Change
from cloud.records.sqlite import SqliteRecords
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import name_in_use
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sole_use import sole_use
from common.store.database_writer import WriteFailed
from tests.kit.cluster_objects import DRIVER, claim, entries, node, pod, volume
from tests.kit.trusting import TRUSTING

VOLUME = sole_use(DRIVER, "h-v")


class Hub:
    """The facts of a hub, over objects in memory. Two nodes have a pod of the volume."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = Source()
        self.source.is_ready = True
        self.kubelets: dict[str, NodeState] = {}
        self.given_up: set[str] = set()
        self.away: dict[str, str] = {}
        self.asked = 0
        self.put(claim("data", volume="v"), volume("v", claim="default/data"))
        self.run("a", "n1")
        self.run("b", "n2")
        self.start()

    def start(self) -> None:
        """Start the hub: the facts are on its disk."""
        self.records = SqliteRecords(self.directory)
        self.table = FactTable(self.records, TRUSTING)
        self.source.is_cluster, self.source.node_state = True, self.kubelets.get
        mounts = Mounts(self.source, self.table)
        judge = SoleUse(self.table, mounts)
        judge.begin(lambda name: self.away.get(name, ""), lambda name: name in self.given_up)
        self.facts = FactSink(Closures(self.source, TRUSTING), self.table, judge.claim)

    async def restart(self) -> None:
        await self.records.close()
        self.start()

    def put(self, *objects: Any) -> None:
        self.source.update({ref: entry.item for ref, entry in entries(*objects).items()})

    def run(self, name: str, on: str, **more: Any) -> None:
        self.put({**pod(name, node=on, claims=("data",)), **more})

    def end(self, name: str) -> None:
        self.source.update({Ref("Pod", "default", name): None})

    async def ask(self, name: str, ref: Ref = VOLUME, handle: str = "h-v") -> str:
        """Let a node claim the volume. Returns why it may not have it; empty if it may."""
        self.asked += 1
        body = encode_body({"spec": {"driver": DRIVER, "volumeHandle": handle}})
        try:
            await self.facts.store(name, Object(ref, Stamp("", str(self.asked)), body))
        except ValueError as error:
            return str(error)
        return ""

    async def let_go(self, name: str) -> None:
        await self.facts.drop(name, VOLUME, "")

    def having(self) -> list[str]:
        return [name for name in ("n1", "n2", "n3") if VOLUME in self.table.of(name)]


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    await hub.records.close()


async def test_of_nodes_that_ask_at_the_same_time_one_gets_it(hub: Hub) -> None:
    hub.run("c", "n3")
    answers = await asyncio.gather(*(hub.ask(name) for name in ("n1", "n2", "n3")))
    assert (answers.count(""), len(hub.having())) == (1, 1)


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_claim_whose_write_worked_although_it_failed_ends_when_another_node_gets_it_or_its_node_is_forgotten(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, *, is_forgotten: bool
) -> None:
    write = hub.records.write

    def lose(changes: list[Change]) -> asyncio.Future[None]:
        async def end() -> None:
            await write(changes)
            raise WriteFailed("the records in the cluster", "no answer")

        return asyncio.ensure_future(end())

    with monkeypatch.context() as lost:
        lost.setattr(hub.records, "write", lose)
        with pytest.raises(WriteFailed):
            await hub.ask("n1")
    if is_forgotten:
        await hub.facts.forget("n1")
    else:
        assert await hub.ask("n2") == ""
    await hub.restart()
    assert hub.having() == ([] if is_forgotten else ["n2"])


async def test_what_a_node_that_is_away_told_last_counts_until_somebody_gives_it_up(hub: Hub) -> None:
    await hub.ask("n1")
    hub.away["n1"] = "it is offline since yesterday"
    hub.end("a")
    await hub.restart()
    assert await hub.ask("n2") == (
        "node n1 has the volume, and it is offline since yesterday: bring it back, or if it is dead: "
        "csi-bridge fence n1, or the taint node.kubernetes.io/out-of-service"
    )
    hub.given_up = {"n1"}
    assert await hub.ask("n2") == ""


async def test_a_node_that_was_given_up_and_comes_back_gets_it_only_after_the_other_one(hub: Hub) -> None:
    await hub.ask("n1")
    hub.given_up = {"n1"}
    await hub.ask("n2")
    hub.given_up = set()
    hub.run("c", "n3")
    assert "node n1 has the volume" in await hub.ask("n3"), "n1 may have it mounted"
    assert "node n2 has the volume" in await hub.ask("n1")
    assert hub.having() == ["n2"], "n1 asks before it mounts"
    await hub.let_go("n2")
    assert await hub.ask("n1") == ""


async def test_a_forgotten_node_holds_nothing(hub: Hub) -> None:
    await hub.ask("n1")
    await hub.facts.forget("n1")
    assert await hub.ask("n2") == ""


async def test_an_earlier_machine_of_a_node_has_its_volume_until_somebody_gives_it_up(hub: Hub) -> None:
    await hub.facts.table.note_machine("n1", "old")
    assert await hub.ask("n1") == ""
    await hub.facts.table.note_machine("n1", "new")
    await hub.let_go("n1")  # the new machine knows nothing of it
    await hub.restart()
    why = "an earlier machine of node n1 had the volume; if it is off for certain: csi-bridge fence n1, or the taint"
    assert (await hub.ask("n2")).startswith(why)
    assert await hub.ask("n1") == "", "the operator let it join in the place of the old one"
    await hub.let_go("n1")
    hub.given_up = {"n1"}
    assert await hub.ask("n2") == ""
    await hub.let_go("n2")
    hub.given_up = set()
    await hub.table.clear_earlier_use("n1")
    assert await hub.ask("n2") == ""


async def test_a_hostile_node_gets_no_volume_of_which_it_has_no_pod_and_delays_no_other_node_then(hub: Hub) -> None:
    hub.end("b")
    assert await hub.ask("n2") == f"no pod of node n2 wants volume h-v of driver {DRIVER}"
    for number, instance in enumerate(("i-1", "i-2")):
        await hub.facts.table.note_machine("n2", instance)
        body = {"status": {"volumesInUse": [name_in_use(DRIVER, "h-v"), VOLUME.name]}}
        await hub.facts.store("n2", Object(Ref("Node", "", "n2"), Stamp("", str(number)), encode_body(body)))
    assert "is not the name of this volume's claim" in await hub.ask("n1", VOLUME, "h-w")
    assert await hub.ask("n1") == ""


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_wants_nothing_and_one_that_is_being_deleted_does(hub: Hub, phase: str) -> None:
    hub.run("a", "n1", status={"phase": phase})
    assert await hub.ask("n1") != ""
    going = pod("a", node="n1", claims=("data",))
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    hub.put(going)
    assert await hub.ask("n1") == ""


async def test_a_pod_of_a_kubelet_is_waited_for(hub: Hub) -> None:
    hub.kubelets["k1"] = NodeState("True", "", frozenset(), is_out_of_service=False)
    hub.put(node("k1"))
    hub.run("k", "k1")
    why = "node k1 has a kubelet, and a pod that may use the volume"
    assert (await hub.ask("n1")).startswith(f"{why}; one node at a time may have it")
    hub.away["k1"] = "its Node is not Ready"
    assert (await hub.ask("n1")).startswith(f"{why}, and its Node is not Ready: bring it back")
    hub.given_up = {"k1"}
    assert await hub.ask("n1") == ""
