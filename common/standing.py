"""A standing stream: one that is open whenever the link is. An agent's report and a proxy driver's watch are such.

Rules:

* It is opened when the link is up, and again, after a wait, when the other side has ended it on a link that lives on.
* Such an end is logged with the other side's words: without the stream a hop works on old news. The same words again
  are not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from common.backoff import Backoff
from common.errors import Overloaded, RemoteProtocolError, TunnelClosed
from common.link import Link, Stream
from common.messages import Kind, Priority

log = logging.getLogger("csi_bridge.standing")

REOPEN = Backoff(first_s=1.0, most_s=30.0)
"""Between an end and the next opening: as long as between the dials of a link."""


class Standing:
    """Keeps one stream open on the link there is. `up()` and `down()` follow the link."""

    def __init__(
        self,
        kind: Kind,
        use: Callable[[Stream], Awaitable[None]],
        *,
        subject: str = "",
        node: str = "",
        priority: Priority = Priority.CONTROL,
    ) -> None:
        """A stream that is not open yet.

        Args:
            kind: what it is for.
            use: sends and receives on it until it has ended; cancelled when the link goes.
            subject: what it is about, for the other side.
            node: which node it is about.
            priority: how it shares a busy link.
        """
        self._kind = kind
        self._use = use
        self._subject = subject
        self._node = node
        self._priority = priority
        self._task: asyncio.Task[None] | None = None

    def up(self, link: Link) -> None:
        """There is a link: open the stream on it."""
        self.down()
        self._task = asyncio.get_running_loop().create_task(self._stand(link), name=f"standing {self._kind.name}")

    def down(self) -> None:
        """The link is gone, or is to drain: end the stream and open no other."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _stand(self, link: Link) -> None:
        ends, last = 0, ""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                why = await self._open_and_use(link)
            except TunnelClosed:
                return  # the next link has a stream of its own
            except (Overloaded, RemoteProtocolError) as error:
                why = str(error)
            except Exception:
                log.exception("a bug in CSI Bridge ended the %s stream", self._kind.name)
                why = "a bug in CSI Bridge"
            if why != last:
                last = why
                log.warning("the %s stream has ended, and is opened again: %s", self._kind.name, why)
            if asyncio.get_running_loop().time() - began > REOPEN.most_s:  # it was well until now
                ends = 0
            ends += 1
            await asyncio.sleep(REOPEN.wait_s(ends))

    async def _open_and_use(self, link: Link) -> str:
        """Use one stream until its end; gives the reason."""
        stream = link.open(self._kind, priority=self._priority, subject=self._subject, node=self._node)
        try:
            await self._use(stream)
        finally:
            stream.cancel()
        return stream.status.message if stream.status is not None else "it ended without a status"
