"""An operation runs once, however often it is asked for: keys, joins, conflicts, kept results and the limit.

The rules are those at the head of `edge/operations.py`.
"""

import asyncio
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message

from common.csi import csi_pb2
from common.csi.methods import METHODS
from common.errors import CallError, Overloaded, VendorBroken
from common.status import Code, Status
from edge import operations as module
from edge.calls.controller_lease import ControllerLease
from edge.calls.driver_call import Outcome, Result, over_limit
from edge.operations import _RULES, PLAIN, Arguments, Key, Operations, identify, in_words
from tests.kit.waiting import settle

DRIVER = "d.example"
CONTROLLER = "/csi.v1.Controller/"
CREATE, DELETE = CONTROLLER + "CreateVolume", CONTROLLER + "DeleteVolume"
EXPAND, MODIFY = CONTROLLER + "ControllerExpandVolume", CONTROLLER + "ControllerModifyVolume"
PUBLISH, UNPUBLISH = CONTROLLER + "ControllerPublishVolume", CONTROLLER + "ControllerUnpublishVolume"

OK = Status(Code.OK)


class Operation(NamedTuple):
    """What a call asks for."""

    method: str
    key: Key
    about: str
    arguments: Arguments

    def __str__(self) -> str:
        return in_words(self.key)


def of(method: str, request: Message, *, driver: str = DRIVER) -> Operation:
    found = identify(driver, method, request.SerializeToString())
    assert found is not PLAIN
    return Operation(method, *found)


def create(name: str = "pvc-1", **fields: Any) -> Operation:
    return of(CREATE, csi_pb2.CreateVolumeRequest(name=name, **fields))


def delete(volume: str = "v1") -> Operation:
    return of(DELETE, csi_pb2.DeleteVolumeRequest(volume_id=volume))


def publish(volume: str = "v1", node: str = "n1") -> Operation:
    return of(PUBLISH, csi_pb2.ControllerPublishVolumeRequest(volume_id=volume, node_id=node))


def unpublish(volume: str = "v1", node: str = "n1") -> Operation:
    return of(UNPUBLISH, csi_pb2.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=node))


def expand(gib: int, volume: str = "v1") -> Operation:
    wanted = csi_pb2.CapacityRange(required_bytes=gib << 30)
    return of(EXPAND, csi_pb2.ControllerExpandVolumeRequest(volume_id=volume, capacity_range=wanted))


def modify(tier: str) -> Operation:
    return of(MODIFY, csi_pb2.ControllerModifyVolumeRequest(volume_id="v1", mutable_parameters={"tier": tier}))


def made(volume: str = "v1") -> Result:
    return Result(OK, csi_pb2.CreateVolumeResponse(volume={"volume_id": volume}).SerializeToString())


class Caller:
    """A call of the hub's (`edge.hub_call.HubCall`). If nobody waits for its result any more, it leaves."""

    def __init__(self, operations: Operations, operation: Operation, vendor: "Vendor") -> None:
        self.method, self.key, self.about, self.arguments = operation
        self.body: bytes | None = None
        self.step, self.joined, self.lease = 0, (), None
        self.result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.result.add_done_callback(self._left)
        self._operations, self._vendor = operations, vendor

    def send(self) -> None:
        self._vendor.start(self)

    def tell(self, outcome: Outcome) -> None:
        if self.result.done():  # cancelled in this turn of the loop
            return
        if isinstance(outcome, Exception):
            self.result.set_exception(outcome)
        else:
            self.body = outcome.body
            self.result.set_result(outcome._replace(message=None))

    def expire(self) -> None:
        self._vendor.cancel(self)
        self._operations.ended(self, over_limit(DRIVER, "n1", self._operations.limit_s))

    def lose(self) -> None:
        raise AssertionError("no lease of these tests ends")

    def end(self, outcome: Outcome) -> None:
        """The vendor's answer, or an error."""
        self._operations.ended(self, outcome)

    def _left(self, result: asyncio.Future[Result]) -> None:
        if result.cancelled():
            self._operations.leave(self)


