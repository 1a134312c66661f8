"""A claim writer: a claim's status follows what its node told, and nobody else's word is overwritten."""

from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError
from cloud.upsync.claim_writer import ClaimWriter
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi

Body = dict[str, Any]

DATA = Ref("PersistentVolumeClaim", "default", "data")
OTHER = {"type": "Backup", "status": "True", "message": "somebody else's"}
PENDING = {"type": "FileSystemResizePending", "status": "True"}
RESIZING = {"type": "Resizing", "status": "True"}


class FixedClosures:
    """Closures that hold the claim for one node."""

    def __init__(self) -> None:
        self.is_ready = True
        self.held = {("n1", DATA)}

    def holds(self, node: str, ref: Ref) -> bool:
        return (node, ref) in self.held


class ClaimWrites:
    """An API server with one claim, which asks for 2Gi and has 1Gi, and a writer."""

    def __init__(self, resize_status: str = "NodeResizePending", *conditions: Body, **status: Any) -> None:
        self.api, self.closures = FakeApi(), FixedClosures()
        self.writer = ClaimWriter(self.api, self.closures)
        stated: Body = {
            "phase": "Bound",
            "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            **({"allocatedResourceStatuses": {"storage": resize_status}} if resize_status else {}),
            **({"conditions": list(conditions)} if conditions else {}),
        }
        self.put({**stated, **status})

    def put(self, status: Body, *, uid: str = "u-1", volume: str = "pv") -> None:
        metadata = {"namespace": "default", "name": "data", "uid": uid}
        self.api.put({"kind": DATA.kind, "metadata": metadata, "spec": {"volumeName": volume}, "status": status})

    async def write(self, fact: Body | None, *, node: str = "n1") -> Body:
        """The claim's status afterwards. A second write changes nothing."""
        await self.writer.write(node, DATA, fact)
        written = await self.api.get(RESOURCES[DATA.kind], "data", "default")
        await self.writer.write(node, DATA, fact)
        assert await self.api.get(RESOURCES[DATA.kind], "data", "default") == written
        status: Body = written["status"]
        return status


def error(message: str = "the volume could not be expanded on its node: no") -> Body:
    since = "2026-11-22T00:00:00Z"
    return {"type": "NodeResizeError", "status": "True", "lastTransitionTime": since, "message": message}


def told(
    size: str,
    resize_status: str = "",
    *conditions: Body,
    asked: str | None = "2Gi",
    uid: str = "u-1",
    volume: str = "pv",
) -> Body:
    """What a node tells."""
    status = {
        "capacity": {"storage": size},
        **({"allocatedResources": {"storage": asked}} if asked and (resize_status or conditions) else {}),
        "allocatedResourceStatuses": {"storage": resize_status} if resize_status else {},
        "conditions": list(conditions),
    }
    return {"metadata": {"uid": uid}, "spec": {"volumeName": volume}, "status": status}


