"""An uplink: keeps one link from an agent or a proxy driver to the hub, and dials again whenever it is down.

Rules:

* Between two dials it waits 1 to 30 s with jitter, so that ten thousand agents do not dial a restarted hub in step. The
  waits begin anew after a success.
* A new certificate needs a new connection. `move()` dials it while the present link, the former one from then on, goes
  on. The former link ends when its calls have ended, so the change of certificates loses no call.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ssl import SSLContext
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from common.backoff import Backoff
from common.dial import dial
from common.endpoint import Endpoint
from common.errors import DialError, HandshakeRefused
from common.limits import Limits
from common.link import Link, LinkHandler
from common.messages import Hello, Open, Reason
from common.receiver import Receiver
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


class Dial(Protocol):
    """Makes one link: `common.dial.dial`, or `common.local_dial.LocalPort.dial`."""

    async def __call__(
        self, endpoint: Endpoint, hello: Hello, handler: LinkHandler, /, *, limits: Limits, tls: SSLContext | None
    ) -> Link:
        """Return the link. Raises DialError or HandshakeRefused."""


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
        dial: Dial = dial,
        on_redial: Callable[[], None] = lambda: None,
        before_dial: Callable[[], Awaitable[None]] | None = None,
        leave: Callable[[Link], None] = lambda _former: None,
    ) -> None:
        """An uplink that has not dialled yet.

        Args:
            endpoint: the hub's address.
            hello: gives the hello of each dial.
            handler: serves the links.
            limits: of each session.
            tls: our certificate, for `wss://`.
            dial: makes a link; over the network, if nothing else is given.
            on_redial: called after each dial that failed.
            before_dial: awaited before each dial. It may raise what a dial raises, which then counts as a failed one.
            leave: called with the former link, after a move. Whichever side opens the calls drains it then, because
                only that side knows its last one.
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
        self._make_link = dial
        self._on_redial = on_redial
        self._before_dial = before_dial
        self._leave = leave
        self._certificate = b""
        """The certificate with which the link was dialled."""
        self._former: set[Link] = set()
        self._moves = False
        self._news = asyncio.Event()
        self._draining = False
        self.origin = handler.origin

    @property
    def is_outdated(self) -> bool:
        """Whether the files have another certificate than the one with which the link was dialled."""
        if self.link is None or self._tls is None:
            return False
        self._tls.context()  # which reads changed files
        return self._tls.certificate != self._certificate

    def move(self) -> None:
        """Move to a link with the newest certificate. Without a link, the next one has it anyway."""
        self._moves = self.link is not None
        self._news.set()

    async def run(self) -> None:
        """Keep a link until `drain()`. Cancelling it closes the links with a goodbye."""
        try:
            while not self._draining:
                link = await self._stay(await self._dial_until_up())
                _, self.why = await link.wait_closed()
                await asyncio.sleep(random.uniform(0, FIRST_REDIAL_S))  # noqa: S311  # jitter, not a secret
        finally:
            for link in self._links():
                link.goodbye(Reason.STOPPED, "the process stops")

    def stop_dialling(self) -> None:
        """Make no further link after the present one."""
        self._draining = True

    async def drain(self, message: str) -> None:
        """Wait until the running calls have finished and the links have closed. The uplink dials no more."""
        self.stop_dialling()
        links = self._links()
        if self.link is not None:
            self._handler.draining(self.link, message)
        for link in links:
            link.drain(message)
        await asyncio.gather(*(link.wait_closed() for link in links))

    def _links(self) -> list[Link]:
        return [*self._former, *([self.link] if self.link is not None else [])]

    async def _stay(self, link: Link) -> Link:
        """Wait for the end of the link, and of each link to which it moves meanwhile. Returns the last one."""
        failures = 0
        while not link.over:
            self._news.clear()
            if self._moves and not self._draining:
                try:
                    link = await self._dial(beside=True)
                    failures = 0
                    continue
                except (DialError, HandshakeRefused) as error:
                    failures += 1
                    log.warning("the link to the hub stays, because no second link could be made: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REDIAL.wait_s(failures) if self._moves else None):
                    await self._news.wait()
        return link

    async def _dial_until_up(self) -> Link:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((DialError, HandshakeRefused)),
            wait=lambda state: REDIAL.wait_s(state.attempt_number),
            before_sleep=self._note_failure,
        )
        return await retrying(self._dial)

    async def _dial(self, *, beside: bool = False) -> Link:
        if self._before_dial is not None:
            await self._before_dial()
        asked, self._moves = self._moves, False  # from here on, a move asks for a newer certificate than this one
        context, certificate = (self._tls.context(), self._tls.certificate) if self._tls is not None else (None, b"")
        hello = replace(self._hello(), beside=True) if beside else self._hello()
        try:
            link = await self._make_link(self.endpoint, hello, self, limits=self._limits, tls=context)
        except (DialError, HandshakeRefused):
            self._moves = self._moves or asked
            raise
        self._certificate = certificate
        return link

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
        former, self.link, self.since, self.why = self.link, link, time.time(), ""
        log.info("link to the hub at %s is up (%s)", self.endpoint, link.peer.software)
        self._handler.greeted(link)
        if former is not None:
            self._former.add(former)
            self._leave(former)

    def opened(self, link: Link, frame: Open, deadline: float | None) -> Receiver:
        """The hub opened a stream."""
        return self._handler.opened(link, frame, deadline)

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
            self._news.set()
            log.warning("link to the hub at %s is down: %s", self.endpoint, message)
        else:
            self._former.discard(link)
            log.info("the former link to the hub at %s is down: %s", self.endpoint, message)
        self._handler.closed(link, reason, message)
