"""The heartbeats: a node whose session lives is alive to Kubernetes, at a bearable price, and no other one is."""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError, Resource
from cloud.sources.cluster.cluster import Cluster
from cloud.upsync.heartbeats import Heartbeats
from tests.kit.fake_api import FakeApi
from tests.kit.waiting import settle

Body = dict[str, Any]

NODES, LEASES = RESOURCES["Node"], RESOURCES["Lease"]
DOWN = KubeError("patch Lease kube-node-lease/n1", 0, "", "nobody answers")
START = 1_800_000_000.0


class Time:
    """A clock, and those who wait for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    async def pause(self, seconds: float) -> None:
        assert seconds > 0
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, next(self._order), future))
        await future

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: call())
        heapq.heappush(self._waiting, (self.now + seconds, next(self._order), future))

    async def turn(self, seconds: float) -> None:
        """Let time pass, and all happen that does meanwhile."""
        end = self.now + seconds
        await settle()
        while self._waiting and self._waiting[0][0] <= end:
            due, _, future = heapq.heappop(self._waiting)
            self.now = max(self.now, due)
            if not future.done():
                future.set_result(None)
                await settle()
        self.now = end


class Server(FakeApi):
    """Answers late if it is told to; notes when it was written to, and how many requests were under way at most."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.time = time
        self.writes: list[tuple[float, str]] = []
        self.busy = self.most_busy = 0
        self.answers_after = 0.0

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            if self.answers_after:
                await self.time.pause(self.answers_after)
            yield
        finally:
            self.busy -= 1

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        async with self.answering():
            return await super().get(resource, name, namespace)

    async def patch(
        self, resource: Resource, name: str, change: Body, namespace: str = "", *, subresource: str = ""
    ) -> Body:
        self.writes.append((self.time.now, f"{resource.kind} {name}"))
        async with self.answering():
            return await super().patch(resource, name, change, namespace, subresource=subresource)

    async def create(self, resource: Resource, body: Body, namespace: str = "") -> Body:
        self.writes.append((self.time.now, f"{resource.kind} {body['metadata']['name']}"))
        return await super().create(resource, body, namespace)


class BeatingHub:
    """An API server, its clock, and heartbeats."""

    def __init__(self) -> None:
        self.time = Time()
        self.api = Server(self.time)
        self.put_back_s = 0.0
        self.heartbeats = Heartbeats(
            self.api,
            now=lambda: self.time.now,
            wall=lambda: START + self.time.now - self.put_back_s,
            pause=self.time.pause,
            later=self.time.later,
        )

    async def beats(self, seconds: float = 1) -> None:
        """Node n1 is there and up, for so long."""
        self.put_node()
        self.heartbeats.up("n1")
        await self.time.turn(seconds)

    def bring_up(self, count: int) -> list[str]:
        names = [f"n{number}" for number in range(count)]
        for name in names:
            self.put_node(name)
            self.heartbeats.up(name)
        return names

    def put_node(self, name: str = "n1", *, made: bool = True, **more: Any) -> Body:
        annotations = {"csi-bridge.io/made-by": "hub"} if made else {}
        return self.api.put({"kind": "Node", "metadata": {"name": name, "annotations": annotations}, **more})

    async def ready(self, name: str = "n1") -> Any:
        conditions = (await self.api.get(NODES, name)).get("status", {}).get("conditions", [])
        return next((it for it in conditions if it["type"] == "Ready"), None)

    async def renewed(self, name: str = "n1") -> float:
        """When the Lease was renewed, in seconds since the start."""
        lease = await self.api.get(LEASES, name, "kube-node-lease")
        return datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp() - START

    def writes(self, what: str) -> int:
        return Counter(it for _, it in self.api.writes)[what]

    async def lose(self, name: str = "n1") -> None:
        """The controller-manager finds the node lost, and the watch tells of it."""
        lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await FakeApi.patch(self.api, NODES, name, lost, subresource="status")
        self.heartbeats.doubt(name)

    def pauses(self, since: float) -> list[float]:
        """Between two renewals of each Lease, and from the last one until now."""
        times: dict[str, list[float]] = {}
        for at, what in self.api.writes:
            if what.startswith("Lease ") and at >= since:
                times.setdefault(what, [since]).append(at)
        assert len(times) == len(self.heartbeats._hearts)
        return [later - at for it in times.values() for at, later in itertools.pairwise([*it, self.time.now])]