async def test_a_finished_expansion_raises_the_size_and_clears_what_the_kubelet_clears() -> None:
    writes = ClaimWrites("NodeResizeInProgress", OTHER, PENDING, RESIZING, error())
    status = await writes.write(told("2Gi"))
    assert status == {
        "phase": "Bound",
        "capacity": {"storage": "2Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "conditions": [OTHER],
    }


async def test_it_takes_one_patch_of_the_status_that_was_looked_at() -> None:
    writes = ClaimWrites()
    await writes.writer.write("n1", DATA, told("2Gi"))
    assert writes.api.asked == ["get persistentvolumeclaims data", "patch persistentvolumeclaims data status"]
    writes = ClaimWrites()
    writes.api.failures["patch"] = [KubeError("patch", 409, "Conflict", "another one")]
    with pytest.raises(KubeError):
        await writes.writer.write("n1", DATA, told("2Gi"))
    assert (await writes.write(told("2Gi")))["capacity"] == {"storage": "2Gi"}


async def test_a_write_between_look_and_patch_is_not_lost() -> None:
    writes = ClaimWrites()
    looked = await writes.api.get(RESOURCES[DATA.kind], "data", "default")
    writes.put({**looked["status"], "conditions": [OTHER]})

    async def get_old(*_: Any) -> Body:
        return looked

    writes.api.get = get_old  # type: ignore[method-assign]  # as if somebody wrote just after it
    with pytest.raises(KubeError) as caught:
        await writes.writer.write("n1", DATA, told("2Gi"))
    assert caught.value.code == 409


@pytest.mark.parametrize("capacity", [{"storage": "3Gi"}, {"storage": "2048Mi", "cpu": "1"}], ids=["larger", "equal"])
async def test_the_size_never_shrinks_and_the_same_one_in_other_words_is_no_change(capacity: Body) -> None:
    assert (await ClaimWrites("", capacity=capacity).write(told("2Gi")))["capacity"] == capacity


async def test_another_resources_amounts_and_statuses_stay() -> None:
    writes = ClaimWrites(
        capacity={"storage": "1Gi", "inodes": "5"},
        allocatedResourceStatuses={"storage": "NodeResizePending", "inodes": "ControllerResizeInProgress"},
    )
    status = await writes.write(told("2Gi"))
    assert status["capacity"] == {"storage": "2Gi", "inodes": "5"}
    assert status["allocatedResourceStatuses"] == {"inodes": "ControllerResizeInProgress"}


async def test_a_size_below_what_was_asked_for_finishes_nothing() -> None:
    writes = ClaimWrites("NodeResizePending", PENDING, allocatedResources={"storage": "3Gi"})
    status = await writes.write(told("2Gi"))
    assert status["capacity"] == {"storage": "2Gi"}
    assert status["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
    assert status["conditions"] == [PENDING]


@pytest.mark.parametrize(
    ("before", "what", "after"),
    [
        ("NodeResizePending", "NodeResizeInProgress", "NodeResizeInProgress"),
        ("NodeResizeInProgress", "NodeResizeInProgress", "NodeResizeInProgress"),
        ("NodeResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible"),
        ("ControllerResizeInProgress", "NodeResizeInProgress", "ControllerResizeInProgress"),
        ("", "NodeResizeInProgress", ""),
        ("NodeResizePending", "NodeResizeInfeasible", "NodeResizeInfeasible"),
        ("NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizeInfeasible"),
        ("", "NodeResizeInfeasible", ""),
    ],
)
async def test_that_it_begins_takes_the_place_of_pending_and_that_it_cannot_be_that_of_any_state_of_a_node(
    before: str, what: str, after: str
) -> None:
    status = await ClaimWrites(before).write(told("1Gi", what, *[error()] * (what == "NodeResizeInfeasible")))
    assert status.get("allocatedResourceStatuses", {}).get("storage", "") == after


@pytest.mark.parametrize("turn", ["ControllerResizeInProgress", "ControllerResizeInfeasible"])
async def test_while_it_is_the_resizers_turn_its_status_and_conditions_stay(turn: str) -> None:
    for fact in (told("2Gi"), told("1Gi", "NodeResizeInfeasible", error())):
        status = await ClaimWrites(turn, RESIZING).write(fact)
        assert status["allocatedResourceStatuses"] == {"storage": turn}
        assert status["conditions"] == [RESIZING]


async def test_a_success_after_all_takes_a_refusal_back() -> None:
    status = await ClaimWrites("NodeResizeInfeasible", error()).write(told("2Gi"))
    assert status == {"phase": "Bound", "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}


async def test_without_statuses_the_size_alone_counts() -> None:
    writes = ClaimWrites("", PENDING, OTHER)
    writes.put({"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": [PENDING, OTHER]})
    status = await writes.write(told("2Gi"))
    assert status == {"phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [OTHER]}


async def test_a_status_without_a_size_that_was_asked_for_is_not_finished_by_the_size_that_is_there() -> None:
    writes = ClaimWrites("")
    pending = {"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    writes.put(pending)
    assert await writes.write(told("1Gi")) == pending


async def test_another_cause_takes_the_place_of_the_first() -> None:
    status = await ClaimWrites("NodeResizeInProgress", error("first"), OTHER).write(told("1Gi", "", error("second")))
    assert status["conditions"] == [OTHER, error("second")]


async def test_the_same_cause_keeps_its_time() -> None:
    known = {**error(), "lastTransitionTime": "2020-01-01T00:00:00Z"}
    status = await ClaimWrites("NodeResizeInProgress", known).write(told("1Gi", "", error()))
    assert status["conditions"] == [known]


async def test_that_another_try_begins_takes_no_cause_away() -> None:
    status = await ClaimWrites("NodeResizePending", error()).write(told("1Gi", "NodeResizeInProgress"))
    assert status["conditions"] == [error()]


@pytest.mark.parametrize("asked", ["10Gi", None])
async def test_a_refusal_of_another_size_is_void(asked: str | None) -> None:
    writes = ClaimWrites("NodeResizePending", PENDING)
    status = await writes.write(told("1Gi", "NodeResizeInfeasible", error(), asked=asked))
    assert status["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
    assert status["conditions"] == [PENDING]


async def test_two_nodes_of_which_one_failed_do_not_undo_each_others_words() -> None:
    writes = ClaimWrites("", error(), capacity={"storage": "2Gi"})
    writes.closures.held.add(("n2", DATA))
    assert (await writes.write(told("2Gi", "", error())))["conditions"] == [error()]
    assert (await writes.write(told("2Gi"), node="n2"))["conditions"] == [error()]


@pytest.mark.parametrize(
    "fact",
    [told("2Gi", uid="another"), told("2Gi", uid=""), told("2Gi", volume="another"), {"status": told("2Gi")["status"]}],
)
async def test_a_fact_of_another_claim_or_volume_is_void(fact: Body) -> None:
    writes = ClaimWrites()
    await writes.write(fact)
    assert not any(asked.startswith("patch") for asked in writes.api.asked)


async def test_a_claim_that_names_no_volume_is_left_alone() -> None:
    writes = ClaimWrites()
    writes.put({"phase": "Pending"}, volume="")
    assert await writes.write(told("2Gi", volume="")) == {"phase": "Pending"}


async def test_a_claim_that_is_gone_and_a_fact_that_is_taken_back_are_nothing_to_do() -> None:
    writes = ClaimWrites()
    await writes.writer.write("n1", DATA, None)
    assert writes.api.asked == []
    writes.api.drop(DATA.kind, "data", "default")
    await writes.writer.write("n1", DATA, told("2Gi"))
    assert writes.api.asked == ["get persistentvolumeclaims data"]
    assert writes.writer.problems() == []


async def test_a_node_without_a_pod_that_uses_the_claim_has_no_say() -> None:
    writes = ClaimWrites()
    await writes.writer.write("n2", DATA, told("2Gi"))
    assert writes.api.asked == []


async def test_before_it_is_known_who_uses_the_claim_it_is_tried_again() -> None:
    writes = ClaimWrites()
    writes.closures.held, writes.closures.is_ready = set(), False
    with pytest.raises(KubeError):
        await writes.writer.write("n1", DATA, told("2Gi"))
    writes.closures.held, writes.closures.is_ready = {("n1", DATA)}, True
    assert (await writes.write(told("2Gi")))["capacity"] == {"storage": "2Gi"}
