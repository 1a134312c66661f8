"""The turns of an agent's streams over two links."""

import pytest

from cloud.calls import stream_turns
from cloud.calls.stream_turns import in_turns
from common.messages import Kind
from common.observe.version import introduce
from common.session.link import Link, Stream
from common.status import Code, Status
from tests.kit.linked import Peer, link_pair
from tests.kit.waiting import settle, until


class Hub:
    """Serves streams in turns, and notes the messages in their order."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._serve = in_turns(self._listen)

    async def _listen(self, stream: Stream) -> None:
        async for message in stream:
            self.heard.append(message)

    async def link(self, node: str = "n1") -> Link:
        """An agent's end of a new link."""
        hello = introduce("edge", node, instance="i")
        _, agent = link_pair(Peer(self._serve), Peer(accepts=False), hello)
        await settle()
        return agent


async def test_a_later_stream_of_a_node_is_served_when_the_earlier_one_has_ended() -> None:
    hub = Hub()
    first, second = await hub.link(), await hub.link()
    earlier = first.open(Kind.FACTS, b"old")
    await settle()
    second.open(Kind.FACTS, b"new")
    await settle()
    await earlier.send(b"old and late")
    await settle()
    assert hub.heard == [b"old", b"old and late"]
    earlier.cancel()
    await settle()
    assert hub.heard == [b"old", b"old and late", b"new"]


async def test_streams_of_other_nodes_do_not_wait() -> None:
    hub = Hub()
    for node, message in (("n1", b"1"), ("n2", b"2")):
        (await hub.link(node)).open(Kind.FACTS, message)
    await settle()
    assert sorted(hub.heard) == [b"1", b"2"]


async def test_an_earlier_stream_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_turns, "PATIENCE_S", 0.0)
    hub = Hub()
    earlier = (await hub.link()).open(Kind.FACTS, b"old")
    await settle()
    (await hub.link()).open(Kind.FACTS, b"new")
    await until(lambda: b"new" in hub.heard)
    await earlier.send(b"old and late")
    await settle()
    assert hub.heard == [b"old", b"new"]
    assert earlier.status == Status(Code.UNAVAILABLE, "the call was stopped; a retry is safe", Peer.origin)


async def test_a_stream_waits_for_the_earlier_one_also_if_one_between_them_has_ended() -> None:
    hub = Hub()
    earlier = (await hub.link()).open(Kind.FACTS, b"old")
    await settle()
    between = (await hub.link()).open(Kind.FACTS, b"between")
    await settle()
    between.cancel()
    await settle()
    (await hub.link()).open(Kind.FACTS, b"new")
    await settle()
    await earlier.send(b"old and late")
    await settle()
    assert hub.heard == [b"old", b"old and late"]
    earlier.cancel()
    await settle()
    assert hub.heard == [b"old", b"old and late", b"new"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_streams_that_are_cancelled_while_they_wait_hold_up_nobody(order: tuple[int, int]) -> None:
    hub = Hub()
    streams = [(await hub.link()).open(Kind.FACTS, b"%d" % number) for number in range(2)]
    await settle()
    for number in order:
        streams[number].cancel()
        await settle()
    (await hub.link()).open(Kind.FACTS, b"last")
    await settle()
    assert hub.heard[-1] == b"last"
