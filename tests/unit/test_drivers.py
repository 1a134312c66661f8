"""What an agent asks a vendor's driver, and what it makes of the answers. The connection is a fake one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from common.csi import csi_pb2
from common.csi.reports import GET_PLUGIN_INFO, NODE_GET_INFO, REPORTED_METHODS, Answer
from common.errors import VendorBroken
from common.relay.errors import VendorConnectionError, VendorUnreachable
from common.status import Code, Status
from edge.calls.drivers import Driver
from tests.kit.waiting import until

SOCKET = Path("/run/d/csi.sock")
CAPACITY = "/csi.v1.Controller/GetCapacity"
ALLOCATED = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
CAPABILITIES = "/csi.v1.Controller/ControllerGetCapabilities"
OK = Status(Code.OK)


class FakeStream:
    """A call that a coroutine iterates over."""

    def __init__(self, status: Status, messages: list[bytes], error: Exception | None) -> None:
        self.status = status
        self.cancelled = False
        self._messages, self._error = messages, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for message in self._messages:
            yield message
        if self._error is not None:
            raise self._error

    async def unary(self) -> tuple[Status, bytes | None]:
        if self._error is not None:
            raise self._error
        return self.status, None if self.status.code else self._messages[0]

    def cancel(self) -> None:
        self.cancelled = True


class FakeChannel:
    """A connection to a driver called d.example that has a controller and a node part."""

    def __init__(self) -> None:
        self.connected = False
        self.checks = 0
        self.asked: list[str] = []
        self.asked_of: list[str] = []
        self.streams: list[FakeStream] = []
        self.answers: dict[str, tuple[Status, list[bytes], VendorConnectionError | None]] = {}
        self.call_itself("d.example")

    def check_socket(self) -> None:
        self.checks += 1

    def call_itself(self, name: str) -> None:
        self.answer(GET_PLUGIN_INFO, named(name))

    def answer(self, method: str, *messages: bytes) -> None:
        self.answers[method] = (OK, list(messages), None)

    def refuse(self, method: str, code: int, message: str = "") -> None:
        self.answers[method] = (Status(code, message), [], None)

    def fail(self, method: str, error: VendorConnectionError, *messages: bytes) -> None:
        self.answers[method] = (OK, list(messages), error)

    def call(
        self,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None = None,
        driver: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> FakeStream:
        assert may_begin is None or may_begin()
        self.asked.append(method)
        self.asked_of.append(driver)
        self.streams.append(FakeStream(*self.answers.get(method, (OK, [b""], None))))
        return self.streams[-1]


class OneDriver:
    def __init__(self) -> None:
        self.changes = 0
        self.channel = FakeChannel()
        self.driver = Driver(
            SOCKET,
            "n1",
            max_message_bytes=1 << 20,
            changed=self._changed,
            channel=self.channel,  # type: ignore[arg-type]  # what Driver needs of a Channel
        )

    async def ask(self) -> None:
        await self.driver._ask()

    async def stream(self, method: str = CAPACITY) -> list[bytes | Status]:
        return [item async for item in self.driver.stream(method, b"", timeout_s=1.0)]

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
async def one() -> OneDriver:
    return OneDriver()


def unreachable() -> VendorUnreachable:
    return VendorUnreachable(str(SOCKET), "no such socket")


# -------------------- what it says of itself --------------------


async def test_a_driver_nobody_has_asked_is_called_by_its_socket(one: OneDriver) -> None:
    assert one.driver.name == str(SOCKET)
    assert one.driver.trouble == "not asked yet"
    assert not one.driver.asked


@pytest.mark.parametrize("code", [Code.OK, Code.UNAVAILABLE])
async def test_that_a_driver_was_asked_for_the_first_time_is_told_however_that_ended(
    one: OneDriver, code: Code
) -> None:
    if code is not Code.OK:
        one.channel.refuse(CAPABILITIES, code, "starting")
    await one.ask()
    await one.ask()
    assert (one.driver.asked, one.changes) == (True, 1)


async def test_a_new_file_at_the_socket_is_told_although_the_driver_answers_the_same(
    one: OneDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may have given this socket up, because its driver had left it."""
    await one.ask()
    monkeypatch.setattr("edge.calls.drivers.file_id", lambda _path: (1, 2, 3))
    await one.ask()
    assert one.changes == 2