@pytest.fixture
async def hub() -> AsyncIterator[BeatingHub]:
    hub = BeatingHub()
    yield hub
    await hub.heartbeats.close()


async def test_a_node_that_comes_is_ready_at_once_with_a_lease_that_goes_with_it(hub: BeatingHub) -> None:
    node = hub.put_node()
    for _ in range(2):
        hub.heartbeats.up("n1")
    await hub.time.turn(0.1)
    assert hub.writes("Lease n1") == 1
    lease = await hub.api.get(LEASES, "n1", "kube-node-lease")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"]}
    assert lease["metadata"]["ownerReferences"] == [owner]
    assert lease["spec"] == {
        "holderIdentity": "n1",
        "leaseDurationSeconds": 40,
        "renewTime": "2027-01-15T08:00:00.000000+00:00",
    }
    ready = await hub.ready()
    assert ready["status"] == "True"
    assert ready["lastTransitionTime"] == ready["lastHeartbeatTime"] == "2027-01-15T08:00:00Z"
    assert hub.heartbeats.problems() == []


async def test_the_lease_is_renewed_every_ten_seconds_and_the_condition_every_five_minutes(hub: BeatingHub) -> None:
    await hub.beats(3000)
    assert 300 <= hub.writes("Lease n1") <= 335
    assert 10 <= hub.writes("Node n1") <= 11
    ready = await hub.ready()
    assert ready["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert ready["lastHeartbeatTime"] > "2027-01-15T08:44:00Z"
    assert hub.time.now - await hub.renewed() <= 10.1
    assert len(hub.api.asked) < 3 * hub.writes("Node n1") + hub.writes("Lease n1") + 10


async def test_after_its_end_nothing_is_renewed_and_nothing_said_whatever_is_said_of_the_node(hub: BeatingHub) -> None:
    await hub.beats(25)
    hub.heartbeats.down("n1")
    asked = list(hub.api.asked)
    hub.heartbeats.doubt("n1")
    hub.heartbeats.doubt("n2")
    await hub.time.turn(1000)
    assert hub.api.asked == asked
    assert (await hub.ready())["status"] == "True"
    hub.heartbeats.down("n1")


async def test_a_node_that_returns_is_ready_again_whatever_was_said_of_it_meanwhile(hub: BeatingHub) -> None:
    await hub.beats()
    hub.heartbeats.down("n1")
    await hub.time.turn(60)
    lost = {"type": "Ready", "status": "Unknown", "lastHeartbeatTime": "2027-01-15T08:00:00Z"}
    pressure = {"type": "MemoryPressure", "status": "Unknown"}
    await hub.api.patch(NODES, "n1", {"status": {"conditions": [pressure, lost]}}, subresource="status")
    hub.heartbeats.up("n1")
    await hub.time.turn(1)
    assert (await hub.api.get(NODES, "n1"))["status"]["conditions"][0] == pressure
    ready = await hub.ready()
    assert ready["status"] == "True"
    assert ready["lastTransitionTime"] == "2027-01-15T08:01:01Z"


async def test_only_a_node_that_the_hub_has_made_has_heartbeats_and_within_ten_seconds(hub: BeatingHub) -> None:
    hub.heartbeats.up("n1")
    await hub.time.turn(100)
    hub.put_node(made=False)
    await hub.time.turn(100)
    assert hub.api.writes == []
    assert hub.heartbeats.problems() == []
    hub.put_node()
    await hub.time.turn(10)
    assert await hub.ready() is not None


async def test_a_node_that_was_deleted_and_made_anew_has_a_new_lease(hub: BeatingHub) -> None:
    await hub.beats(15)
    hub.api.drop("Node", "n1")
    hub.api.drop("Lease", "n1", "kube-node-lease")
    await hub.time.turn(60)
    assert hub.heartbeats.problems() == []
    node = hub.put_node()
    await hub.time.turn(11)
    lease = await hub.api.get(LEASES, "n1", "kube-node-lease")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


async def test_a_lease_of_a_kubelet_that_took_over_is_not_renewed(hub: BeatingHub) -> None:
    await hub.beats(15)
    hub.api.drop("Node", "n1")
    hub.api.drop("Lease", "n1", "kube-node-lease")
    hub.put_node(made=False)
    lease = {"name": "n1", "namespace": "kube-node-lease", "uid": "another"}
    kubelets = hub.api.put({"kind": "Lease", "metadata": lease, "spec": {}})
    await hub.time.turn(60)
    assert await hub.api.get(LEASES, "n1", "kube-node-lease") == kubelets


async def test_a_lease_that_is_there_after_the_hubs_restart_goes_on_and_never_back(hub: BeatingHub) -> None:
    hub.put_node()
    lease = {"name": "n1", "namespace": "kube-node-lease"}
    spec = {"holderIdentity": "n1", "renewTime": "2027-01-15T09:00:00.5Z"}
    hub.api.put({"kind": "Lease", "metadata": lease, "spec": spec})
    hub.heartbeats.up("n1")
    await hub.time.turn(0.1)
    assert await hub.renewed() == pytest.approx(3600.501, abs=1e-5)
    await hub.time.turn(10)
    assert await hub.renewed() == pytest.approx(3600.502, abs=1e-5)


async def test_a_lease_of_a_node_that_is_gone_gets_the_new_node_for_its_owner(hub: BeatingHub) -> None:
    hub.put_node()
    old = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "gone"}
    lease = {"name": "n1", "namespace": "kube-node-lease", "ownerReferences": [old]}
    hub.api.put({"kind": "Lease", "metadata": lease, "spec": {"holderIdentity": "n1"}})
    hub.heartbeats.up("n1")
    await hub.time.turn(0.1)
    found = await hub.api.get(LEASES, "n1", "kube-node-lease")
    assert [it["uid"] for it in found["metadata"]["ownerReferences"]] == ["uid-n1"]


