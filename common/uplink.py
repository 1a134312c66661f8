"""An uplink: keeps one link from an agent or a proxy driver to the hub, and dials again whenever it is down.

Between two dials it waits 1 to 30 s with jitter, so that ten thousand agents do not dial a restarted hub in step. The
waits begin anew after a success.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from common.backoff import Backoff
from common.dial import dial
from common.endpoint import Endpoint
from common.errors import DialError, HandshakeRefused
from common.limits import Limits
from common.link import Link, LinkHandler, Stream
from common.messages import Hello, Reason
from common.tls import TlsIdentity

log = logging.getLogger("csi_bridge.uplink")

FIRST_REDIAL_S = 1.0
"""When a link ends, the next dial begins within this time: a hub's restart takes about a second."""

LONGEST_REDIAL_S = 30.0
"""No wait between dials is longer: a node that is online again has its link within half a minute."""

REDIAL = Backoff(
    first_s=2 * FIRST_REDIAL_S,
    most_s=LONGEST_REDIAL_S,
    jitter=lambda longest_s: random.uniform(FIRST_REDIAL_S, longest_s),  # noqa: S311  # no secret
)
"""After a dial that failed: anywhere between the shortest wait and one that doubles."""


class Uplink:
    """Keeps one link to a hub. `run()` is its task; `link` is the link, or None while there is none."""

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Callable[[], Hello],
        handler: LinkHandler,
        *,
        limits: Limits,
        tls: TlsIdentity | None = None,
        on_redial: Callable[[], None] = lambda: None,
    ) -> None:
        """An uplink that has not dialled yet.

        Args:
            endpoint: the hub's address.
            hello: gives the hello of each dial.
            handler: serves the links.
            limits: of each session.
            tls: our certificate, for `wss://`.
            on_redial: called after each dial that failed.
        """
        self.endpoint = endpoint
        self.link: Link | None = None
        self.since = time.time()
        """The time at which the link last came up or went down, in seconds since the epoch."""
        self.why = "not dialled yet"
        """The reason why there is no link; empty while there is one."""
        self._hello = hello
        self._handler = handler
        self._limits = limits
        self._tls = tls
        self._on_redial = on_redial
        self._draining = False
        self.origin = handler.origin

    async def run(self) -> None:
        """Keep a link until `drain()`. Cancelling it closes the link with a goodbye."""
        try:
            while not self._draining:
                link = await self._dial_until_up()
                _, self.why = await link.wait_closed()
                await asyncio.sleep(random.uniform(0, FIRST_REDIAL_S))  # noqa: S311  # jitter, not a secret
        finally:
            if self.link is not None:
                self.link.goodbye(Reason.STOPPED, "the process stops")

    async def drain(self, message: str) -> None:
        """Wait until the running calls have finished and the link has closed. The uplink dials no more."""
        self._draining = True
        if self.link is not None:
            link = self.link
            self._handler.draining(link, message)
            link.drain(message)
            await link.wait_closed()

    async def _dial_until_up(self) -> Link:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((DialError, HandshakeRefused)),
            wait=lambda state: REDIAL.wait_s(state.attempt_number),
            before_sleep=self._note_failure,
        )
        return await retrying(self._dial)

    async def _dial(self) -> Link:
        tls = self._tls.context() if self._tls is not None else None
        return await dial(self.endpoint, self._hello(), self, limits=self._limits, tls=tls)

    def _note_failure(self, state: RetryCallState) -> None:
        self._on_redial()
        error = state.outcome.exception() if state.outcome is not None else None
        if str(error) != self.why:
            self.why = str(error)
            log.warning("no link to the hub: %s; dialling again until there is one", error)

    # ---- LinkHandler: notes the link, passes the rest on -------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """The hub welcomed us."""
        if self._draining:
            link.goodbye(Reason.STOPPED, "the process stops")
            return
        self.link, self.since, self.why = link, time.time(), ""
        log.info("link to the hub at %s is up (%s)", self.endpoint, link.peer.software)
        self._handler.greeted(link)

    async def serve(self, stream: Stream) -> None:
        """The hub opened a stream."""
        await self._handler.serve(stream)

    def draining(self, link: Link, message: str) -> None:
        """The hub is shutting down: no new calls on this link."""
        log.info("the hub is draining: %s", message)
        self._handler.draining(link, message)

    def refused(self, link: Link, reason: str, message: str) -> None:
        """The hello was not answered with a welcome; `dial()` raises it."""

    def closed(self, link: Link, reason: str, message: str) -> None:
        """The link is gone."""
        if self.link is link:
            self.link, self.since = None, time.time()
        log.warning("link to the hub at %s is down: %s", self.endpoint, message)
        self._handler.closed(link, reason, message)