async def test_a_driver_is_asked_for_all_that_is_reported_and_known_by_its_own_name(one: OneDriver) -> None:
    await one.ask()
    assert one.channel.asked == list(REPORTED_METHODS)
    assert one.driver.report is not None
    assert (one.driver.report.driver, one.driver.report.node) == ("d.example", "n1")
    assert one.driver.report.answers.keys() == set(REPORTED_METHODS)
    assert (one.driver.name, one.driver.trouble, one.changes) == ("d.example", "", 1)


async def test_what_a_driver_does_not_implement_is_reported_in_its_own_words(one: OneDriver) -> None:
    one.channel.refuse(CAPABILITIES, Code.UNIMPLEMENTED, "no controller")
    await one.ask()
    assert one.driver.report is not None
    assert one.driver.report.answers[CAPABILITIES] == Answer(Code.UNIMPLEMENTED, "no controller")


async def test_a_passing_trouble_is_no_report(one: OneDriver) -> None:
    one.channel.refuse(CAPABILITIES, Code.UNAVAILABLE, "starting")
    await one.ask()
    assert (one.driver.report, one.driver.trouble) == (None, f"it answered {CAPABILITIES} with UNAVAILABLE")


async def test_a_node_that_cannot_tell_its_id_yet_can_have_controller_calls(one: OneDriver) -> None:
    one.channel.refuse(NODE_GET_INFO, Code.UNAVAILABLE, "no metadata service")
    await one.ask()
    assert one.driver.report is not None
    assert NODE_GET_INFO not in one.driver.report.answers


async def test_a_driver_with_one_odd_answer_is_reported_without_it(one: OneDriver) -> None:
    odd = "/csi.v1.GroupController/GroupControllerGetCapabilities"
    one.channel.refuse(odd, Code.UNKNOWN, "panic")
    await one.ask()
    assert one.driver.report is not None
    assert one.driver.report.answers.keys() == set(REPORTED_METHODS) - {odd}


def named(name: str) -> bytes:
    return csi_pb2.GetPluginInfoResponse(name=name, vendor_version="1").SerializeToString()


@pytest.mark.parametrize(
    ("status", "messages", "why"),
    [
        (OK, [b""], "it gives no name"),
        (OK, [named("")], "it gives no name"),
        (OK, [named("d" * 254)], "it gives a name of 254 characters; CSI allows 63"),
        (OK, [b"\xff\xff"], "does not parse"),
        (Status(Code.UNIMPLEMENTED), [], "it does not give its name: it answered GetPluginInfo with UNIMPLEMENTED"),
    ],
)
async def test_a_driver_that_gives_no_usable_name_is_a_trouble(
    one: OneDriver, status: Status, messages: list[bytes], why: str
) -> None:
    one.channel.answers[GET_PLUGIN_INFO] = (status, messages, None)
    await one.ask()
    assert one.driver.report is None
    assert why in one.driver.trouble


async def test_everything_is_asked_of_the_driver_that_gave_the_name(one: OneDriver) -> None:
    await one.ask()
    assert one.channel.asked_of == ["", *["d.example"] * (len(REPORTED_METHODS) - 1)]


async def test_a_driver_that_could_not_answer_everything_is_asked_again_soon(one: OneDriver) -> None:
    await one.ask()
    patient_s = one.driver._ask_again_s()
    one.channel.refuse(NODE_GET_INFO, Code.UNAVAILABLE, "no metadata service")
    await one.ask()
    soon_s = one.driver._ask_again_s()
    one.channel.refuse(GET_PLUGIN_INFO, Code.UNAVAILABLE)
    await one.ask()
    assert one.driver._ask_again_s() < soon_s < patient_s


async def test_an_answer_that_does_not_parse_is_a_trouble(one: OneDriver) -> None:
    one.channel.answer(CAPABILITIES, b"\xff\xff")
    await one.ask()
    assert f"its answer to {CAPABILITIES} does not parse" in one.driver.trouble


async def test_what_kubernetes_keeps_of_a_node_is_asked_of_the_driver_that_is_there_now(one: OneDriver) -> None:
    """A kubelet asks once for each registration, and a replaced driver may go on."""
    await one.driver.node_info(b"", timeout_s=1.0, to="", announced=lambda: False)
    assert one.channel.checks == 1


