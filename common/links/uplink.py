"""An uplink: keeps the links of an agent or a proxy driver, one to each address of its hubs, and says which one counts.

Rules:

* The active link is the one whose hub leads: it has said the highest epoch (`Hello.epoch`) that this process knows.
  The handler hears of no other. The link to a standby is warm: nobody dials when its hub begins to lead.
* When a higher epoch is heard, the links of lower ones end at once, with all calls: nobody waits for a silent hub, and
  a late call of a former leader reaches nobody. A hub that says a lower epoch is refused.
* With one network address, a link to a standby is useless: it ends, and the address is dialled again, because it may
  lead to another hub by then. A link by a UNIX socket stays: its hub is always the same.
* If two addresses lead to one hub, the newer link stays and the other address rests, because a hub takes one link of a
  process. A link by a UNIX socket stays, and the newer one is refused: a hub that serves a driver (`--serve`) may also
  dial its own network address.
* Between two dials an address waits 1 to 30 s with jitter, so that ten thousand agents do not dial a restarted hub in
  step. The waits begin anew after a success, or when another link is gone.
* If a link ends while another hub leads, or its hub was stopped and a standby has a link, nobody needs it soon. Its
  first redial then waits up to `SPARE_REDIAL_S` more, to leave CPU and line to the takeover.
* A new certificate needs a new connection. `move()` dials it while the present link, the former one from then on, goes
  on. The former link ends when its calls have ended, so the change of certificates loses no call.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from common.errors import DialError, HandshakeRefused
from common.links.backoff import Backoff
from common.links.dial import dial
from common.messages import Hello, Reason
from common.net.endpoint import Endpoint
from common.net.tls import TlsIdentity
from common.session.limits import Limits
from common.session.link import Link, LinkHandler

log = logging.getLogger("csi_bridge.uplink")

FIRST_REDIAL_S = 1.0  # when a link ends, the next dial begins within this time: a hub's restart takes about a second

# A link that nobody needs (`can_spare`) is dialled again up to this much later.
SPARE_REDIAL_S = 10.0

# No wait between dials is longer: a node that is online again has its link within half a minute.
LONGEST_REDIAL_S = 30.0

# After a dial that failed: anywhere between the shortest wait and one that doubles.
REDIAL = Backoff(
    first_s=2 * FIRST_REDIAL_S,
    most_s=LONGEST_REDIAL_S,
    jitter=lambda longest_s: random.uniform(FIRST_REDIAL_S, longest_s),  # noqa: S311  # no secret
)

# An address that leads to the hub of another one is dialled again after this time: the dial ends the other link.
REST_S = 3600.0


Dial = Callable[..., Awaitable[Link]]  # makes one link, as `common.links.dial.dial` does


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialling:
    """How an uplink dials."""

    hello: Callable[[], Hello]  # gives the hello of each dial
    limits: Limits  # of each session
    tls: TlsIdentity | None = None  # our certificate, for `wss://`
    dial: Dial = dial
    # Awaited before each dial, with the number of dials in a row that were in vain. A DialError or HandshakeRefused of
    # it counts as a failed one.
    before: Callable[[int], Awaitable[None]] | None = None
    on_failed: Callable[[], None] = lambda: None  # called after each dial that failed

    async def make_link(self, address: "HubAddress", *, failures: int) -> tuple[Link, bytes]:
        """Returns a new link of an address, and the certificate that the link has."""
        if self.before is not None:
            await self.before(failures)
        context, certificate = (self.tls.context(), self.tls.certificate) if self.tls is not None else (None, b"")
        # Asked last: the address's link may end while this process renews its certificate.
        hello = replace(self.hello(), beside=True) if address.link is not None else self.hello()
        return await self.dial(address.endpoint, hello, address, limits=self.limits, tls=context), certificate


class HubAddress(LinkHandler):
    """One address of a hub: keeps a link to it, and dials again whenever it is down."""

    def __init__(self, endpoint: Endpoint, uplink: "Uplink", handler: LinkHandler) -> None:
        super().__init__(handler.origin)
        self.endpoint = endpoint
        self.link: Link | None = None  # the newest one
        self.why = "not dialled yet"  # why this address has no active link; empty while it has it
        self.called, self.opened = handler.called, handler.opened  # type: ignore[method-assign]  # the hot path
        self._uplink = uplink
        self._handler = handler
        self._certificate = b""  # the certificate with which the link was dialled
        self._failures = 0  # the dials in a row that were in vain
        self._must_move = False
        self.instance = ""  # of the hub that answered last (`Hello.instance`); empty: none did
        self._duplicate_of: HubAddress | None = None  # another address that led to the same hub
        self._woken = asyncio.Event()

    def __str__(self) -> str:
        return self.why if str(self.endpoint) in self.why else f"{self.endpoint}: {self.why}"

    @property
    def is_duplicate(self) -> bool:
        """Whether another address leads to the same hub, and has the link."""
        other = self._duplicate_of
        return other is not None and other.link is not None and other.instance == self.instance

    def is_outdated(self, certificate: bytes) -> bool:
        return self.link is not None and certificate != self._certificate

    def move(self) -> None:
        self._must_move = self.link is not None
        self._woken.set()

    def wake(self) -> None:
        """Dial soon, if there is no link: another one is gone."""
        self._failures = 0
        self._woken.set()

    def rest(self, newer: "HubAddress") -> None:
        """Leave the hub to another address, if that one leads to the same hub."""
        if newer is self or not self.instance or newer.instance != self.instance:
            return
        log.warning("%s and %s lead to one hub; give one address of each hub", self.endpoint, newer.endpoint)
        self._duplicate_of = newer
        self.why = f"it leads to the same hub as {newer.endpoint}"
        if self.link is not None:
            self.link.drain(f"{newer.endpoint} leads to the same hub")

    async def run(self) -> None:
        while not self._uplink.is_draining:
            link = await self._until_closed(await self._dial_until_up())
            reason, _ = await link.wait_closed()
            if self._uplink.can_spare(reason):
                await self._wait_woken(random.uniform(0, SPARE_REDIAL_S))  # noqa: S311  # jitter, not a secret
            await asyncio.sleep(random.uniform(0, FIRST_REDIAL_S))  # noqa: S311  # as above

    async def _until_closed(self, link: Link) -> Link:
        # Also of each link to which it moves meanwhile.
        failures = 0
        while not link.over:
            if self._must_move and not self._uplink.is_draining:
                try:
                    link = await self._dial()
                    failures = 0
                    continue
                except (DialError, HandshakeRefused) as error:
                    failures += 1
                    log.warning("the link to the hub stays, because no second link could be made: %s", error)
            await self._wait_woken(REDIAL.wait_s(failures) if self._must_move else None)
        return link

    async def _wait_woken(self, longest_s: float | None) -> bool:
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._woken.wait()
        return self._woken.is_set()

    async def _dial_until_up(self) -> Link:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((DialError, HandshakeRefused)),
            wait=lambda _: REDIAL.wait_s(self._failures + 1),
            before_sleep=self._note_failure,
            sleep=self._pause,
        )
        return await retrying(self._dial_rested)

    def _note_failure(self, state: RetryCallState) -> None:
        self._failures += 1
        self._uplink.dialling.on_failed()
        error = state.outcome.exception() if state.outcome is not None else None
        if str(error) != self.why:
            self.why = str(error)
            log.warning("no link to the hub: %s; dialling again until there is one", error)

    async def _pause(self, longest_s: float) -> None:
        await self._wait_woken(longest_s)
        if not self._failures:  # another link is gone
            await asyncio.sleep(random.uniform(0, FIRST_REDIAL_S))  # noqa: S311  # jitter, not a secret

    async def _dial_rested(self) -> Link:
        while self.is_duplicate and await self._wait_woken(REST_S):
            pass
        return await self._dial()

    async def _dial(self) -> Link:
        # From here on, a move asks for a newer certificate than this one.
        asked = self._must_move
        self._must_move = False
        try:
            link, certificate = await self._uplink.dial(self, failures=self._failures)
        except (DialError, HandshakeRefused):
            self._must_move = self._must_move or asked
            raise
        self._certificate = certificate
        self._failures = 0
        return link

    # ---- LinkHandler: notes the link, passes the rest on -------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """The hub welcomed us, begins to lead, or has a new epoch."""
        # The handler hears it of the newer link, not of the former one.
        if link in self._uplink.announced and self.link not in {None, link}:
            return
        if (refusal := self._uplink.refusal(self, link)) is not None:
            link.goodbye(refusal.reason, refusal.why)
            return
        here = self._uplink.by_unix_socket(link.peer.instance)
        if self.link is None and here is not None and here is not self:
            self.instance = link.peer.instance
            self._duplicate_of = here
            self.why = f"it leads to the same hub as {here.endpoint}"
            link.goodbye(Reason.REPLACED, self.why)
            return
        former = self.link
        self.link = link
        self._duplicate_of = None
        self.instance = link.peer.instance
        self.why = "" if link.peer.epoch else "a standby"
        if link.peer.epoch:
            self._uplink.lead(self, link)
        else:
            log.info("the hub at %s is a standby (%s)", self.endpoint, link.peer.software)
            if former is not None:
                former.drain("there is a newer link")
        for other in self._uplink.addresses:
            other.rest(self)

    def draining(self, link: Link, message: str) -> None:
        log.info("the hub is draining: %s", message)
        if link in self._uplink.announced:
            self._handler.draining(link, message)

    def closed(self, link: Link, reason: str, message: str) -> None:
        if self.link is link:
            self.link = None
            if not self.is_duplicate:
                self.why = message
            for address in self._uplink.addresses:
                address.wake()
        self._uplink.closed(self, link, reason, message)


class Uplink:
    """Keeps a process linked to the hub that leads. `run()` is its task."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        handler: LinkHandler,
        dialling: Dialling,
        *,
        leave: Callable[[Link], None] = lambda _former: None,
        epoch: int = 0,
    ) -> None:
        """An uplink that has not dialled yet. `epoch` is the highest one that was heard before.

        `handler` serves the active link. It hears `greeted` again when the hub of that link has a new epoch or mark.
        After a move, `leave` is called with the former link. Whichever side opens the calls drains it then, because
        only that side knows its last one.
        """
        self.addresses = [HubAddress(endpoint, self, handler) for endpoint in dict.fromkeys(endpoints)]
        self.link: Link | None = None  # the active one
        self.since = time.time()  # when the active link last came or went, in seconds since the epoch
        self.epoch = epoch  # the highest one of a hub that is known
        self.is_draining = False
        self.dialling = dialling
        self._leader: HubAddress | None = None  # the address of the last active link
        self.announced: set[Link] = set()  # the links of which the handler has heard, until they end
        self._handler = handler
        self._leave = leave

    @property
    def why(self) -> str:
        """Why there is no active link: what is wrong with each address."""
        return "; ".join(map(str, self.addresses))

    @property
    def is_outdated(self) -> bool:
        """Whether the files have another certificate than the one with which a link was dialled."""
        tls = self.dialling.tls
        if tls is None:
            return False
        tls.context()  # which reads changed files
        return any(address.is_outdated(tls.certificate) for address in self.addresses)

    def problems(self) -> list[str]:
        return [f"{it}; give --hub one address of each hub" for it in self.addresses if it.is_duplicate]

    def move(self) -> None:
        for address in self.addresses:
            address.move()

    async def run(self) -> None:
        """Keep the links until `drain()`. Cancelling it closes them with a goodbye."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for address in self.addresses:
                    tasks.create_task(address.run(), name=f"link to {address.endpoint}")
        finally:
            for link in self._links():
                link.goodbye(Reason.STOPPED, "the process stops")

    def stop_dialling(self) -> None:
        self.is_draining = True

    async def drain(self, message: str) -> None:
        """Wait until the running calls have finished and the links have closed. The uplink dials no more."""
        self.stop_dialling()
        if self.link is not None:
            self._handler.draining(self.link, message)
        links = self._links()
        for link in links:
            link.drain(message)
        await asyncio.gather(*(link.wait_closed() for link in links))

    def _links(self) -> set[Link]:
        return self.announced | {address.link for address in self.addresses if address.link is not None}

    # ---- for the addresses -------------------------------------------------------------------------------------------

    async def dial(self, address: HubAddress, *, failures: int) -> tuple[Link, bytes]:
        link, certificate = await self.dialling.make_link(address, failures=failures)
        # It ended during its greeting: a failed dial, unless this process drains or the address is a duplicate.
        if link.over and not (self.is_draining or address.is_duplicate):
            raise HandshakeRefused(*await link.wait_closed())
        return link, certificate

    def can_spare(self, reason: str) -> bool:
        """Whether nobody needs a link that has ended for this reason: another hub leads, or is about to."""
        return self.link is not None or (reason == Reason.STOPPED and any(it.link is not None for it in self.addresses))

    def by_unix_socket(self, instance: str) -> HubAddress | None:
        found = (it for it in self.addresses if it.endpoint.path is not None and it.link is not None)
        return next((it for it in found if instance and it.instance == instance), None)

    def refusal(self, address: HubAddress, link: Link) -> HandshakeRefused | None:
        epoch = link.peer.epoch
        if self.is_draining and link not in self.announced:
            return HandshakeRefused(Reason.STOPPED, "the process stops")
        if 0 < epoch < self.epoch:
            why = (
                f"another hub leads: the hub at {address.endpoint} has epoch {epoch}, and {self.epoch} was heard before"
            )
        elif epoch or len(self.addresses) > 1 or address.endpoint.path is not None:
            return None
        else:
            why = f"the hub at {address.endpoint} is a standby"
        return HandshakeRefused(Reason.NOT_LEADING, why)

    def lead(self, address: HubAddress, link: Link) -> None:
        """Make the link the active one: no hub has a higher epoch."""
        before = self.link
        leader = self._leader
        epoch = link.peer.epoch
        self.link = link
        self._leader = address
        self.epoch = epoch
        if link is before:
            self._handler.greeted(link)
            return
        self.since = time.time()
        log.info("link to the hub at %s is up (%s)", address.endpoint, link.peer.software)
        self.announced.add(link)
        self._handler.greeted(link)
        for other in [it for it in self.announced if it.peer.epoch < epoch]:
            other.goodbye(Reason.NOT_LEADING, f"another hub leads by now, with epoch {epoch}")
        if leader is address and before is not None and not before.over:
            self._leave(before)

    def closed(self, address: HubAddress, link: Link, reason: str, message: str) -> None:
        if link not in self.announced:
            log.debug("the link to the standby at %s is down: %s", address.endpoint, message)
            return
        self.announced.discard(link)
        if link is self.link:
            self.link, self.since = None, time.time()
            log.warning("link to the hub at %s is down: %s", address.endpoint, message)
        else:
            log.info("the former link to the hub at %s is down: %s", address.endpoint, message)
        self._handler.closed(link, reason, message)