class Vendor:
    """A vendor: counts what it is asked, and answers when and what a test says."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.waiting: list[Caller] = []

    def start(self, caller: Caller) -> None:
        """One call."""
        self.calls += 1
        self.waiting.append(caller)

    def cancel(self, caller: Caller) -> None:
        self.cancelled += 1
        self.waiting.remove(caller)

    def answer(self, outcome: Result | Exception) -> None:
        """Answer the oldest call."""
        if isinstance(outcome, Result) and outcome.body:
            outcome = outcome._replace(message=csi_pb2.CreateVolumeResponse.FromString(outcome.body))
        self.waiting.pop(0).end(outcome)


class Clock:
    """The loop's clock, moved by hand."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real = loop.time
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return self._real() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._ahead_s += seconds


@pytest.fixture
async def operations() -> Operations:
    return Operations(600.0, "n1")


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    clock = Clock(loop)
    monkeypatch.setattr(loop, "time", clock)
    return clock


async def begin(
    operations: Operations, operation: Operation, vendor: Vendor, *, lease: ControllerLease | None = None
) -> asyncio.Future[Result]:
    """A call, and what it waits for."""
    caller = Caller(operations, operation, vendor)
    operations.begin(caller, lease)
    await settle()
    return caller.result


async def finish(operations: Operations, operation: Operation, vendor: Vendor, result: Result | Exception) -> None:
    """An operation that begins and ends, and whose answer no caller has acknowledged."""
    task = await begin(operations, operation, vendor)
    vendor.answer(result)
    await asyncio.gather(task, return_exceptions=True)
    await settle()


def deliver(operations: Operations, operation: Operation, result: Result) -> None:
    """A call has this result, and its caller acknowledges it."""
    caller = Caller(operations, operation, Vendor())
    caller.body = result.body
    operations.delivered(caller)


async def is_kept(operations: Operations, operation: Operation) -> bool:
    """Whether a retry gets a result without the vendor."""
    vendor = Vendor()
    task = await begin(operations, operation, vendor)
    if vendor.calls:
        vendor.answer(Result(Status(Code.INTERNAL, "probe")))
    await task
    await settle()
    return not vendor.calls


# -------------------- what is an operation --------------------


def with_key(method: str) -> Message:
    """A request of the method with every field of its key set."""
    request = METHODS[method].request()
    for path in _RULES[method].key:
        inner: Any = request
        *parents, last = path.split(".")
        for parent in parents:
            inner = getattr(inner, parent)
        if last == "mutable_parameters":
            inner.mutable_parameters["iops"] = "3"
        else:
            setattr(inner, last, 7 if last == "required_bytes" else f"the {last}")
    return request


@pytest.mark.parametrize("method", _RULES)
def test_a_call_of_the_table_is_an_operation_with_its_drivers_and_its_keys_values(method: str) -> None:
    operation = of(method, with_key(method))
    assert operation.key[:2] == (DRIVER, method)
    assert len(operation.key) == 2 + len(_RULES[method].key)
    assert all(operation.key)
    assert operation.about == ("" if _RULES[method].makes else f"the {_RULES[method].key[0]}")


@pytest.mark.parametrize("method", _RULES)
def test_the_fields_of_the_table_are_in_the_contract(method: str) -> None:
    rule = _RULES[method]
    message: Any = METHODS[method].response.DESCRIPTOR
    for name in filter(None, rule.makes.split(".")):
        message = message.fields_by_name[name].message_type
    assert message is None or not rule.makes


@pytest.mark.parametrize("request_bytes", [b"", b"\xff\xff\xff", b"\n\xff"])
def test_a_request_without_a_key_is_left_to_the_vendor_to_refuse(request_bytes: bytes) -> None:
    assert identify(DRIVER, CREATE, request_bytes) is PLAIN


