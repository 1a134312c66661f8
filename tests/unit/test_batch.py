"""A batch: what one read causes leaves in one write of each socket; a call that comes alone is written at once."""

import pytest

from common.links.transport import WebSocket
from common.messages import Kind, Open
from common.net.endpoint import hub_endpoint
from common.observe.version import introduce
from common.relay.server import ServerCall
from common.session import batch
from common.session.limits import Limits
from common.session.link import Link, Side
from common.session.receiver import Receiver
from common.status import Code, Status
from tests.kit.http2 import REQUEST, Serving, Wire, fields, message, wire
from tests.kit.linked import Peer
from tests.kit.waiting import settle

OK = Status(Code.OK)


class Calls(Peer):
    """Answers each call at once."""

    def called(self, link: Link, frame: Open, _deadline: float | None, request: bytes) -> Receiver:
        link.end(frame.stream, OK, request)
        if request == b"bye":
            link.goodbye("stopped", "the test says so")
        return Receiver()


class Answers(Receiver):
    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def ended(self, _status: Status, message: bytes | None) -> None:
        self.seen.append(message)


class Pair:
    """Two WebSockets and the bytes between them, both greeted."""

    def __init__(self) -> None:
        dialler = Side(introduce("driver", "d", instance="i"), Peer(accepts=False), Limits())
        self.client = WebSocket(dialler, to=hub_endpoint("ws://h:1"))
        self.server = WebSocket(Side(introduce("hub", "hub", instance="h"), Calls(), Limits()))
        self.ways = Wire(self.client), Wire(self.server)

    def pass_on(self) -> list[int]:
        """Move the bytes that were written, as one read each way. Returns the number of writes of client and server."""
        counts = [len(way.writes) for way in self.ways]
        said = [b"".join(way.writes) for way in self.ways]
        for way in self.ways:
            way.writes.clear()
        for data, reader in zip(said, (self.server, self.client), strict=True):
            if data:
                reader.data_received(data)
        return counts

    async def greeted(self) -> Link:
        for _ in range(4):
            self.pass_on()
            await settle()
        return await self.client.opened()

    def start(self, link: Link, receiver: Receiver, *requests: bytes) -> None:
        for request in requests:
            link.start(receiver, Kind.CALL, request, subject="d", method="/a/B", is_unary=True)


async def test_the_answers_to_the_calls_of_one_read_leave_in_one_write() -> None:
    pair, answers = Pair(), Answers()
    pair.start(await pair.greeted(), answers, b"1", b"2", b"3")
    assert pair.pass_on() == [3, 0]
    assert pair.pass_on() == [0, 1]
    assert answers.seen == [b"1", b"2", b"3"]


async def test_the_answer_to_a_call_that_comes_alone_is_written_before_the_read_returns() -> None:
    pair, answers = Pair(), Answers()
    pair.start(await pair.greeted(), answers, b"1")
    assert pair.pass_on() == [1, 0]
    assert pair.ways[1].writes


async def test_what_a_batch_has_kept_is_written_before_a_socket_closes() -> None:
    pair, answers = Pair(), Answers()
    pair.start(await pair.greeted(), answers, b"1", b"bye", b"3")
    pair.pass_on()
    await settle()
    pair.pass_on()
    assert answers.seen == [b"1", b"bye"]


def request(number: int) -> bytes:
    return wire(1, 4, number, fields(*REQUEST.items())) + wire(0, 1, number, message(b"x"))


async def test_a_server_answers_the_requests_of_one_read_in_one_write() -> None:
    serving = Serving(lambda call: call.answer(OK, call.request)).begun()
    serving.receive(request(1))
    serving.wire.writes.clear()
    serving.receive(request(3), request(5), request(7))
    assert len(serving.wire.writes) == 1
    assert [frame[2] for frame in serving.wire.frames()] == [3, 3, 3, 5, 5, 5, 7, 7, 7]


async def test_an_answer_of_a_batch_leaves_before_its_connection_ends() -> None:
    serving = Serving(lambda call: call.answer(OK, call.request)).begun()
    serving.receive(request(1))
    serving.wire.writes.clear()
    serving.receive(request(3), request(5), wire(1, 4, 4, b""))  # a stream of a server's
    assert [frame[2] for frame in serving.wire.frames()] == [3, 3, 3, 5, 5, 5, 0]


async def test_a_handler_that_fails_does_not_keep_the_batch() -> None:
    def handle(call: ServerCall) -> None:
        raise KeyboardInterrupt

    serving = Serving(handle).begun()
    with pytest.raises(KeyboardInterrupt):
        serving.receive(request(1), request(3))
    assert batch.begin()
    batch.end()


def test_a_writer_that_fails_keeps_no_other_from_writing() -> None:
    written = []

    def fail() -> None:
        raise RuntimeError("its socket is gone")

    assert batch.begin()
    batch.current.writers = [lambda: written.append(1), fail, lambda: written.append(2)]
    with pytest.raises(RuntimeError, match="its socket is gone"):
        batch.end()
    assert written == [1, 2]
    assert batch.begin()
    batch.end()
