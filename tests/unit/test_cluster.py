"""A cluster as a source: ready when all is listed, last good states, and nothing told that has not changed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cloud.kinds.nodes import NodeState
from cloud.kinds.tokens import TokenRequest
from cloud.kube.client import KubeError, ListPage, Resource
from cloud.sources.cluster.cluster import WATCHED, Cluster
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi
from tests.kit.waiting import settle, until

POD = Ref("Pod", "default", "web")


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def pod(name: str = "web", **more: Any) -> dict[str, Any]:
    spec = {"nodeName": "n1", "containers": [{"name": "c"}], **more}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


@asynccontextmanager
async def following(
    api: FakeApi,
    unready: Callable[[str], None] = lambda _node: None,
    *,
    begun: Callable[[Cluster], object] | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster that is followed, after it has come to rest, or has `begun` where a failure lets it never rest."""
    cluster = Cluster(api, unready=unready, pause=_no_pause)
    task = asyncio.create_task(cluster.run())
    try:
        await (settle() if begun is None else until(lambda: begun(cluster)))
        yield cluster
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


async def test_as_long_as_a_kind_was_not_listed_it_is_not_ready_and_says_why(api: FakeApi) -> None:
    api.failures["list"] = [KubeError("list", 0, "", "nobody answers")] * 1000
    async with following(api, begun=lambda it: len(it.problems()) == len(WATCHED)) as cluster:
        assert not cluster.is_ready
        assert cluster.problems() == ["Kubernetes: list: nobody answers"] * len(WATCHED)


async def test_it_tells_once_that_it_is_ready(api: FakeApi) -> None:
    api.put(pod())
    cluster = Cluster(api)
    told: list[frozenset[Ref]] = []
    cluster.subscribe(told.append)
    task = asyncio.create_task(cluster.run())
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert told.count(frozenset()) == 1
    assert frozenset({POD}) in told


async def test_a_status_that_no_node_needs_is_no_change(api: FakeApi) -> None:
    api.put(pod())
    async with following(api) as cluster:
        stamp = cluster.stamp(POD)
        told: list[frozenset[Ref]] = []
        cluster.subscribe(told.append)
        api.put({**pod(), "status": {"hostIP": "10.0.0.1"}})
        await settle()
        assert cluster.stamp(POD) == stamp
        assert told == []
        api.put({**pod(), "status": {"phase": "Failed"}})
        await settle()
        assert told == [frozenset({POD})]


@pytest.mark.parametrize("conditions", [[], [{"type": "Ready", "status": "Unknown"}, {"type": "X", "status": "True"}]])
async def test_of_a_node_that_is_not_ready_the_hub_hears_by_name_and_no_node_does(conditions: list[Any]) -> None:
    api, unready = FakeApi(), list[str]()
    ready = {"type": "Ready", "status": "True"}
    for name in ("n1", "n2"):
        api.put({"kind": "Node", "metadata": {"name": name}, "status": {"conditions": [ready]}})
    api.put({"kind": "Node", "metadata": {"name": "n3"}, "status": {"conditions": conditions}})
    async with following(api, unready.append) as cluster:
        assert unready == ["n3"]
        told: list[frozenset[Ref]] = []
        cluster.subscribe(told.append)
        api.put({"kind": "Node", "metadata": {"name": "n2"}, "status": {"conditions": conditions}})
        await settle()
        api.put({"kind": "Node", "metadata": {"name": "n2"}, "status": {"conditions": [ready]}})
        await settle()
        assert unready == ["n3", "n2"]
        assert told == []


def node_with(*in_use: str, ready: str, taints: tuple[str, ...] = ()) -> Any:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": "2030-01-31T12:00:00Z"}]
    spec = {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]} if taints else {}
    status = {"conditions": conditions, "volumesInUse": list(in_use)}
    return {"kind": "Node", "metadata": {"name": "n1"}, "spec": spec, "status": status}


async def test_the_hub_keeps_what_it_needs_of_a_nodes_state_and_no_node_gets_it() -> None:
    api, since = FakeApi(), "2030-01-31T12:00:00Z"
    api.put(node_with("v-1", ready="True"))
    async with following(api) as cluster:
        told: list[frozenset[Ref]] = []
        cluster.subscribe(told.append)
        assert cluster.node_state("n1") == NodeState("True", since, frozenset({"v-1"}), is_out_of_service=False)
        api.put(node_with(ready="Unknown", taints=("a", "node.kubernetes.io/out-of-service")))
        await settle()
        assert cluster.node_state("n1") == NodeState("Unknown", since, frozenset(), is_out_of_service=True)
        assert told == []
        assert cluster.node_state("n2") is None
        api.drop("Node", "n1")
        await settle()
        assert cluster.node_state("n1") is None


async def test_while_nodes_are_not_followed_their_states_may_be_old(api: FakeApi) -> None:
    api.put(node_with(ready="True"))
    async with following(api) as cluster:
        assert not cluster.nodes_trouble
        api.failures["watch"] = [KubeError("watch", 0, "", "nobody answers")] * 1_000
        api.cut()
        await until(lambda: bool(cluster.nodes_trouble))
        api.failures.clear()
        await settle()
        assert not cluster.nodes_trouble


