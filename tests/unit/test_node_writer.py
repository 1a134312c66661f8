"""A node writer: makes a Node where there is none, writes what its node tells, and nothing of anybody else's."""

import asyncio
import json
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError
from cloud.sync.in_use import InUse
from cloud.upsync.node_writer import NodeWriter
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi

NODE = Ref("Node", "", "n1")
IDS = "csi.volume.kubernetes.io/nodeid"
ATTACHED = "volumes.kubernetes.io/controller-managed-attach-detach"

EDGE = "csi-bridge.io/edge"

Body = dict[str, Any]


class NodeWrites:
    """An API server and a writer."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.in_use = InUse()
        self.writer = NodeWriter(
            self.api,
            self.in_use,
            labels={EDGE: "agent"},
            taints=[{"key": EDGE, "value": "agent", "effect": "NoSchedule"}],
        )

    async def write(self, fact: Body | None) -> None:
        await self.writer.write("n1", NODE, fact)

    async def node(self) -> Body:
        return await self.api.get(RESOURCES["Node"], "n1")

    async def ids(self) -> Any:
        return json.loads((await self.node())["metadata"]["annotations"].get(IDS, "null"))

    async def labels(self) -> Body:
        labels: Body = (await self.node())["metadata"]["labels"]
        return labels

    def writes(self) -> list[str]:
        return [it for it in self.api.asked if not it.startswith("get")]


@pytest.fixture
def kube() -> NodeWrites:
    return NodeWrites()


def fact(*, ids: Body | None = None, labels: Body | None = None, in_use: tuple[str, ...] = ()) -> Body:
    annotations = {IDS: json.dumps(ids)} if ids else {}
    return {
        "metadata": {"labels": labels or {}, "annotations": annotations},
        "status": {"volumesInUse": list(in_use)},
    }


def made_by_somebody(*, annotations: Body | None = None, labels: Body | None = None, **more: Any) -> Body:
    metadata = {"name": "n1", "labels": labels or {}, "annotations": {ATTACHED: "true", **(annotations or {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **more}


async def test_a_node_does_not_get_the_segment_of_another_one(kube: NodeWrites) -> None:
    await kube.write(fact(labels={"csi-bridge.io/node": "n2"}))
    assert "csi-bridge.io/node" not in await kube.labels()
    (problem,) = kube.writer.problems()
    assert problem == "node n1 says that it is csi-bridge.io/node=n2, which only the node of that name may be"
    await kube.write(fact(labels={"csi-bridge.io/node": "n1"}))
    assert (await kube.labels())["csi-bridge.io/node"] == "n1"


# ---- a Node that the hub makes ---------------------------------------------------------------------------------------


async def test_a_node_that_is_missing_is_made_so_that_volumes_are_attached_to_it(kube: NodeWrites) -> None:
    await kube.write(fact(ids={"d": "id-1"}, labels={"d.example/zone": "a"}, in_use=("kubernetes.io/csi/d^v",)))
    node = await kube.node()
    assert node["metadata"]["labels"] == {
        "csi-bridge.io/edge": "agent",
        "kubernetes.io/hostname": "n1",
        "kubernetes.io/os": "linux",
        "d.example/zone": "a",
    }
    assert node["metadata"]["annotations"] == {
        "csi-bridge.io/made-by": "hub",
        "csi-bridge.io/drivers": '["d"]',
        ATTACHED: "true",
        IDS: '{"d":"id-1"}',
    }
    assert node["status"]["volumesInUse"] == ["kubernetes.io/csi/d^v"]
    assert kube.writer.problems() == []


async def test_a_node_that_somebody_deleted_is_made_anew(kube: NodeWrites) -> None:
    await kube.write(fact())
    kube.api.drop("Node", "n1")
    await kube.write(fact(in_use=("v",)))
    assert (await kube.node())["status"]["volumesInUse"] == ["v"]


async def test_a_name_that_is_no_value_of_a_label_makes_no_hostname_label(kube: NodeWrites) -> None:
    name = "n" * 64
    await kube.writer.write(name, Ref("Node", "", name), fact())
    node = await kube.api.get(RESOURCES["Node"], name)
    assert node["metadata"]["labels"] == {EDGE: "agent", "kubernetes.io/os": "linux"}


async def test_a_new_node_has_its_label_and_taint_from_its_first_moment(kube: NodeWrites) -> None:
    """A scheduler or a DaemonSet controller that saw it without them would put pods there that never start."""
    kube.api.failures["patch"] = [KubeError("patch", 0, "", "nobody answers")]
    with pytest.raises(KubeError):
        await kube.write(fact(labels={"d.example/zone": "a"}))
    node = await kube.node()
    assert node["metadata"]["labels"][EDGE] == "agent"
    assert node["spec"]["taints"] == [{"key": EDGE, "value": "agent", "effect": "NoSchedule"}]


async def test_marks_that_an_operator_changed_stay_changed(kube: NodeWrites) -> None:
    await kube.write(fact())
    await kube.api.patch(RESOURCES["Node"], "n1", {"metadata": {"labels": {EDGE: None}}, "spec": {"taints": None}})
    await kube.write(fact(in_use=("v",)))
    node = await kube.node()
    assert EDGE not in node["metadata"]["labels"]
    assert not node["spec"].get("taints")


async def test_marks_do_not_take_the_place_of_what_a_node_is(kube: NodeWrites) -> None:
    kube.writer = NodeWriter(kube.api, kube.in_use, labels={"kubernetes.io/hostname": "all"}, taints=[])
    await kube.write(fact())
    node = await kube.node()
    assert node["metadata"]["labels"] == {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "n1"}
    assert "spec" not in node


@pytest.mark.parametrize("name", ["csi-bridge.io/hub", "x.csi-bridge.io/y"])
async def test_no_node_draws_pods_of_the_bridge_to_itself(kube: NodeWrites, name: str) -> None:
    """The hub's pod goes to a host with the label csi-bridge.io/hub (hub.socketDir)."""
    await kube.write(fact(labels={name: ""}))
    assert name not in await kube.labels()
    assert kube.writer.problems() == [f"node n1 says that it is {name}=: only administrators may set this label"]


