"""A standing stream: a stream that is open whenever the link is, such as an agent's report or a proxy driver's watch.

Rules:

* It opens when the link is up. If the other side ends it while the link goes on, it opens again after a wait.
* Each new reason for such an end is logged, because without the stream this side works with old data.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from common.errors import Overloaded, RemoteProtocolError, TunnelClosed
from common.links.backoff import Backoff
from common.messages import Kind, Priority
from common.session.link import Link, Stream

log = logging.getLogger("csi_bridge.standing")

REOPEN = Backoff(first_s=1.0, most_s=30.0)  # as between the dials of a link


class Standing:
    """Keeps one stream open on the present link. The link's owner calls `up()` and `down()`."""

    def __init__(
        self,
        kind: Kind,
        use: Callable[[Stream], Awaitable[None]],
        *,
        subject: str = "",
        node: str = "",
        priority: Priority = Priority.CONTROL,
        reopen: Backoff = REOPEN,
    ) -> None:
        """`use` serves the stream until it has ended; it is cancelled when the link goes."""
        self._kind = kind
        self._use = use
        self._subject = subject
        self._node = node
        self._priority = priority
        self._reopen = reopen
        self._task: asyncio.Task[None] | None = None

    def up(self, link: Link) -> None:
        self.down()
        self._task = asyncio.get_running_loop().create_task(self._stand(link), name=f"standing {self._kind.name}")

    def down(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _stand(self, link: Link) -> None:
        ends = 0
        last = ""
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
            if asyncio.get_running_loop().time() - began > self._reopen.most_s:  # the stream worked
                ends = 0
            ends += 1
            await asyncio.sleep(self._reopen.wait_s(ends))

    async def _open_and_use(self, link: Link) -> str:
        stream = link.open(self._kind, priority=self._priority, subject=self._subject, node=self._node)
        try:
            await self._use(stream)
        finally:
            stream.cancel()
        return stream.status.message if stream.status is not None else "it ended without a status"