@pytest.mark.parametrize("how", ["requests", "the first one's digest", "large ones' digests"])
def test_secrets_make_no_difference_to_the_arguments_and_all_else_does(how: str) -> None:
    def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
        more = {"volume_content_source": {"volume": {"volume_id": "v" * (20_000 if how.startswith("large") else 1)}}}
        first, second = create(**one, **more).arguments, create(**other, **more).arguments
        if how == "the first one's digest":
            first.shrink()
        assert (first.request is None) == (how != "requests")
        return first.equals(second)

    assert same({}, {})
    assert same({"secrets": {"a": "1"}}, {"secrets": {"a": "2"}})
    assert not same({"parameters": {"a": "1"}}, {"parameters": {"a": "2"}})
    assert not same({"capacity_range": {"required_bytes": 1}}, {})


def test_parameters_are_a_hash_in_the_key_because_keys_are_shown() -> None:
    def modify(**parameters: str) -> Operation:
        request = csi_pb2.ControllerModifyVolumeRequest(volume_id="v1", mutable_parameters=parameters)
        return of(CONTROLLER + "ControllerModifyVolume", request)

    assert "hunter2" not in str(modify(token="hunter2"))
    assert modify(a="1", b="2").key == modify(b="2", a="1").key != modify(a="1").key


# -------------------- running and joining --------------------


@pytest.mark.parametrize(
    ("running", "asked"),
    [
        (unpublish(), publish()),
        (publish(), unpublish()),
        (expand(1), expand(2)),
        (modify("slow"), modify("fast")),
        (publish(), delete()),
        (expand(1), delete()),
    ],
)
async def test_under_a_lease_no_operation_begins_whose_answer_would_settle_one_that_runs(
    operations: Operations, vendor: Vendor, running: Operation, asked: Operation
) -> None:
    lease = ControllerLease(60.0)
    first = await begin(operations, running, vendor, lease=lease)
    with pytest.raises(CallError, match=f"{running} is under way") as error:
        await begin(operations, asked, vendor, lease=lease)
    assert str(error.value).startswith(str(asked))
    vendor.answer(Result(OK))
    await first
    second = await begin(operations, asked, vendor, lease=lease)
    vendor.answer(Result(OK))
    assert await second == Result(OK)


@pytest.mark.parametrize("other", [publish("v1", "n2"), unpublish("v1", "n2"), publish("v2"), expand(1), delete("v2")])
async def test_under_a_lease_any_other_operation_begins_beside_one_that_runs(
    operations: Operations, vendor: Vendor, other: Operation
) -> None:
    lease = ControllerLease(60.0)
    both = [await begin(operations, each, vendor, lease=lease) for each in (publish(), other)]
    assert vendor.calls == 2
    vendor.answer(Result(OK))
    vendor.answer(Result(OK))
    assert await asyncio.gather(*both) == [Result(OK)] * 2


async def test_an_error_that_no_joined_caller_waits_for_is_not_lost_in_the_loop(
    operations: Operations, vendor: Vendor
) -> None:
    """asyncio would say "exception was never retrieved", and a warning fails the test run."""
    first = await begin(operations, create(), vendor)
    joined = await begin(operations, create(), vendor)
    joined.cancel()
    vendor.answer(VendorBroken(DRIVER, "n1", "it died"))
    with pytest.raises(VendorBroken):
        await first
    await asyncio.gather(joined, return_exceptions=True)
    assert operations.under_way == []


