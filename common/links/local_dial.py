"""A local dial: makes a link between two parts of one process, such as the hub and a proxy driver that it serves.

Both ends are ordinary links over ordinary sessions, so that no rule exists twice. Only the way between them is another
one: no socket, no WebSocket and no chunks.

An end that has something urgent hands it to the other end at once. Two exceptions keep the order that a network has:

* What an end says while it is called goes in a later turn of the loop. So a receiver hears nothing before `Link.start`
  has returned.
* Acknowledgements and credit wait for the next message, for some milliseconds at most.
"""

import asyncio
from dataclasses import replace

from common.messages import Hello
from common.net.peer import Peer
from common.session.limits import Limits
from common.session.link import LATER_S, Link, LinkHandler, Side

# Silence says nothing here: an end is gone with its process. A short time would end the link of a suspended one.
_KEEPALIVE_S = 24 * 3600.0


class LocalPort:
    """The place in this process where a handler accepts links from other parts of the process."""

    def __init__(self, side: Side, *, peer: Peer) -> None:
        self._side = side
        self._peer = peer

    async def dial(self, hello: Hello, handler: LinkHandler, *, limits: Limits) -> Link:
        dialled, accepted = join(Side(hello, handler, limits), self._side, peer=self._peer)
        try:
            await dialled.wait_greeted()
        except BaseException:
            dialled.lost("the dial was given up")
            accepted.lost("the dial was given up")
            raise
        return dialled


def join(dialler: Side, acceptor: Side, *, peer: Peer | None = None) -> tuple[Link, Link]:
    """The dialler's link and the acceptor's, before their greeting. `peer`: the dialler, for the acceptor."""
    loop = asyncio.get_running_loop()
    way = _Way(loop)

    def make_link(side: Side, *, is_dialler: bool) -> Link:
        limits = replace(side.limits, chunk_bytes=side.limits.max_message_bytes, keepalive_s=_KEEPALIVE_S)
        end = _End(way, dialler=is_dialler)
        return Link(replace(side, limits=limits), dialler=is_dialler, writer=end, peer_identity=peer)

    way.dialled, way.accepted = make_link(dialler, is_dialler=True), make_link(acceptor, is_dialler=False)
    way.carry_soon()
    return way.dialled, way.accepted


class _Way:
    # The way between the two links. It is busy while a link takes a message: then others wait.

    __slots__ = ("_later", "_soon", "accepted", "dialled", "is_busy", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.dialled: Link
        self.accepted: Link
        self.loop = loop
        self.is_busy = False
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def carry(self, listener: Link, data: bytes) -> None:
        self.is_busy = True
        try:
            listener.receive(data, self.loop.time())
        finally:
            self.is_busy = False

    def carry_soon(self) -> None:
        if self._soon is None:
            self._soon = self.loop.call_soon(self._carry_both)

    def carry_later(self) -> None:
        if self._later is None and self._soon is None:
            self._later = self.loop.call_later(LATER_S, self._carry_both)

    def _carry_both(self) -> None:
        self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        for speaker, listener in ((self.dialled, self.accepted), (self.accepted, self.dialled)):
            while data := speaker.to_send():
                self.carry(listener, data)
            if speaker.over:
                listener.lost("the other end is gone")


class _End:  # a `common.session.outbox.Writer`
    __slots__ = ("_is_dialler", "_way", "flush_later", "flush_soon")

    def __init__(self, way: _Way, *, dialler: bool) -> None:
        self._way = way
        self._is_dialler = dialler
        self.flush_soon = way.carry_soon
        self.flush_later = way.carry_later

    @property
    def is_free(self) -> bool:
        return not self._way.is_busy

    def write(self, data: bytes) -> None:
        way = self._way
        way.carry(way.accepted if self._is_dialler else way.dialled, data)
