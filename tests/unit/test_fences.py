"""The fences: an operator's word about one absence of one node, and what is told of a node that comes back."""

import pytest

from cloud.records.records import RecordKind
from cloud.trust.audit import Event
from common.errors import CallError, SettingsError
from tests.kit.audit import Line
from tests.kit.cluster_objects import volume
from tests.kit.guarded import IN_USE, LEFT, Guarded, only_links


@pytest.fixture
def world() -> Guarded:
    world = Guarded()
    world.agent("n2", IN_USE, away=LEFT)
    return world


def problem(world: Guarded) -> str:
    return "\n".join(world.fences.problems())


def stored(world: Guarded) -> list[str]:
    """The fenced nodes on the disk."""
    return [key[0] for kind, key in world.records.kept if kind is RecordKind.FENCE]


async def test_a_fence_is_confirmed_with_the_volumes_logged_and_shown(audit_lines: list[Line], world: Guarded) -> None:
    other = "kubernetes.io/csi/other.example^v"
    world.tell("n2", IN_USE, other, "of no plugin")
    world.put(volume("pv-1", claim="default/data"), volume("pv-2"))
    assert await world.fence("n2", "the rack burns") == [
        "node n2 is fenced: its volumes may be detached",
        f"it used claim default/data ({IN_USE}), {other}, of no plugin",
    ]
    assert audit_lines == [(Event.FENCE, "operator", "pid 7 uid 0", {"node": "n2", "why": "the rack burns"})]
    assert problem(world).startswith("node n2 is fenced since 2027-01-15T08:00:00Z: an operator takes it for dead")


async def test_a_fence_ends_when_the_node_connects(world: Guarded) -> None:
    await world.fence("n2")
    world.links.away["n2"] = None
    assert not world.fences.is_fenced("n2")


async def test_a_fence_does_not_count_for_a_later_absence_even_if_no_hub_saw_the_return(world: Guarded) -> None:
    await world.fence("n2")
    world.links.away["n2"] = LEFT + 60
    world.start()
    assert not world.fences.is_fenced("n2")
    assert "is back" in problem(world)


async def test_a_fence_that_has_ended_does_not_come_back_with_a_hub_that_died_before_it_had_written_the_return(
    world: Guarded,
) -> None:
    await world.fence("n2")
    world.links.away["n2"] = None
    await world.fences.look()
    world.links.away["n2"] = LEFT  # as the records still have it
    world.start()
    assert not world.fences.is_fenced("n2")
    assert "is back" in problem(world)
    await world.fence("n2")
    assert world.fences.is_fenced("n2")


async def test_a_fence_of_a_kubelets_node_ends_when_its_node_is_ready_or_its_agent_connects(world: Guarded) -> None:
    world.kubelet("n3", IN_USE, ready="Unknown")
    await world.fence("n3")
    assert world.fences.is_fenced("n3")
    world.links.away["n3"] = None
    assert not world.fences.is_fenced("n3")
    del world.links.away["n3"]
    world.kubelet("n3", IN_USE)
    assert not world.fences.is_fenced("n3")
    world.kubelet("n3", IN_USE, ready="Unknown", since="2027-01-15T09:00:00Z")
    assert not world.fences.is_fenced("n3")


@pytest.mark.parametrize(("ready", "why"), [("True", "its Node is Ready"), ("False", "its kubelet has said lately")])
async def test_a_kubelets_node_that_shows_a_sign_of_life_is_not_fenced(world: Guarded, ready: str, why: str) -> None:
    world.kubelet("n3", IN_USE, ready=ready)
    with pytest.raises(CallError, match=f"node n3 is not fenced: its machine runs, because {why}"):
        await world.fence("n3")


async def test_a_node_that_is_connected_or_unknown_is_not_fenced(audit_lines: list[Line], world: Guarded) -> None:
    world.agent("n1")
    with pytest.raises(CallError, match="its machine runs, because its agent is connected"):
        await world.fence("n1")
    with pytest.raises(CallError, match="knows no such node"):
        await world.fence("typo")
    world.source.is_ready = False
    with pytest.raises(CallError, match="has not read all objects yet"):
        await world.fence("n2")
    assert not problem(world)
    assert not audit_lines