async def test_what_cannot_be_used_keeps_its_last_good_state_and_is_named(api: FakeApi) -> None:
    api.put(pod())
    async with following(api) as cluster:
        good = cluster.body(POD)
        api.put(pod(volumes=[{"name": "Bad Name"}]))
        await settle()
        assert cluster.body(POD) == good
        (problem,) = cluster.problems()
        assert "Pod default/web" in problem
        assert "spec.volumes[0].name" in problem
        api.put(pod(volumes=[{"name": "good"}]))
        await settle()
        assert cluster.problems() == []


async def test_the_last_good_state_of_another_object_does_not_count(api: FakeApi) -> None:
    api.put(pod())
    async with following(api) as cluster:
        broken = pod(volumes=[{"name": "Bad Name"}])
        api.put({**broken, "metadata": {**broken["metadata"], "uid": "another"}})
        await settle()
        assert cluster.body(POD) is None
        api.drop("Pod", "web", "default")
        await settle()
        assert cluster.problems() == []


@pytest.mark.parametrize(
    "item",
    ["x", {}, {"metadata": {"name": "web", "uid": "u"}}, {"metadata": {"name": ["web"], "namespace": "default"}}],
)
async def test_a_list_with_something_that_names_no_object_does_not_count_and_ends_nothing(
    api: FakeApi, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(pod())
    async with following(api) as cluster:
        good, whole = cluster.body(POD), api.list

        async def garbled(resource: Resource, *, limit: int, more: str = "") -> ListPage:
            page = await whole(resource, limit=limit, more=more)
            return ListPage([item], page.version, page.more) if resource.kind == "Pod" else page

        monkeypatch.setattr(api, "list", garbled)
        api.failures["watch"] = [KubeError("watch", 410, "Expired", "too old")] * len(WATCHED)
        api.cut()
        await until(cluster.problems)
        assert cluster.body(POD) == good
        (problem,) = cluster.problems()
        assert problem.startswith("Kubernetes: read Pod: the API server's answer is not one: ")
        monkeypatch.undo()
        await settle()
        assert cluster.body(POD) == good
        assert cluster.problems() == []


async def test_a_change_of_something_that_names_no_object_is_asked_for_again(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(pod())
    async with following(api) as cluster:
        api.put(pod("other"))
        version, what, body = api._events["Pod"][-1]
        api._events["Pod"][-1] = version, what, {**body, "metadata": {"namespace": "default"}}
        await until(lambda: "read Pod: the API server's answer is not one: metadata.name is missing" in caplog.text)
        api._events["Pod"][-1] = version, what, body
        await settle()
        assert cluster.body(Ref("Pod", "default", "other")) is not None
        assert cluster.problems() == []


@pytest.mark.parametrize("uid", [None, "", 5])
async def test_one_whose_uid_is_not_told_keeps_its_last_good_state_and_is_named(api: FakeApi, uid: Any) -> None:
    api.put(pod())
    async with following(api) as cluster:
        good = cluster.body(POD)
        api.put({**pod(), "metadata": {**pod()["metadata"], "uid": uid}})
        api.put(pod("other"))
        await settle()
        assert cluster.body(POD) == good
        assert cluster.body(Ref("Pod", "default", "other")) is not None
        (problem,) = cluster.problems()
        assert problem.startswith("Pod default/web cannot be used, and its last good state counts: metadata.uid ")


async def test_what_a_later_list_does_not_have_is_gone(api: FakeApi) -> None:
    api.put(pod())
    api.put(pod("bad", volumes=[{"name": "Bad Name"}]))
    api.put(node_with(ready="True"))
    async with following(api) as cluster:
        assert len(cluster.problems()) == 1
        api.failures["watch"] = [KubeError("watch", 410, "Expired", "too old")] * len(WATCHED)
        api.cut()
        api.drop("Pod", "web", "default")
        api.drop("Pod", "bad", "default")
        api.drop("Node", "n1")
        await settle()
        assert set(cluster.refs("Pod")) == set()
        assert cluster.node_state("n1") is None
        assert cluster.problems() == []
        assert cluster.is_ready


REQUEST = TokenRequest(POD, "uid-web", "robot", (("vault", 600),))
ROBOT = {"kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "default"}}


async def test_tokens_are_made_for_a_pod_as_long_as_it_needs_them(api: FakeApi) -> None:
    api.put(ROBOT)
    async with following(api) as cluster:
        assert not cluster.knows(REQUEST.ref)
        cluster.use(REQUEST.ref, REQUEST)
        await settle()
        assert cluster.knows(REQUEST.ref)
        first = cluster.stamp(REQUEST.ref)
        assert first.uid == "uid-web"
        assert list((cluster.body(REQUEST.ref) or {})["tokens"]) == ["vault"]
        more = TokenRequest(POD, "uid-web", "robot", (("", 3600), ("vault", 600)))
        cluster.use(more.ref, more)
        await settle()
        assert list((cluster.body(REQUEST.ref) or {})["tokens"]) == ["", "vault"]
        cluster.release(REQUEST.ref)
        assert cluster.body(REQUEST.ref) is None
        assert not cluster.knows(REQUEST.ref)


async def test_no_token_stands_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    api = FakeApi()
    api.put(ROBOT)
    async with following(api) as cluster:
        cluster.use(REQUEST.ref, REQUEST)
        await settle()
        token = (cluster.body(REQUEST.ref) or {})["tokens"]["vault"]["token"]
        cluster.tell(frozenset({REQUEST.ref}))
    assert token not in caplog.text