async def test_that_a_driver_is_away_and_back_is_told_once_each(one: OneDriver) -> None:
    await one.ask()
    one.channel.fail(GET_PLUGIN_INFO, unreachable())
    await one.ask()
    await one.ask()
    assert "cannot connect to unix:///run/d/csi.sock: no such socket" in one.driver.away
    assert (one.driver.name, one.changes) == ("d.example", 2)
    one.channel.call_itself("d.example")
    await one.ask()
    assert (one.driver.trouble, one.driver.away, one.changes) == ("", "", 3)


async def test_a_driver_whose_socket_is_another_one_or_whose_connection_ends_is_asked_at_once(
    one: OneDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed driver leaves its file; a replaced one may go on. The next regular question is a minute away."""
    monkeypatch.setattr("edge.calls.drivers._LOOK_S", 0.001)
    files = [(1, 1, 1)]
    monkeypatch.setattr("edge.calls.drivers.file_id", lambda _path: files[-1])
    one.channel.connected = True
    watching = asyncio.create_task(one.driver.watch())
    await until(lambda: one.driver.asked)
    assert len(one.channel.asked) == len(REPORTED_METHODS)
    checks = one.channel.checks
    await until(lambda: one.channel.checks > checks)  # each time, so that its calls go to the new driver
    files.append((1, 2, 1))
    await until(lambda: len(one.channel.asked) == 2 * len(REPORTED_METHODS))
    one.channel.connected = False
    one.channel.fail(GET_PLUGIN_INFO, unreachable())
    await until(lambda: one.driver.away)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_socket_is_looked_at_while_its_driver_hangs_at_a_question(
    one: OneDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor may have the socket already, and its calls should not wait."""
    monkeypatch.setattr("edge.calls.drivers._LOOK_S", 0.001)

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(one.driver, "unary", hang)
    watching = asyncio.create_task(one.driver.watch())
    await until(lambda: one.channel.checks > 2)
    assert not one.driver.asked
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_driver_that_answers_with_an_error_is_not_away(one: OneDriver) -> None:
    await one.ask()
    one.channel.refuse(GET_PLUGIN_INFO, Code.UNAVAILABLE, "busy")
    await one.ask()
    assert one.driver.trouble
    assert (one.driver.away, one.changes) == ("", 1)


# -------------------- calls --------------------


async def test_a_call_for_a_driver_that_is_no_longer_there_blames_it_by_its_own_name(one: OneDriver) -> None:
    await one.ask()
    one.channel.fail(CAPACITY, VendorConnectionError("its socket now belongs to driver e.example", sent=False))
    with pytest.raises(
        VendorBroken,
        match=r"driver d.example on edge node n1: its socket now belongs to driver e.example",
    ):
        await one.driver.unary(CAPACITY, b"", timeout_s=1.0, to="d.example")


@pytest.mark.parametrize("size", [2, 300_000])
async def test_an_answer_that_does_not_parse_is_no_answer_however_large(one: OneDriver, size: int) -> None:
    one.channel.answer(CAPACITY, b"\xff" * size)
    for made in (one.driver.unary(CAPACITY, b"", timeout_s=1.0), one.stream()):
        with pytest.raises(VendorBroken, match=r"its answer to /csi.v1.Controller/GetCapacity does not parse"):
            await made


async def test_a_stream_that_is_closed_early_cancels_the_call(one: OneDriver) -> None:
    one.channel.answer(ALLOCATED, b"", b"")
    answers = one.driver.stream(ALLOCATED, b"", timeout_s=1.0)
    assert await anext(answers) == b""
    assert not one.channel.streams[0].cancelled
    await answers.aclose()
    assert one.channel.streams[0].cancelled


@pytest.mark.parametrize("size", [2, 300_000])
async def test_an_answer_comes_unchanged(one: OneDriver, size: int) -> None:
    body = csi_pb2.GetCapacityResponse(available_capacity=7).SerializeToString()
    body += b"\xfa\x01" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + b"x" * size
    one.channel.answer(CAPACITY, body)
    assert await one.driver.unary(CAPACITY, b"", timeout_s=1.0) == (OK, body)
