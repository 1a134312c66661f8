"""A pod writer: a pod's conditions follow what its node told, and it ends when nothing of its volumes is left."""

from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError
from cloud.upsync.pod_writer import PodWriter
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi

Body = dict[str, Any]

WEB = Ref("Pod", "default", "web")
READY = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-01T00:00:00Z"}
MOUNTED = {"type": "csi-bridge.io/VolumesMounted", "status": "True", "reason": "Mounted"}
WAITING = {**MOUNTED, "status": "False", "reason": "Waiting", "message": "data: no driver"}
UNMOUNTED = {**MOUNTED, "status": "False", "reason": "Unmounted"}
RELEASED = {"type": "csi-bridge.io/VolumesReleased", "status": "True", "reason": "Unmounted"}


class PodWrites:
    """An API server with a Node that the hub made and a pod on it, and a writer."""

    def __init__(self, *conditions: Body, made: bool = True, deleted: bool = False) -> None:
        self.api, self.now = FakeApi(), 0.0
        self.writer = PodWriter(self.api, now=lambda: self.now)
        annotations = {"csi-bridge.io/made-by": "hub"} if made else {}
        self.api.put({"kind": "Node", "metadata": {"name": "n1", "annotations": annotations}})
        metadata: Body = {"namespace": "default", "name": "web", "uid": "u-1"}
        if deleted:
            metadata |= {"deletionTimestamp": "2026-11-22T00:00:00Z", "deletionGracePeriodSeconds": 30}
        status = {"phase": "Pending", "conditions": list(conditions)}
        self.api.put({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})

    async def conditions(self) -> list[Body]:
        found = await self.api.get(RESOURCES["Pod"], "web", "default")
        conditions: list[Body] = found["status"]["conditions"]
        return conditions

    async def write(self, fact: Body | None, *, node: str = "n1") -> list[str]:
        """What was changed."""
        self.api.asked.clear()
        await self.writer.write(node, WEB, fact)
        return [asked for asked in self.api.asked if not asked.startswith("get")]


def told(*conditions: Body, uid: str = "u-1") -> Body:
    return {"metadata": {"uid": uid}, "status": {"conditions": list(conditions)}}


def listed(*volumes: tuple[str, ...], status: str = "False") -> Body:
    """A fact with a list of volumes."""
    fact = told({**MOUNTED, "status": status, "reason": "Waiting"})
    fact["status"]["volumes"] = [dict(zip(("name", "state", "reason"), it, strict=False)) for it in volumes]
    return fact


async def test_the_condition_says_in_words_which_volumes_the_pod_waits_for_and_cuts_what_is_long() -> None:
    kube = PodWrites()

    async def message(*volumes: tuple[str, ...]) -> str:
        await kube.write(listed(*volumes))
        return str((await kube.conditions())[0]["message"])

    waits = ("data", "waiting", "no driver"), ("logs", "mounted"), ("tmp", "unknown"), ("", "waiting", "no such pod")
    assert await message(*waits) == "data: no driver; tmp; no such pod"
    long = await message(("data", "waiting", "x" * 900), ("logs", "waiting", "no driver"))
    assert long == f"data: {'x' * 512} … (cut); logs: no driver"
    many = await message(*((f"data-{number}", "waiting", "no driver") for number in range(200)))
    assert (len(many), many[-8:]) == (1_024 + 8, " … (cut)")


async def test_a_condition_has_the_time_at_which_its_status_changed() -> None:
    kube = PodWrites()
    await kube.write(told(WAITING))
    kube.now = 60.0
    await kube.write(told({**WAITING, "message": "data: another cause"}))
    assert await kube.conditions() == [
        {**WAITING, "message": "data: another cause", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    ]
    await kube.write(told(MOUNTED))
    assert await kube.conditions() == [{**MOUNTED, "lastTransitionTime": "1970-01-01T00:01:00Z"}]


async def test_the_same_again_is_no_change_and_asks_for_no_node() -> None:
    kube = PodWrites(READY)
    await kube.write(told(MOUNTED))
    assert await kube.write(told(MOUNTED)) == []
    assert kube.api.asked == ["get pods web"]


async def test_an_event_says_once_that_all_is_mounted_and_that_nothing_starts_containers() -> None:
    kube = PodWrites(READY)
    (created, patched) = await kube.write(told(MOUNTED))
    assert (created.split(".")[0], patched) == ("create events web", "patch pods web status")
    event = await kube.api.get(RESOURCES["Event"], created.split()[-1], "default")
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web", "uid": "u-1"
    }  # fmt: skip
    assert (event["reason"], event["type"], event["count"]) == ("VolumesMounted", "Normal", 1)
    assert event["message"] == (
        "All volumes are mounted on node n1. No kubelet runs there, so Kubernetes does not start the pod's containers. "
        "On the node, csi-bridge edge volumes shows where each volume is mounted"
    )
    assert event["source"]["host"] == "n1"