async def test_a_node_that_comes_back_is_warned_of_until_it_has_unmounted_its_volumes(
    audit_lines: list[Line], world: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    await world.fence("n2")
    world.links.away["n2"] = None
    for _ in range(3):
        await world.fences.look()
    (warned,) = [line for line in caplog.messages if "is back" in line]
    assert warned == problem(world)
    assert warned.startswith("node n2 was fenced at 2027-01-15T08:00:00Z, and is back: ")
    assert warned.endswith(f"csi-bridge unfence n2 ends this line; it used {IN_USE}")
    assert [details.get("ended") for event, _, _, details in audit_lines if event is Event.FENCE] == [
        None,
        "the node is back",
    ]
    world.tell("n2")
    await world.fences.look()
    assert not problem(world)
    world.tell("n2", IN_USE)  # it is attached and mounted anew
    world.start()
    await world.fences.look()
    assert not problem(world)


async def test_a_return_during_the_hubs_absence_is_warned_of(world: Guarded) -> None:
    await world.fence("n2")
    world.links.away["n2"] = None
    world.start()
    assert "is back" in problem(world)


async def test_before_the_hub_has_read_all_objects_no_node_is_taken_for_back(world: Guarded) -> None:
    await world.fence("n2")
    world.start()
    world.source.is_ready = False
    world.links.away["n2"] = None
    await world.fences.look()
    assert not problem(world)


async def test_without_facts_the_warning_stays_until_an_operator_ends_it() -> None:
    world = only_links()
    world.links.away["n2"] = LEFT
    assert (await world.fence("n2"))[1] == "the hub has no list of the volumes that it used"
    world.links.away["n2"] = None
    await world.fences.look()
    assert "is back" in problem(world)
    await world.unfence("n2")
    assert not problem(world)


async def test_unfence_takes_a_fence_back_for_good(world: Guarded) -> None:
    await world.fence("n2")
    assert await world.unfence("n2") == [
        "node n2 is no longer fenced",
        "volumes that were detached meanwhile stay detached",
    ]
    world.start()
    assert not world.fences.is_fenced("n2")
    assert not problem(world)
    with pytest.raises(CallError, match="node n2 is not unfenced: it is not fenced"):
        await world.unfence("n2")


async def test_a_fence_ends_with_a_node_that_neither_hub_nor_cluster_knows_any_more(world: Guarded) -> None:
    world.kubelet("n3", IN_USE, ready="Unknown")
    for name in ("n2", "n3"):
        await world.fence(name)
    del world.links.away["n2"], world.facts["n2"], world.states["n2"]
    await world.fences.look()
    world.drop(next(ref for ref in world.source.refs("Node") if ref.name == "n2"))
    world.source.is_ready = False
    await world.fences.look()
    assert "n2" in stored(world)  # until all Nodes are read
    world.source.is_ready = True
    await world.fences.look()
    assert stored(world) == ["n3"]
    world.agent("n2", IN_USE)  # another machine
    assert "n2" not in problem(world)
    world.start()
    assert world.fences.is_fenced("n3")


async def test_with_a_full_disk_the_fence_and_its_end_count_and_are_written_when_there_is_room(world: Guarded) -> None:
    world.records.room = 0
    with pytest.raises(CallError, match=r"node n2 is fenced, and not yet durably: .*no space"):
        await world.fence("n2")
    assert (world.fences.is_fenced("n2"), stored(world)) == (True, [])
    world.records.retry()
    world.start()
    assert world.fences.is_fenced("n2")
    world.records.room = 0
    with pytest.raises(CallError, match=r"node n2 is unfenced, and not yet durably: .*no space"):
        await world.unfence("n2")
    assert (world.fences.is_fenced("n2"), stored(world)) == (False, ["n2"])
    world.records.retry()
    assert stored(world) == []


def test_a_fence_that_cannot_be_read_stops_the_hub(world: Guarded) -> None:
    world.records.kept[RecordKind.FENCE, ("n2",)] = '{"mark": "m"}'
    with pytest.raises(SettingsError, match="is damaged"):
        world.start()