@pytest.mark.parametrize("has", [{}, {EDGE: "agent"}, {EDGE: "kubelet"}], ids=["none", "the hub's", "an operator's"])
@pytest.mark.parametrize("value", ["agent", "kubelet"])
async def test_no_node_says_itself_whether_it_has_a_kubelet(kube: NodeWrites, has: Body, value: str) -> None:
    kube.api.put(made_by_somebody(labels=has))
    await kube.write(fact(labels={EDGE: value}))
    assert await kube.labels() == has
    assert bool(kube.writer.problems()) == (has.get(EDGE) != value)
    if not has:
        assert kube.writer.problems() == [
            f"node n1 says that it is {EDGE}={value}: only administrators may set this label"
        ]


async def test_what_the_hub_gave_its_node_comes_back_when_somebody_removes_it(kube: NodeWrites) -> None:
    await kube.write(fact())
    await kube.api.patch(
        RESOURCES["Node"],
        "n1",
        {"metadata": {"labels": {"kubernetes.io/os": None}, "annotations": {ATTACHED: None}}},
    )
    await kube.write(fact())
    node = await kube.node()
    assert node["metadata"]["labels"]["kubernetes.io/os"] == "linux"
    assert node["metadata"]["annotations"][ATTACHED] == "true"


# ---- what the machine has --------------------------------------------------------------------------------------------

CAPACITY = {"cpu": "4", "memory": "8388608Ki", "ephemeral-storage": "100Gi", "pods": "110"}
INFO = {"architecture": "arm64", "kernelVersion": "6.1.0", "bootID": "b-1"}


def machine(*, in_use: tuple[str, ...] = (), **changed: str) -> Body:
    told = fact(in_use=in_use)
    told["status"] |= {"capacity": {**CAPACITY, **changed}, "nodeInfo": INFO}
    return told


async def test_an_amount_in_other_words_or_none_at_all_changes_nothing(kube: NodeWrites) -> None:
    await kube.write(machine())
    before = kube.writes()
    await kube.write(machine(memory="8Gi", cpu="4000m"))
    await kube.write(fact())
    assert kube.writes() == before


async def test_what_somebody_made_of_allocatable_stays_until_the_machine_is_another_one(kube: NodeWrites) -> None:
    await kube.write(machine())
    mine = {"status": {"allocatable": {"cpu": "3"}, "capacity": {"example.com/lamp": "7"}}}
    await kube.api.patch(RESOURCES["Node"], "n1", mine, subresource="status")
    await kube.write(machine(in_use=("v",)))
    assert (await kube.node())["status"]["allocatable"]["cpu"] == "3"
    await kube.write(machine(cpu="8"))
    status = (await kube.node())["status"]
    assert status["allocatable"]["cpu"] == "8"
    assert status["capacity"]["example.com/lamp"] == "7"


async def test_a_node_of_somebody_elses_keeps_what_it_has(kube: NodeWrites) -> None:
    kube.api.put(made_by_somebody(status={"capacity": {"cpu": "1"}}))
    await kube.write(machine(in_use=("v",)))
    node = await kube.node()
    assert node["status"] == {"capacity": {"cpu": "1"}, "volumesInUse": ["v"]}
    assert "kubernetes.io/arch" not in node["metadata"]["labels"]


