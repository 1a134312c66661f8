"""Two links in memory, a hub's and a peer's, without a socket. Needs a running loop and no network."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from common.links.local_dial import join
from common.messages import Hello
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, LinkHandler, Side, Stream
from common.status import Code, Origin, Status


class Peer(LinkHandler):
    """A `LinkHandler` that accepts every peer, serves streams as a test says, and records the ends of links."""

    origin = Origin.EDGE

    def __init__(self, serve: Callable[[Stream], Awaitable[None]] | None = None, *, accepts: bool = True) -> None:
        self.ends: list[tuple[str, str]] = []  # reason and message of each link that ended
        self.drains: list[str] = []  # the messages of peers that began to drain
        self._serve = serve
        self._accepts = accepts

    def greeted(self, link: Link) -> None:
        """Accept the peer, if this end was dialled."""
        if self._accepts:
            link.accept(1)

    async def serve(self, stream: Stream) -> None:
        """Run the test's `serve`; else answer OK at once."""
        if self._serve is None:
            stream.end(Status(Code.OK))
        else:
            await self._serve(stream)

    def draining(self, link: Link, message: str) -> None:
        self.drains.append(message)

    def refused(self, link: Link, reason: str, message: str) -> None:
        self.ends.append((reason, message))

    def closed(self, link: Link, reason: str, message: str) -> None:
        self.ends.append((reason, message))


class _Wire:
    """One end's `Writer`: moves its link's bytes to the other link, in a later turn of the loop."""

    def __init__(self) -> None:
        self.link: Link
        self.other: Link
        self._scheduled = False
        self._cut = False

    is_free = False

    def flush_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._move)

    flush_later = flush_soon

    def cut(self) -> None:
        """Tell both ends that the other one is gone."""
        self._cut = True
        self.link.lost("the cable was cut")

    def _move(self) -> None:
        self._scheduled = False
        while not self._cut and (data := self.link.to_send()):
            self.other.receive(data, self.link.loop.time())
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
    """Return the hub's link and the peer's, before their greeting."""
    limits = limits or Limits()
    wires = (_Wire(), _Wire())
    accepting, dialling = introduce("hub", "hub", instance="h"), hello or introduce("edge", "n1", instance="i")
    at_hub = Link(Side(accepting, hub, limits), dialler=False, writer=wires[0], peer_identity=identity)
    at_peer = Link(Side(dialling, peer, limits), dialler=True, writer=wires[1])
    wires[0].link = wires[1].other = at_hub
    wires[1].link = wires[0].other = at_peer
    return at_hub, at_peer


def local_pair(
    hub: LinkHandler, peer: LinkHandler, hello: Hello | None = None, *, limits: Limits | None = None
) -> tuple[Link, Link]:
    """The same over the way inside one process."""
    limits = limits or Limits()
    dialler = Side(hello or introduce("edge", "n1", instance="i"), peer, limits)
    at_peer, at_hub = join(dialler, Side(introduce("hub", "hub", instance="h"), hub, limits))
    return at_hub, at_peer


def cut(*links: Link) -> None:
    for link in links:
        if isinstance(link.writer, _Wire):
            link.writer.cut()
        else:
            link.lost("the other end is gone")
