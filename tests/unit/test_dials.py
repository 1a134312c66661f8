"""Where a hub listens, and a link inside one process (test_link.py, which runs over it too, has what links do)."""

import asyncio
from pathlib import Path

import pytest

from common.errors import HandshakeRefused, MessageTooLarge
from common.links.local_dial import LocalPort
from common.messages import Kind, Open, Reason
from common.net.endpoint import Endpoint, hub_endpoint, is_loopback
from common.net.peer import Peer as Identity
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, Side
from common.session.receiver import Receiver
from common.status import Code, Status
from tests.kit.linked import Peer, local_pair
from tests.kit.waiting import settle


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:///run/hub.sock", Endpoint("unix:///run/hub.sock", path=Path("/run/hub.sock"))),
        ("unix:/run/hub.sock", Endpoint("unix:/run/hub.sock", path=Path("/run/hub.sock"))),
        ("/run/hub.sock", Endpoint("/run/hub.sock", path=Path("/run/hub.sock"))),
        ("wss://hub.example:10350", Endpoint("wss://hub.example:10350", host="hub.example", port=10350, tls=True)),
        ("wss://hub.example:10350/", Endpoint("wss://hub.example:10350/", host="hub.example", port=10350, tls=True)),
        ("ws://127.0.0.1:1", Endpoint("ws://127.0.0.1:1", host="127.0.0.1", port=1)),
        ("wss://[::1]:443", Endpoint("wss://[::1]:443", host="::1", port=443, tls=True)),
    ],
)
def test_an_endpoint_is_a_socket_or_an_address(text: str, endpoint: Endpoint) -> None:
    assert hub_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH"),
        ("hub.sock", "must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH"),
        ("localhost:10350", "must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH"),
        ("unix://hub.sock", "must be the absolute path"),
        ("http://hub:1", "must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT"),
        ("tcp://hub:1", "must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT"),
        ("WSS://hub:1", "must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT"),
        ("wss://hub", "must be HOST:PORT"),
        ("wss://hub:70000", "must be HOST:PORT"),
        ("wss://hub:1/path", "must be HOST:PORT"),
        ("wss://user:word@hub:1", "must be HOST:PORT"),
        ("wss://:1", "must name a host"),
        ("unix:///" + "x" * 107, "is too long for a UNIX socket"),
    ],
)
def test_what_is_no_endpoint_says_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hub_endpoint(text)


def test_only_a_loopback_address_stays_on_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.10", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.7", "hub.example", "localhost.example", "")))


SELF = Identity("this process", local=True, uid=0)
OK = Status(Code.OK)


class Ear(Receiver):
    """A receiver that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def took(self, message: bytes) -> None:
        self.heard.append(message)

    def ended(self, status: Status, _message: bytes | None) -> None:
        self.heard.append(status)

    def released(self, delivered: bool) -> None:  # as in `Receiver`
        self.heard.append(delivered)

    def writable(self) -> None:
        self.heard.append("writable")


class Acceptor(Peer):
    """Accepts links; its streams' receivers note what they hear, or refuse at once."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self.ears: dict[int, Ear] = {}
        self._refuses = refuses

    def opened(self, link: Link, frame: Open, _deadline: float | None) -> Ear:
        if self._refuses:
            link.end(frame.stream, Status(Code.UNAVAILABLE, "no"))
        self.ears[frame.stream] = Ear()
        return self.ears[frame.stream]


async def joined(acceptor: Acceptor, limits: Limits | None = None) -> tuple[Link, Link]:
    """The accepted link and the dialled one, open."""
    links = local_pair(acceptor, Peer(accepts=False), limits=limits)
    await settle()
    return links


async def test_the_other_end_has_a_call_when_start_returns_and_the_caller_an_answer_when_end_returns() -> None:
    acceptor, ear = Acceptor(), Ear()
    accepted, dialled = await joined(acceptor)
    number = dialled.start(ear, Kind.ORDER, b"request")
    assert acceptor.ears[number].heard == [b"request"]
    accepted.end(number, OK, b"answer")
    assert ear.heard == [b"answer", OK]


async def test_a_caller_that_is_refused_at_once_hears_nothing_before_start_has_returned() -> None:
    _, dialled = await joined(Acceptor(refuses=True))
    ear = Ear()
    dialled.start(ear, Kind.ORDER, b"request")
    assert ear.heard == []
    await settle()
    assert ear.heard == [Status(Code.UNAVAILABLE, "no")]


async def test_a_reader_that_is_slow_holds_its_sender_up() -> None:
    limits = Limits(stream_window_bytes=100)
    accepted, dialled = await joined(Acceptor(), limits)
    ear = Ear()
    number = dialled.start(ear, Kind.ORDER, b"request")
    for _ in range(3):
        accepted.send(number, bytes(100))
    await settle()
    assert ear.heard == [bytes(100)]
    assert accepted.watch_unsent(number) == 2
    dialled.consumed(number, 100)
    accepted.end(number, OK)
    dialled.writer.flush_soon()
    await settle()
    await settle()
    assert ear.heard == [bytes(100)] * 2


async def test_the_largest_message_goes_through_whole_and_a_larger_one_not_at_all() -> None:
    limits = Limits()
    acceptor = Acceptor()
    _, dialled = await joined(acceptor, limits)
    largest = bytes(limits.max_message_bytes)
    number = dialled.start(Ear(), Kind.ORDER, largest)
    assert acceptor.ears[number].heard == [largest]
    with pytest.raises(MessageTooLarge):
        dialled.start(Ear(), Kind.ORDER, largest + b"x")


async def test_silence_ends_no_link_and_wakes_nobody_for_a_day() -> None:
    accepted, dialled = await joined(Acceptor(), Limits(keepalive_s=0.1))
    now = dialled.loop.time()
    for link in (accepted, dialled):
        due = link.next_tick()
        assert due is not None
        assert due > now + 23 * 3600


def port(handler: Peer) -> LocalPort:
    return LocalPort(Side(introduce("hub", "hub", instance="h"), handler, Limits()), peer=SELF)


async def test_a_dial_returns_the_link_and_shows_the_acceptor_who_dialled() -> None:
    seen: list[object] = []

    class Shown(Peer):
        def greeted(self, link: Link) -> None:
            seen.append((link.peer.name, link.peer_identity))
            super().greeted(link)

    hello = introduce("driver", "d.example", instance="i")
    dialler = Peer(accepts=False)
    link = await port(Shown()).dial(hello, dialler, limits=Limits())
    assert seen == [("d.example", SELF)]
    link.goodbye(Reason.STOPPED, "enough")
    assert await link.wait_closed() == (Reason.STOPPED, "enough")


async def test_a_dial_that_is_refused_says_why() -> None:
    class Refusing(Peer):
        def greeted(self, link: Link) -> None:
            link.refuse(HandshakeRefused(Reason.DRAINING, "the hub is shutting down"))

    with pytest.raises(HandshakeRefused, match="the hub is shutting down"):
        await port(Refusing()).dial(introduce("driver", "d", instance="i"), Peer(accepts=False), limits=Limits())


async def test_a_dial_that_is_given_up_leaves_no_link() -> None:
    silent = Peer(accepts=False)
    dialling = asyncio.ensure_future(
        port(silent).dial(introduce("driver", "d", instance="i"), Peer(accepts=False), limits=Limits())
    )
    await settle()
    dialling.cancel()
    await asyncio.wait([dialling])
    assert silent.ends == [(Reason.LINK_LOST, "the dial was given up")]