# ---- a Node of somebody else's ---------------------------------------------------------------------------------------


async def test_a_node_of_somebody_elses_gets_what_its_node_tells_and_keeps_the_rest(kube: NodeWrites) -> None:
    kube.api.put(
        made_by_somebody(
            annotations={"note": "mine"},
            labels={"kubernetes.io/os": "plan9"},
            spec={"taints": [{"key": "k"}]},
            status={"conditions": [{"type": "Ready"}]},
        )
    )
    await kube.write(fact(ids={"d": "id-1"}, labels={"d.example/zone": "a"}, in_use=("v",)))
    node = await kube.node()
    assert node["spec"] == {"taints": [{"key": "k"}]}
    assert node["status"] == {"conditions": [{"type": "Ready"}], "volumesInUse": ["v"]}
    assert node["metadata"]["labels"] == {"kubernetes.io/os": "plan9", "d.example/zone": "a"}
    assert node["metadata"]["annotations"] == {
        "note": "mine",
        ATTACHED: "true",
        IDS: '{"d":"id-1"}',
        "csi-bridge.io/drivers": '["d"]',
    }
    assert kube.writer.problems() == []


async def test_a_node_of_somebody_elses_that_nothing_is_attached_to_is_named(kube: NodeWrites) -> None:
    kube.api.put(made_by_somebody(annotations={ATTACHED: "false"}))
    await kube.write(fact())
    assert ATTACHED in kube.writer.problems()[0]
    assert (await kube.node())["metadata"]["annotations"][ATTACHED] == "false"
    kube.api.drop("Node", "n1")
    await kube.write(fact())
    assert kube.writer.problems() == []


# ---- node ids --------------------------------------------------------------------------------------------------------


async def test_ids_of_drivers_that_the_node_does_not_tell_of_stay_and_those_of_the_hub_go(kube: NodeWrites) -> None:
    kube.api.put(made_by_somebody(annotations={IDS: '{"other":"x"}'}))
    await kube.write(fact(ids={"d": "id-1", "e": "id-2"}))
    assert await kube.ids() == {"other": "x", "d": "id-1", "e": "id-2"}
    await kube.write(fact(ids={"e": "id-3"}))
    assert await kube.ids() == {"other": "x", "e": "id-3"}
    await kube.write(None)
    assert await kube.ids() == {"other": "x"}
    assert "csi-bridge.io/drivers" not in (await kube.node())["metadata"]["annotations"]


async def test_an_id_that_was_there_as_it_is_told_is_not_the_hubs_to_remove(kube: NodeWrites) -> None:
    kube.api.put(made_by_somebody(annotations={IDS: '{"d":"id-1"}'}))
    await kube.write(fact(ids={"d": "id-1"}))
    await kube.write(fact())
    assert await kube.ids() == {"d": "id-1"}


@pytest.mark.parametrize("text", ["{", "[]", '{"d": 1}', '"d"', "[" * 100_000])
async def test_ids_that_cannot_be_read_are_left_and_named_and_hold_up_nothing_else(kube: NodeWrites, text: str) -> None:
    kube.api.put(made_by_somebody(annotations={IDS: text}))
    await kube.write(fact(ids={"d": "id-1"}, labels={"d.example/zone": "a"}, in_use=("v",)))
    node = await kube.node()
    assert node["metadata"]["annotations"][IDS] == text
    assert node["metadata"]["labels"] == {"d.example/zone": "a"}
    assert node["status"] == {"volumesInUse": ["v"]}
    assert IDS in kube.writer.problems()[0]


async def test_ids_that_the_node_tells_in_another_form_change_nothing_and_are_named(kube: NodeWrites) -> None:
    await kube.write(fact(ids={"d": "id-1"}))
    told = fact()
    told["metadata"]["annotations"][IDS] = "nonsense"
    await kube.write(told)
    assert await kube.ids() == {"d": "id-1"}
    assert len(kube.writer.problems()) == 1


async def test_no_other_annotation_is_the_nodes_to_tell(kube: NodeWrites) -> None:
    told = fact()
    told["metadata"]["annotations"] = {"csi-bridge.io/made-by": "me", "x": "y", ATTACHED: "false"}
    await kube.write(told)
    annotations = (await kube.node())["metadata"]["annotations"]
    assert annotations == {"csi-bridge.io/made-by": "hub", ATTACHED: "true"}