async def test_a_clock_that_is_put_back_takes_no_node_away(hub: BeatingHub) -> None:
    await hub.beats(25)
    times = [await hub.renewed()]
    hub.put_back_s = 3600
    for _ in range(5):
        await hub.time.turn(10.1)
        times.append(await hub.renewed())
    assert times == sorted(set(times))
    await hub.time.turn(400)
    assert hub.writes("Node n1") >= 2


async def test_a_failure_is_named_and_tried_again_soon_and_the_node_is_looked_at_again(hub: BeatingHub) -> None:
    await hub.beats()
    hub.api.failures["patch"] = [DOWN]
    hub.api.failures["get"] = [DOWN] * 2
    await hub.time.turn(10)
    assert len(hub.heartbeats.problems()) == 1
    assert "nobody answers" in hub.heartbeats.problems()[0]
    looked = len(hub.api.asked)
    await hub.time.turn(7)
    assert "get nodes n1" in hub.api.asked[looked:]
    assert hub.heartbeats.problems() == []
    assert hub.time.now - await hub.renewed() <= 10.1


async def test_a_node_that_goes_while_it_fails_is_no_problem_any_more(hub: BeatingHub) -> None:
    hub.api.failures["get"] = [DOWN] * 1000
    hub.heartbeats.up("n1")
    await hub.time.turn(1)
    assert len(hub.heartbeats.problems()) == 1
    hub.heartbeats.down("n1")
    assert hub.heartbeats.problems() == []