async def test_a_fault_in_the_keeping_of_a_result_leaves_nobody_waiting(
    operations: Operations, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = [await begin(operations, create(), vendor) for _ in range(2)]
    monkeypatch.setattr(Operations, "_keep_success", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # which the client logs
        vendor.answer(made())
    assert [caller.result() for caller in callers] == [made(), made()]
    assert operations.under_way == []


async def test_an_operation_that_fails_as_it_begins_leaves_its_key_free(operations: Operations) -> None:
    vendor = Vendor()
    vendor.start = lambda caller: caller.end(VendorBroken(DRIVER, "n1", "no such socket"))
    with pytest.raises(VendorBroken):
        await (await begin(operations, create(), vendor))
    assert operations.under_way == []
    await operations.drain()


async def test_an_operation_that_a_bug_keeps_from_beginning_leaves_its_key_free(
    operations: Operations, vendor: Vendor
) -> None:
    broken = Vendor()
    broken.waiting = None
    with pytest.raises(AttributeError):
        await begin(operations, create(), broken)
    assert operations.under_way == []
    assert (await begin(operations, create(parameters={"other": "arguments"}), vendor)).done() is False


# -------------------- the limits --------------------


async def test_beyond_its_limit_no_operation_begins_and_a_retry_joins_still(vendor: Vendor) -> None:
    operations = Operations(600.0, "n1", most=2)
    callers = [await begin(operations, create(f"pvc-{number}"), vendor) for number in range(2)]
    with pytest.raises(Overloaded, match=r"agent of edge node n1 has 2 calls under way.*--max-operations"):
        await begin(operations, create("pvc-2"), vendor)
    retry = await begin(operations, create("pvc-0"), vendor)
    vendor.answer(made())
    assert await retry == made()
    callers.append(await begin(operations, create("pvc-2"), vendor))
    for _ in range(2):
        vendor.answer(made())
    await asyncio.gather(*callers)
    assert vendor.calls == 3


async def test_a_driver_with_many_operations_leaves_places_to_the_other_drivers_of_the_node(vendor: Vendor) -> None:
    operations = Operations(600.0, "n1", most=8, drivers=lambda: 2)
    callers = [await begin(operations, create(f"pvc-{number}"), vendor) for number in range(6)]
    with pytest.raises(Overloaded, match=r"driver d\.example on edge node n1 has 6 calls under way"):
        await begin(operations, create("pvc-6"), vendor)
    request = csi_pb2.CreateVolumeRequest(name="pvc-0")
    callers.append(await begin(operations, of(CREATE, request, driver="other.example"), vendor))
    for _ in range(7):
        vendor.answer(made())
    await asyncio.gather(*callers)


async def test_past_its_limit_an_operation_is_cancelled_and_every_caller_told(vendor: Vendor) -> None:
    operations = Operations(0.0, "n1")
    tasks = [await begin(operations, create(), vendor) for _ in range(2)]
    for task in tasks:
        with pytest.raises(CallError, match=r"did not finish within --operation-limit \(0 s\)"):
            await task
    await settle()
    assert vendor.cancelled == vendor.calls
    assert operations.under_way == []


async def test_one_timer_serves_all_operations_and_each_has_its_whole_time(vendor: Vendor, clock: Clock) -> None:
    operations = Operations(600.0, "n1")
    first = await begin(operations, create("pvc-1"), vendor)
    timer = operations._timer
    clock.advance(400)
    second = await begin(operations, create("pvc-2"), vendor)
    ended = await begin(operations, create("pvc-3"), vendor)
    vendor.waiting.pop().end(made())
    assert operations._timer is timer
    clock.advance(300)
    operations._expire_due()
    assert (first.done(), second.done(), ended.done()) == (True, False, True)
    assert "did not finish within --operation-limit" in str(first.exception())
    clock.advance(300)
    operations._expire_due()
    assert "did not finish within --operation-limit" in str(second.exception())
    assert vendor.cancelled == 2
    assert operations._timer is None


# -------------------- kept results --------------------


async def test_a_success_that_nobody_acknowledged_is_kept_for_the_retry(operations: Operations, vendor: Vendor) -> None:
    await finish(operations, create(), vendor, made())
    assert await (await begin(operations, create(secrets={"rotated": "yes"}), vendor)) == made()
    assert vendor.calls == 1


async def test_what_is_delivered_twice_or_was_never_kept_is_no_error(operations: Operations) -> None:
    for _ in range(2):
        deliver(operations, create(), made())


async def test_what_is_delivered_late_does_not_drop_a_later_result_of_the_same_key(
    operations: Operations, vendor: Vendor
) -> None:
    await finish(operations, create(), vendor, made())
    deliver(operations, create(), made())
    assert await is_kept(operations, create())


@pytest.mark.parametrize("error", [Result(Status(Code.INTERNAL, "no")), VendorBroken(DRIVER, "n1", "it died")])
async def test_an_error_is_never_kept(operations: Operations, vendor: Vendor, error: Result | Exception) -> None:
    await finish(operations, create(), vendor, error)
    assert not await is_kept(operations, create())


async def test_a_created_volume_is_not_told_again_once_its_delete_began(operations: Operations, vendor: Vendor) -> None:
    await finish(operations, create(), vendor, made())
    deleting = await begin(operations, delete(), vendor)
    assert not await is_kept(operations, create())
    vendor.answer(Result(OK, b""))
    await deleting


async def test_what_happens_to_other_objects_forgets_nothing(operations: Operations, vendor: Vendor) -> None:
    await finish(operations, create("pvc-1"), vendor, made("v1"))
    await finish(operations, create("pvc-2"), vendor, made("v2"))
    await finish(operations, delete("v2"), vendor, Result(OK, b""))
    assert await is_kept(operations, create("pvc-1"))


async def test_a_success_is_not_kept_for_ever(operations: Operations, vendor: Vendor, clock: Clock) -> None:
    await finish(operations, create(), vendor, made())
    clock.advance(module._KEPT_S - 60)
    assert await is_kept(operations, create())
    clock.advance(120)
    assert not await is_kept(operations, create())


async def test_the_old_ones_leave_the_memory_when_a_new_one_comes(
    operations: Operations, vendor: Vendor, clock: Clock
) -> None:
    for number in range(5):
        await finish(operations, create(f"old-{number}"), vendor, made(f"old-{number}"))
    clock.advance(module._KEPT_S + 60)
    await finish(operations, create("new"), vendor, made("new"))
    assert [in_words(key) for key in operations._kept] == ["CreateVolume new"]


async def test_a_success_that_is_kept_anew_is_the_newest(operations: Operations, vendor: Vendor, clock: Clock) -> None:
    await finish(operations, create("a"), vendor, made("a"))
    await finish(operations, create("b"), vendor, made("b"))
    clock.advance(60)
    await finish(operations, create("a", parameters={"other": "arguments"}), vendor, made("a2"))
    assert [in_words(key) for key in operations._kept] == ["CreateVolume b", "CreateVolume a"]


async def test_beyond_the_limit_the_oldest_success_goes(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.operations.MOST_KEPT", 3)
    operations = Operations(600.0, "n1")
    for number in range(4):
        await finish(operations, create(f"pvc-{number}"), vendor, made(f"v{number}"))
    assert [await is_kept(operations, create(f"pvc-{number}")) for number in (3, 2, 1, 0)] == [True, True, True, False]


async def test_beyond_the_limit_of_bytes_the_oldest_success_goes(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.operations.MOST_KEPT_BYTES", 3 * len(made("v0").body or b""))
    operations = Operations(600.0, "n1")
    for number in range(4):
        await finish(operations, create(f"pvc-{number}"), vendor, made(f"v{number}"))
    assert [await is_kept(operations, create(f"pvc-{number}")) for number in (3, 2, 1, 0)] == [True, True, True, False]
    deliver(operations, create("pvc-3"), operations._kept[create("pvc-3").key].result)
    await finish(operations, create("pvc-4"), vendor, made("v4"))
    assert await is_kept(operations, create("pvc-1"))


async def test_a_create_during_which_a_delete_of_its_volume_failed_is_not_kept(operations: Operations) -> None:
    """The delete began first, so that only its end tells: it may have deleted what the create found."""
    deleting, creating = Vendor(), Vendor()
    first = await begin(operations, delete("v1"), deleting)
    second = await begin(operations, create(), creating)
    deleting.answer(VendorBroken(DRIVER, "n1", "it died"))
    await asyncio.gather(first, return_exceptions=True)
    creating.answer(made("v1"))
    await second
    assert not await is_kept(operations, create())