async def test_a_memory_that_somebody_made_nonsense_of_is_empty(kube: NodeWrites) -> None:
    for text in ("{", "3", '[{"a": 1}]', "[" * 100_000):
        kube.api.put(made_by_somebody(annotations={IDS: '{"d":"id-1"}', "csi-bridge.io/drivers": text}))
        await kube.write(fact())
        assert await kube.ids() == {"d": "id-1"}


# ---- labels ----------------------------------------------------------------------------------------------------------


async def test_a_label_with_another_value_stays_and_is_named_until_it_is_mended(kube: NodeWrites) -> None:
    kube.api.put(made_by_somebody(labels={"d.example/zone": "b"}))
    told = fact(ids={"d": "id-1"}, labels={"d.example/zone": "a", "d.example/rack": "7"})
    await kube.write(told)
    assert await kube.labels() == {"d.example/zone": "b", "d.example/rack": "7"}
    assert await kube.ids() == {"d": "id-1"}
    (problem,) = kube.writer.problems()
    for text in ("n1", "d.example/zone=a", "d.example/zone=b"):
        assert text in problem
    await kube.api.patch(RESOURCES["Node"], "n1", {"metadata": {"labels": {"d.example/zone": None}}})
    await kube.write(told)
    assert (await kube.labels())["d.example/zone"] == "a"
    assert kube.writer.problems() == []


async def test_of_a_node_that_tells_nothing_any_more_nothing_is_to_be_mended(kube: NodeWrites) -> None:
    kube.api.put(made_by_somebody(annotations={"csi-bridge.io/made-by": "hub", IDS: "not JSON"}))
    await kube.write(fact())
    assert IDS in kube.writer.problems()[0]
    await kube.write(None)
    assert kube.writer.problems() == []


async def test_of_a_node_that_is_not_written_any_more_nothing_is_to_be_mended_or_changed(kube: NodeWrites) -> None:
    await kube.write(fact(ids={"d": "id-1"}, labels={"kubernetes.io/hostname": "another"}))
    assert (await kube.labels())["kubernetes.io/hostname"] == "n1"
    assert "another" in kube.writer.problems()[0]
    before = kube.writes()
    kube.writer.forget("n1", NODE)
    assert kube.writer.problems() == []
    assert kube.writes() == before


@pytest.mark.parametrize(
    "label",
    [
        "node-role.kubernetes.io/control-plane",
        "node-restriction.kubernetes.io/team",
        "a.node-restriction.kubernetes.io/team",
        "kubernetes.io/anything",
        "x.k8s.io/y",
        "topology.kubernetes.io/rack",
    ],
)
async def test_a_label_that_no_kubelet_may_set_is_not_set_for_a_node_and_named(kube: NodeWrites, label: str) -> None:
    await kube.write(fact(labels={label: "x"}))
    assert label not in await kube.labels()
    assert label in kube.writer.problems()[0]


@pytest.mark.parametrize(
    "label",
    [
        "topology.kubernetes.io/zone",
        "kubernetes.io/arch",
        "node.kubernetes.io/instance-type",
        "x.kubelet.kubernetes.io/y",
        "plain",
        "mykubernetes.io/x",
    ],
)
async def test_a_label_that_a_kubelet_may_set_is_set(kube: NodeWrites, label: str) -> None:
    await kube.write(fact(labels={label: "x"}))
    assert (await kube.labels())[label] == "x"
    assert kube.writer.problems() == []


# ---- what is in use --------------------------------------------------------------------------------------------------


async def test_what_is_in_use_is_exactly_what_is_told_and_stays_when_nothing_is_told_any_more(
    kube: NodeWrites,
) -> None:
    told: tuple[tuple[Body | None, list[str]], ...] = (
        (fact(in_use=("b", "a")), ["b", "a"]),
        (fact(in_use=("a",)), ["a"]),
        (None, ["a"]),
        ({}, []),
    )
    for each, in_use in told:
        await kube.write(each)
        assert (await kube.node())["status"]["volumesInUse"] == in_use


async def test_what_is_in_use_is_noted_when_it_stands_there_and_not_before(kube: NodeWrites) -> None:
    await kube.write(fact())
    kube.api.failures["patch"] = [KubeError("patch", 0, "", "nobody answers")]
    with pytest.raises(KubeError):
        await kube.write(fact(in_use=("a",)))
    assert not kube.in_use.has("n1", ["a"])
    await kube.write(fact(in_use=("a",)))
    assert kube.in_use.has("n1", ["a"])
    kube.in_use.lose("n1")
    await kube.write(fact(in_use=("a",)))  # it stands there already
    assert kube.in_use.has("n1", ["a"])