async def test_a_condition_that_another_one_writes_meanwhile_is_not_lost(hub: BeatingHub) -> None:
    found = hub.put_node()
    get = hub.api.get

    async def old(resource: Resource, name: str, namespace: str = "") -> Body:
        if resource is NODES:
            hub.api.get = get  # type: ignore[method-assign]  # as it was
            hub.put_node(status={"conditions": [{"type": "NetworkUnavailable", "status": "False"}]})
            return found
        return await get(resource, name, namespace)

    hub.api.get = old  # type: ignore[method-assign]  # another one is quicker
    hub.heartbeats.up("n1")
    await hub.time.turn(5)
    conditions = (await hub.api.get(NODES, "n1"))["status"]["conditions"]
    assert [it["type"] for it in conditions] == ["NetworkUnavailable", "Ready"]


async def test_a_node_that_is_said_to_be_lost_is_ready_again_with_its_next_heartbeat(hub: BeatingHub) -> None:
    await hub.beats()
    await hub.lose()
    asked = len(hub.api.asked)
    await hub.time.turn(10)
    assert (await hub.ready())["status"] == "True"
    first = hub.api.asked[asked : asked + 3]
    assert first == ["patch leases n1", "get nodes n1", "patch nodes n1 status"]


async def test_a_node_that_is_found_lost_during_a_renewal_is_looked_at_right_after_it(hub: BeatingHub) -> None:
    await hub.beats()
    patch = hub.api.patch

    async def patch_slowly(resource: Resource, *change: Any, **more: Any) -> Body:
        if resource == LEASES:
            hub.api.patch = patch  # type: ignore[method-assign]  # once
            hub.time.now += 29
            await hub.lose()
        return await patch(resource, *change, **more)

    hub.api.patch = patch_slowly  # type: ignore[method-assign]  # a server that is slow once
    await hub.time.turn(10)
    assert (await hub.ready())["status"] == "True"


async def test_what_is_heard_during_a_look_makes_another_look(hub: BeatingHub) -> None:
    """The answer may be older than what is heard."""
    await hub.beats()
    get = hub.api.get

    async def overtaken(*where: Any) -> Body:
        hub.api.get = get  # type: ignore[method-assign]  # once
        found = await get(*where)
        await hub.lose()
        return found

    hub.api.get = overtaken  # type: ignore[method-assign]  # what it answers is no longer so
    hub.heartbeats.doubt("n1")
    await hub.time.turn(10)
    assert (await hub.ready())["status"] == "Unknown"
    await hub.time.turn(10)
    assert (await hub.ready())["status"] == "True"


async def test_a_watch_that_tells_late_that_a_node_was_lost_costs_one_look_and_no_write(hub: BeatingHub) -> None:
    await hub.beats()
    before = Counter(hub.api.asked)
    hub.heartbeats.doubt("n1")
    hub.heartbeats.doubt("n1")
    await hub.time.turn(100)
    since = Counter(hub.api.asked) - before
    assert since["get nodes n1"] == 1
    assert since["patch nodes n1 status"] == 0


async def test_what_the_watch_tells_of_a_node_and_what_is_made_of_that_ends_with_a_node_that_is_ready(
    hub: BeatingHub,
) -> None:
    cluster = Cluster(hub.api, unready=hub.heartbeats.doubt, pause=hub.time.pause)
    following = asyncio.create_task(cluster.run())
    await hub.beats(30)
    hub.put_node(status={"conditions": [{"type": "Ready", "status": "False", "reason": "SomebodySaidSo"}]})
    before = Counter(hub.api.asked)
    await hub.time.turn(100)
    assert (await hub.ready())["status"] == "True"
    since = Counter(hub.api.asked) - before
    assert since["get nodes n1"] <= 3  # one of them is this test's
    assert since["patch nodes n1 status"] == 1
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.slow
async def test_renewals_that_come_late_ask_a_slow_server_for_nothing_more(hub: BeatingHub) -> None:
    hub.bring_up(200)
    await hub.time.turn(20)
    hub.api.answers_after = 5.2  # with fifty at once 20.8 s for all of them
    await hub.time.turn(60)
    asked = len(hub.api.asked)
    since = hub.time.now
    await hub.time.turn(120)
    assert max(hub.pauses(since)) < 25
    assert {it.split()[1] for it in hub.api.asked[asked:]} == {"leases"}