async def test_a_pod_that_has_not_all_its_volumes_gets_no_event_that_it_has() -> None:
    kube = PodWrites(READY)
    assert await kube.write(told(WAITING)) == ["patch pods web status"]
    assert await kube.write(told({**WAITING, "message": "data: another cause"})) == ["patch pods web status"]


async def test_a_pod_that_is_mounted_again_still_has_one_event() -> None:
    kube = PodWrites()
    (first, _) = await kube.write(told(MOUNTED))
    await kube.write(told(WAITING))
    kube.now = 60.0
    assert (await kube.write(told(MOUNTED)))[0] == first
    event = await kube.api.get(RESOURCES["Event"], first.split()[-1], "default")
    assert (event["count"], event["lastTimestamp"]) == (1, "1970-01-01T00:01:00Z")


async def test_the_condition_waits_for_the_event_and_not_for_one_that_a_policy_refuses() -> None:
    kube = PodWrites()
    kube.api.failures["create"] = [
        KubeError("create", 503, "ServiceUnavailable", "not now"),
        KubeError("create", 403, "Forbidden", "a policy allows no events here"),
    ]
    with pytest.raises(KubeError):
        await kube.write(told(MOUNTED))
    assert await kube.conditions() == []
    await kube.write(told(MOUNTED))
    assert [it["status"] for it in await kube.conditions()] == ["True"]


async def test_a_write_between_look_and_patch_is_not_lost() -> None:
    kube = PodWrites()
    old = await kube.api.get(RESOURCES["Pod"], "web", "default")
    kube.api.put({**old, "status": {"conditions": [READY]}})
    get = kube.api.get

    async def get_old(resource: Any, name: str, namespace: str = "") -> Body:
        return old if name == "web" else await get(resource, name, namespace)

    kube.api.get = get_old  # type: ignore[method-assign]  # as if somebody wrote just after it
    with pytest.raises(KubeError):
        await kube.write(told(MOUNTED))


async def test_a_pod_that_nobody_deleted_does_not_end() -> None:
    kube = PodWrites()
    assert await kube.write(told(UNMOUNTED, RELEASED)) == ["patch pods web status"]
    assert await kube.write(told(UNMOUNTED, RELEASED)) == []


@pytest.mark.parametrize("deleted", [True, False])
async def test_where_a_kubelet_may_be_nothing_is_written_and_an_end_is_left_to_people(*, deleted: bool) -> None:
    kube = PodWrites(made=False, deleted=deleted)
    assert await kube.write(told(UNMOUNTED, RELEASED)) == []
    assert [("Pod default/web" in it, "node n1" in it) for it in kube.writer.problems()] == [(True, True)] * deleted
    assert await kube.write(None) == []
    assert kube.writer.problems() == []


async def test_an_end_is_left_to_nobody_when_nothing_is_written_of_the_node_any_more() -> None:
    kube = PodWrites(made=False, deleted=True)
    await kube.write(told(UNMOUNTED, RELEASED))
    assert len(kube.writer.problems()) == 1
    kube.writer.forget("n1", WEB)
    assert kube.writer.problems() == []


async def test_a_fact_of_another_pod_or_of_another_nodes_pod_is_void() -> None:
    kube = PodWrites(deleted=True)
    assert await kube.write(told(UNMOUNTED, RELEASED, uid="another")) == []
    assert await kube.write(told(UNMOUNTED, RELEASED), node="n2") == []


async def test_a_pod_that_is_gone_and_a_fact_that_is_taken_back_are_nothing_to_do() -> None:
    kube = PodWrites(deleted=True)
    assert await kube.write(None) == []
    assert kube.api.asked == []
    kube.api.drop("Pod", "web", "default")
    assert await kube.write(told(UNMOUNTED, RELEASED)) == []


async def test_a_pod_that_went_just_now_is_no_error_and_another_of_its_name_is() -> None:
    kube = PodWrites(deleted=True)
    kube.api.failures["delete"] = [KubeError("delete", 404, "NotFound", "there is none")]
    await kube.write(told(UNMOUNTED, RELEASED))
    kube.api.failures["delete"] = [KubeError("delete", 409, "Conflict", "another uid")]
    with pytest.raises(KubeError):
        await kube.write(told(UNMOUNTED, RELEASED))


async def test_before_the_hub_has_made_the_node_it_is_tried_again() -> None:
    kube = PodWrites(deleted=True)
    kube.api.drop("Node", "n1")
    with pytest.raises(KubeError):
        await kube.write(told(UNMOUNTED, RELEASED))