async def test_a_node_that_tells_nothing_gets_no_node(kube: NodeWrites) -> None:
    await kube.write(None)
    assert kube.writes() == []


async def test_what_is_in_use_is_there_also_if_the_rest_cannot_be_written(kube: NodeWrites) -> None:
    await kube.write(fact())
    with pytest.raises(KubeError):
        await kube.write(_refused_labels(kube))
    assert (await kube.node())["status"]["volumesInUse"] == ["a"]
    assert kube.in_use.has("n1", ["a"])
    await kube.write(fact(labels={"bad": "x"}, in_use=("a",)))
    assert (await kube.labels())["bad"] == "x"


class _Held:
    """A call of an API server that waits."""

    def __init__(self, call: Any, *, done: bool) -> None:
        self._call, self._done = call, done
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, *args: Any, **options: Any) -> Body:
        if not self._done:
            self.begun.set()
            await self.go_on.wait()
        found: Body = await self._call(*args, **options)
        self.begun.set()
        await self.go_on.wait()
        return found


@pytest.mark.parametrize("done", [True, False], ids=["it is done", "it is not done"])
@pytest.mark.parametrize("verb", ["get", "patch"])
async def test_what_is_being_taken_out_stands_there_no_more_before_that_is_answered(
    kube: NodeWrites, verb: str, *, done: bool
) -> None:
    await kube.write(fact(in_use=("a", "b")))
    held = _Held(getattr(kube.api, verb), done=done)
    setattr(kube.api, verb, held)
    writing = asyncio.create_task(kube.write(fact(in_use=("a",))))
    await asyncio.wait_for(held.begun.wait(), 5)
    assert [kube.in_use.has("n1", [it]) for it in ("a", "b")] == [True, False]
    held.go_on.set()
    await writing
    assert [kube.in_use.has("n1", [it]) for it in ("a", "b")] == [True, False]


async def test_what_was_taken_out_without_an_answer_stands_there_no_more(kube: NodeWrites) -> None:
    await kube.write(fact(in_use=("a", "b")))
    patch = kube.api.patch

    async def lose(*args: Any, **options: Any) -> Body:
        await patch(*args, **options)
        raise KubeError("patch", 0, "", "the answer broke off")

    kube.api.patch = lose  # type: ignore[method-assign]  # done, and nobody hears of it
    with pytest.raises(KubeError):
        await kube.write(fact(in_use=("a",)))
    assert [kube.in_use.has("n1", [it]) for it in ("a", "b")] == [True, False]


async def test_what_somebody_else_took_out_does_not_stand_there_while_it_is_put_back(kube: NodeWrites) -> None:
    await kube.write(fact(in_use=("a", "b")))
    kube.api.put({**await kube.node(), "status": {"volumesInUse": ["a"]}})
    held = _Held(kube.api.patch, done=False)
    kube.api.patch = held  # type: ignore[method-assign]  # it waits
    writing = asyncio.create_task(kube.write(fact(in_use=("a", "b"))))
    await asyncio.wait_for(held.begun.wait(), 5)
    assert [kube.in_use.has("n1", [it]) for it in ("a", "b")] == [True, False]
    held.go_on.set()
    await writing
    assert kube.in_use.has("n1", ["a", "b"])


def _refused_labels(kube: NodeWrites) -> Body:
    """The second patch is refused: the one of the labels."""
    patch = kube.api.patch

    async def refuse(*args: Any, **options: Any) -> Body:
        if not options.get("subresource"):
            kube.api.patch = patch  # type: ignore[method-assign]  # as it was
            raise KubeError("patch", 422, "Invalid", "metadata.labels")
        return await patch(*args, **options)

    kube.api.patch = refuse  # type: ignore[method-assign]  # one refusal among several patches
    return fact(labels={"bad": "x"}, in_use=("a",))


async def test_what_another_one_writes_meanwhile_is_not_lost(kube: NodeWrites) -> None:
    await kube.write(fact())
    patch = kube.api.patch

    async def late(*args: Any, **options: Any) -> Body:
        kube.api.patch = patch  # type: ignore[method-assign]  # as it was
        await patch(RESOURCES["Node"], "n1", {"metadata": {"annotations": {IDS: '{"other":"x"}'}}})
        return await patch(*args, **options)

    kube.api.patch = late  # type: ignore[method-assign]  # another one is quicker
    with pytest.raises(KubeError) as caught:
        await kube.write(fact(ids={"d": "id-1"}))
    assert caught.value.code == 409
    await kube.write(fact(ids={"d": "id-1"}))
    assert await kube.ids() == {"other": "x", "d": "id-1"}
