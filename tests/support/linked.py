"""Two links in memory: a hub's and a peer's, with no socket between them. Needs a running loop and no network."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from common.limits import Limits
from common.link import Link, LinkHandler, Stream
from common.messages import Hello
from common.session import Session
from common.status import Code, Origin, Status
from common.version import introduce


class Peer:
    """A `LinkHandler` that lets everybody in, serves streams as it is told, and remembers its links' ends.

    Attributes:
        ends: reason and message of each link that ended.
        drains: what peers said when they began to drain.
    """

    origin = Origin.EDGE

    def __init__(self, serve: Callable[[Stream], Awaitable[None]] | None = None, *, accepts: bool = True) -> None:
        self.ends: list[tuple[str, str]] = []
        self.drains: list[str] = []
        self._serve = serve
        self._accepts = accepts

    def greeted(self, link: Link) -> None:
        """Let it in, if this end was dialled."""
        if self._accepts:
            link.accept()

    async def serve(self, stream: Stream) -> None:
        """As told; else OK at once."""
        if self._serve is None:
            stream.end(Status(Code.OK))
        else:
            await self._serve(stream)

    def draining(self, link: Link, message: str) -> None:
        """Remember."""
        self.drains.append(message)

    def refused(self, link: Link, reason: str, message: str) -> None:
        """Remember."""
        self.ends.append((reason, message))

    def closed(self, link: Link, reason: str, message: str) -> None:
        """Remember."""
        self.ends.append((reason, message))


class _Wire:
    """One end's `Writer`: moves what its link has to the other link, in a later turn of the loop."""

    def __init__(self) -> None:
        self.link: Link
        self.other: Link
        self._scheduled = False
        self._cut = False

    def flush(self) -> None:
        """Move it soon."""
        if not self._scheduled:
            self._scheduled = True
            self.link.loop.call_soon(self._move)

    flush_soon = flush_later = flush

    def cut(self) -> None:
        """Both ends notice that the other one is gone."""
        self._cut = True
        self.link.lost("the cable was cut")

    def _move(self) -> None:
        self._scheduled = False
        while not self._cut and (data := self.link.pull()):
            self.other.received(data)
        if self.link.over and not self._cut:
            self._cut = True
            self.other.lost("the peer closed the connection")


def link_pair(
    hub: LinkHandler,
    peer: LinkHandler,
    hello: Hello | None = None,
    *,
    limits: Limits | None = None,
    identity: Any = None,
) -> tuple[Link, Link]:
    """The hub's link and the peer's, about to greet each other; `settle()` lets them."""
    loop = asyncio.get_running_loop()
    limits = limits or Limits()
    wires = (_Wire(), _Wire())
    accepting = Session(introduce("hub", "hub", instance="h"), dialler=False, limits=limits, now=loop.time())
    dialling = Session(hello or introduce("edge", "n1", instance="i"), dialler=True, limits=limits, now=loop.time())
    at_hub = Link(accepting, hub, loop=loop, writer=wires[0], peer_identity=identity)
    at_peer = Link(dialling, peer, loop=loop, writer=wires[1])
    wires[0].link = wires[1].other = at_hub
    wires[1].link = wires[0].other = at_peer
    at_peer.writer.flush()
    return at_hub, at_peer


def cut(*links: Link) -> None:
    """Cut the cable."""
    for link in links:
        assert isinstance(link.writer, _Wire)
        link.writer.cut()


async def settle() -> None:
    """Let everything happen that needs no time to pass."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(true: Callable[[], object]) -> None:
    """Let the loop and its threads go on until something is true; the test's time limit ends it."""
    while not true():  # noqa: ASYNC110  # what a test looks at has no event
        await asyncio.sleep(0)