@pytest.mark.slow
async def test_nodes_that_are_looked_at_all_at_once_keep_no_lease_waiting(hub: BeatingHub) -> None:
    hub.bring_up(200)
    await hub.time.turn(20)
    hub.api.answers_after = 5.2
    await hub.time.turn(60)
    since = hub.time.now
    for number in range(200):
        await hub.lose(f"n{number}")
    await hub.time.turn(200)
    assert max(hub.pauses(since)) < 40
    hub.api.answers_after = 0.0
    for number in range(200):
        assert (await hub.ready(f"n{number}"))["status"] == "True"


async def test_a_bug_ends_no_heart(hub: BeatingHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.put_node(status={"conditions": ["nonsense"]})  # which no API server has
    hub.heartbeats.up("n1")
    await hub.time.turn(1)
    assert "see the hub's log" in hub.heartbeats.problems()[0]
    assert "failed because of a bug" in caplog.text
    hub.put_node(status={"conditions": []})
    await hub.time.turn(20)
    assert hub.heartbeats.problems() == []


async def test_nodes_that_come_all_at_once_are_two_hundred_writes_a_second(hub: BeatingHub) -> None:
    names = hub.bring_up(400)
    await hub.time.turn(15)
    seconds = Counter(int(at) for at, _ in hub.api.writes)
    assert max(seconds.values()) <= 201
    assert min(seconds[second] for second in range(3)) >= 199
    for name in names:
        assert await hub.ready(name) is not None
        assert hub.time.now - await hub.renewed(name) <= 11
    assert hub.heartbeats.problems() == []


async def test_nodes_that_came_together_drift_apart(hub: BeatingHub) -> None:
    hub.bring_up(50)
    await hub.time.turn(60)
    last = Counter(int(at) for at, what in hub.api.writes if at >= 50 and what.startswith("Lease"))
    assert max(last.values()) <= 40  # of 50, which began in one second


async def test_each_node_of_a_large_fleet_renews_as_often_as_one_alone(
    hub: BeatingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that stood would delay what is urgent: a Node that Kubernetes has taken for lost."""
    monkeypatch.setattr("cloud.upsync.heartbeats._WRITES_PER_S", 20.0)  # for 200 nodes what it is for 2,000
    hub.bring_up(200)
    await hub.time.turn(25)
    before = len(hub.api.writes)
    await hub.time.turn(20)
    renewed = Counter(what.split()[0] for _, what in hub.api.writes[before:])["Lease"]
    assert renewed > 20 / 10 * 200


@pytest.mark.slow
async def test_a_larger_fleet_has_room_for_more_than_its_renewals_and_conditions(hub: BeatingHub) -> None:
    for number in range(4000):
        hub.heartbeats.up(f"n{number}")
    first = hub.heartbeats._next_write
    await hub.heartbeats._turn()
    assert 1 / (hub.heartbeats._next_write - first) > 1.1 * (4000 / 9.5 + 4000 / 300)


async def test_a_server_that_is_slow_is_asked_a_few_things_at_once(hub: BeatingHub) -> None:
    hub.api.answers_after = 5.0
    hub.bring_up(200)
    await hub.time.turn(60)
    assert hub.api.most_busy == 75  # fifty renewals and twenty-five looks
