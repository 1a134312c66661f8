"""A write queue: every key is written in its newest state, by one task at a time, and tried again until it is."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from cloud.kube.client import KubeError
from cloud.kube.work_queue import WorkQueue
from tests.kit.waiting import settle, until

DOWN = KubeError("patch Node n1", 0, "", "nobody answers")


class QueuedWrites:
    """A state to be written, where it is written to, and what goes wrong on the way."""

    def __init__(self) -> None:
        self.truth: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.writes: Counter[str] = Counter()
        self.failures: list[Exception] = []
        self.errors: dict[str, Exception] = {}  # by key: why it cannot be written
        self.gate = asyncio.Event()
        self.gate.set()
        self.busy: Counter[str] = Counter()
        self.most = 0
        self.pauses: list[float] = []
        self.again = asyncio.Event()
        self.again.set()
        self.again_s: float | None = None
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.queue = WorkQueue(self._write, pause=self._pause, later=lambda *due: self.later.append(due))

    def put(self, key: str, value: int) -> None:
        self.truth[key] = value
        self.queue.add(key)

    async def _write(self, key: str) -> float | None:
        value = self.truth[key]
        self.writes[key] += 1
        self.busy[key] += 1
        self.most = max(self.most, self.busy.total())
        assert self.busy[key] == 1
        try:
            await self.gate.wait()
            if self.failures:
                raise self.failures.pop(0)
            if key in self.errors:
                raise self.errors[key]
            self.written[key] = value
            return self.again_s
        finally:
            self.busy[key] -= 1

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)
        await self.again.wait()

    async def once_more(self) -> None:
        """What has failed is tried once more."""
        again, self.again = self.again, asyncio.Event()
        again.set()
        await settle()


@pytest.fixture
async def queued() -> AsyncIterator[QueuedWrites]:
    made = QueuedWrites()
    yield made
    made.gate.set()
    await made.queue.close()


async def test_of_many_changes_while_it_waits_the_newest_is_written(queued: QueuedWrites) -> None:
    queued.gate.clear()
    queued.put("a", 1)
    await settle()
    for value in range(2, 10):
        queued.put("a", value)
    queued.gate.set()
    await settle()
    assert queued.written == {"a": 9}
    assert queued.writes["a"] == 2


async def test_what_fails_is_named_and_tried_again_with_growing_distance(queued: QueuedWrites) -> None:
    queued.failures = [DOWN] * 10
    queued.put("a", 1)
    while queued.failures:
        assert queued.written == {}
        await asyncio.sleep(0)
    assert queued.queue.problems() == ["Kubernetes: patch Node n1: nobody answers"]
    await settle()
    assert queued.written == {"a": 1}
    assert queued.queue.problems() == []
    assert queued.pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_a_bug_in_one_key_holds_up_no_other(queued: QueuedWrites) -> None:
    queued.failures = [ZeroDivisionError()]
    queued.put("a", 1)
    queued.put("b", 1)
    await settle()
    assert queued.written == {"a": 1, "b": 1}


async def test_keys_are_written_side_by_side_and_not_all_at_once(queued: QueuedWrites) -> None:
    queued.gate.clear()
    for number in range(30):
        queued.put(f"k{number}", number)
    await settle()
    assert queued.most == 8
    queued.gate.set()
    await settle()
    assert len(queued.written) == 30


async def test_what_is_discarded_is_not_written_and_leaves_its_place_to_others(queued: QueuedWrites) -> None:
    queued.gate.clear()
    for number in range(10):
        queued.put(f"k{number}", number)
    await settle()
    for number in range(9):
        queued.queue.discard(f"k{number}")
    queued.put("k0", 7)  # it counts again
    await settle()
    assert sorted(name for name, busy in queued.busy.items() if busy) == ["k0", "k9"]
    queued.gate.set()
    await settle()
    assert queued.written == {"k9": 9, "k0": 7}


async def test_what_is_discarded_is_no_problem_any_more(queued: QueuedWrites) -> None:
    queued.failures = [DOWN] * 1000
    queued.put("a", 1)
    await until(queued.queue.problems)
    queued.queue.discard("a")
    queued.queue.discard("never added")
    queued.failures = []
    await settle()
    assert (queued.queue.problems(), queued.written) == ([], {})


@pytest.mark.parametrize("fails", [False, True], ids=["well", "with an error"])
async def test_work_may_discard_its_own_key_and_add_it_again(*, fails: bool) -> None:
    """As when what was read makes one closure release an object and another one use it."""
    worked, later = list[str](), list[object]()

    async def work(key: str) -> float:
        worked.append(key)
        if len(worked) < 3:
            queue.discard(key)
            if len(worked) == 1:
                queue.add(key)
            if fails:
                raise DOWN
        return 60.0

    queue = WorkQueue(work, later=lambda *due: later.append(due))
    queue.add("a")
    await settle()
    assert (worked, later, queue.problems()) == (["a", "a"], [], [])
    queue.add("a")
    await settle()
    assert (len(worked), len(later)) == (3, 1)
    await queue.close()


async def test_after_its_end_nothing_is_tried_any_more(queued: QueuedWrites) -> None:
    queued.gate.clear()
    queued.put("a", 1)
    await settle()
    await queued.queue.close()
    assert queued.busy.total() == 0
    assert queued.written == {}


async def test_what_is_due_again_is_looked_at_again_then_and_may_be_added_before(queued: QueuedWrites) -> None:
    queued.again_s = 120.0
    queued.put("a", 1)
    await settle()
    ((after_s, again),) = queued.later
    assert after_s == 120.0
    queued.again_s = None
    queued.put("a", 2)
    await settle()
    assert queued.written == {"a": 2}
    again()
    await settle()
    assert queued.writes["a"] == 3
    assert len(queued.later) == 1


async def test_a_key_that_is_added_again_and_again_is_due_once_at_the_earliest_time(queued: QueuedWrites) -> None:
    for again_s in [120.0] * 50 + [60.0]:
        queued.again_s = again_s
        queued.put("a", 1)
        await settle()
    (late, _), (early, again) = queued.later
    assert (late, early) == (120.0, 60.0)
    queued.queue.discard("a")
    again()
    await settle()
    assert queued.writes["a"] == 51


async def test_a_queue_that_is_closed_looks_at_nothing_again(queued: QueuedWrites) -> None:
    queued.again_s = 120.0
    queued.put("a", 1)
    await settle()
    await queued.queue.close()
    queued.later[0][1]()
    await settle()
    assert queued.writes["a"] == 1


@pytest.fixture
def outage(queued: QueuedWrites) -> QueuedWrites:
    """Tries are made when a test allows them."""
    queued.again.clear()
    return queued


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.levelname != "DEBUG"]


async def test_of_many_that_fail_for_one_reason_the_first_and_their_number_are_told(
    outage: QueuedWrites, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    names = [f"n{number}" for number in range(40)]
    outage.errors = {name: KubeError(f"patch Node {name}", 0, "", "nobody answers") for name in names}
    for name in names:
        outage.put(name, 1)
    await settle()
    assert outage.queue.problems() == [
        "not written yet: 40 objects, the first: Kubernetes: patch Node n0: nobody answers"
    ]
    assert lines(caplog) == ["not written yet: Kubernetes: patch Node n0: nobody answers"]
    caplog.clear()
    outage.errors = {"n7": outage.errors["n7"]}
    await outage.once_more()
    assert outage.queue.problems() == ["Kubernetes: patch Node n7: nobody answers"]
    assert lines(caplog) == []
    outage.errors = {}
    await outage.once_more()
    assert outage.queue.problems() == []
    assert lines(caplog) == ["written at last: n7"]


async def test_what_fails_for_another_reason_is_told_by_itself(
    outage: QueuedWrites, caplog: pytest.LogCaptureFixture
) -> None:
    refused = KubeError("patch Node b", 403, "Forbidden", "may not")
    outage.errors = {"a": KubeError("patch Node a", 503, "", "away"), "b": refused}
    outage.put("a", 1)
    outage.put("b", 1)
    await settle()
    assert outage.queue.problems() == ["Kubernetes: patch Node a: away", "Kubernetes: patch Node b: may not"]
    assert len(lines(caplog)) == 2
    outage.errors["a"] = KubeError("patch Node a", 403, "Forbidden", "may not")
    await outage.once_more()
    assert outage.queue.problems() == ["not written yet: 2 objects, the first: Kubernetes: patch Node b: may not"]
    outage.queue.discard("b")
    assert outage.queue.problems() == ["Kubernetes: patch Node a: may not"]


async def test_each_object_that_kubernetes_refuses_for_what_stands_in_it_is_told_by_itself(
    outage: QueuedWrites, caplog: pytest.LogCaptureFixture
) -> None:
    outage.errors = {name: KubeError(f"patch Node {name}", 422, "Invalid", f"label of {name}") for name in ("a", "b")}
    outage.put("a", 1)
    outage.put("b", 1)
    await settle()
    told = ["Kubernetes: patch Node a: label of a", "Kubernetes: patch Node b: label of b"]
    assert outage.queue.problems() == told
    assert lines(caplog) == [f"not written yet: {text}" for text in told]
    outage.errors.pop("a")
    await outage.once_more()
    assert outage.queue.problems() == told[1:]


async def test_of_one_bug_in_many_keys_one_traceback_is_logged(
    outage: QueuedWrites, caplog: pytest.LogCaptureFixture
) -> None:
    outage.errors = {name: ZeroDivisionError() for name in "abc"}
    for name in "abc":
        outage.put(name, 1)
    await settle()
    await outage.once_more()
    assert len([it for it in caplog.records if it.exc_info]) == 1
    (problem,) = outage.queue.problems()
    assert problem.startswith("not written yet: 3 objects, the first: writing a failed because of a bug in CSI Bridge")
