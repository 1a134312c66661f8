"""A renewal: gives a joined agent its next certificate in time, and moves its link to it.

Rules:

* The agent asks for its next certificate at about two thirds of the present one's life, on its link. The time varies by
  some percent, so that nodes that joined together do not renew together.
* The hub voids the former key when the next one has authenticated. So the agent first stores the certificate, and then
  moves its link to it (`common.uplink`): running calls finish on the former link.
* A node that was away past its certificate's end asks at the hub's join listener before it dials, with the signature of
  its present key.
* The node's clock may be wrong. If the certificate has lasted its life by this clock, and its date has not come, the
  agent asks at the join listener too, but dials whatever the answer is.
* If the hub refuses, the agent goes on with its certificate, tells the reason, and asks again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from common.backoff import Backoff
from common.certificate_ends import Term
from common.endpoint import hub_endpoint
from common.enrolment import Issued, NextKey, Noted, RefusedFor, Renew
from common.errors import DialError, HandshakeRefused, NotCarried, SettingsError, timestamp
from common.limits import Limits
from common.link import Link
from common.messages import Kind
from common.tls import TlsFiles
from common.uplink import Uplink
from edge.enrolment import ask, ask_at, verified
from edge.identity import Identity, key_of

log = logging.getLogger("csi_bridge.edge.renewal")

RENEW_AT = 2 / 3
"""The part of a certificate's life after which the agent renews it. The rest is for a hub that is away."""

_SPREAD = 0.05
"""The renewal comes up to this part of the life earlier or later."""

_LOOK_S = 60.0
"""The longest sleep: a clock that was set, or a machine that was suspended, is noticed after this time."""

_FAILED = Backoff(first_s=1.0, most_s=600.0, jitter=lambda longest_s: random.uniform(longest_s / 2, longest_s))  # noqa: S311  # no secret
"""The waits after a renewal that failed. A third of a certificate's life has room for many."""

_THE_HUB = "the hub"


def due_at(term: Term, *, spread: float) -> float:
    """The time at which a certificate is renewed, in seconds since the epoch.

    Args:
        term: the time of its validity.
        spread: from -1, as early as allowed, to 1, as late.
    """
    return term.begins_at + (term.ends_at - term.begins_at) * (RENEW_AT + spread * _SPREAD)


def _spread() -> float:
    return random.uniform(-1, 1)  # noqa: S311  # jitter, not a secret


class Renewal:
    """Renews the certificate of one joined agent. `run()` is its task; `before_dial()` is for its uplink."""

    def __init__(
        self, identity: Identity, node: str, *, limits: Limits, clock: Callable[[], float] = time.time
    ) -> None:
        """Nothing is renewed yet.

        Args:
            identity: the node's files.
            node: its name.
            limits: of a link to the join listener.
            clock: the time, in seconds since the epoch.
        """
        self._identity = identity
        self._node = node
        self._limits = limits
        self._clock = clock
        self._problem = ""
        self._asking = asyncio.Lock()

    def problems(self) -> list[str]:
        """Why the certificate cannot be renewed, as a sentence for people; none while it can."""
        return [self._problem] if self._problem else []

    async def before_dial(self) -> None:
        """If the certificate has ended, get the next one from the join listener.

        Raises:
            DialError, HandshakeRefused: it cannot be had now.
        """
        try:
            async with self._asking:
                if self._clock() >= self._term().ends_at:
                    await self._renew(self._ask_listener, signed=True)
        except (DialError, HandshakeRefused) as error:
            self._note(error)
            if self._has_ended():
                raise

    async def run(self, uplink: Uplink) -> None:
        """Renew the certificate whenever it is due, until cancelled."""
        failures, spread = 0, _spread()
        while True:
            try:
                async with self._asking:
                    wait_s = due_at(self._term(), spread=spread) - self._clock()
                    if wait_s <= 0:
                        await self._renew(lambda question: _ask_on(uplink.link, question), signed=False)
            except (DialError, HandshakeRefused) as error:
                self._note(error)
                failures += 1
                await asyncio.sleep(_FAILED.wait_s(failures))
                continue
            if wait_s <= 0:
                failures, spread = 0, _spread()
                uplink.move()
            else:
                await asyncio.sleep(min(wait_s, _LOOK_S))

    def _term(self) -> Term:
        try:
            return self._identity.term()
        except (OSError, ValueError) as error:
            why = f"{self._identity.files.cert} cannot be read: {error}; join again with a new token"
            raise HandshakeRefused(RefusedFor.CERTIFICATE, why) from error

    def _has_ended(self) -> bool:
        """Whether the certificate's date has come by this clock, or the certificate cannot be read."""
        try:
            return self._clock() >= self._identity.ends_at()
        except (OSError, ValueError):
            return True

    async def _renew(self, ask_hub: Callable[[Renew], Awaitable[Issued]], *, signed: bool) -> None:
        """Ask for the next certificate, and store it."""
        try:
            question = await asyncio.to_thread(self._identity.renewal, signed=signed)
            issued = await ask_hub(question)
            await asyncio.to_thread(self._identity.store, issued, self._node, now=self._clock())
        except (OSError, ValueError, SettingsError) as error:
            raise DialError(_THE_HUB, f"the next certificate cannot be stored: {error}") from error
        except NotCarried as error:
            raise HandshakeRefused(RefusedFor.NO_CA_KEY, f"this hub renews no certificates: {error}") from error
        self._problem = ""
        log.info("the certificate was renewed, and is valid until %s", timestamp(self._term().ends_at))

    def _note(self, error: Exception) -> None:
        """Tell the problem, and log it if it is a new one."""
        try:
            valid = f", valid until {timestamp(self._identity.term().ends_at)},"
        except (OSError, ValueError):
            valid = ""
        problem = f"this node's certificate{valid} cannot be renewed: {error}"
        if problem != self._problem:
            self._problem = problem
            log.warning("%s; the agent tries again", problem)

    async def _ask_listener(self, question: Renew) -> Issued:
        joined = await asyncio.to_thread(self._identity.joined)
        if joined is None or not joined.joins:
            why = "it has ended, and the hub told no join listener for such a case; join again with a new token"
            raise HandshakeRefused(RefusedFor.CERTIFICATE, why)
        tls = verified((await asyncio.to_thread(self._identity.files.ca.read_bytes)).decode())
        failure: DialError | None = None
        for address in joined.joins:
            endpoint = hub_endpoint(address)
            try:
                return await ask_at(
                    endpoint, Kind.RENEW, question, Issued, node=self._node, tls=tls, limits=self._limits
                )
            except DialError as error:
                failure = error
        assert failure is not None
        raise failure


async def _ask_on(link: Link | None, question: Renew) -> Issued:
    if link is None:  # the next dial renews a certificate that has ended
        raise DialError(_THE_HUB, "there is no link")
    return await ask(link, Kind.RENEW, question, Issued)


async def announce(link: Link, files: TlsFiles) -> None:
    """Tell the hub the key with which this agent will dial next. Certificates in files come from elsewhere.

    Raises:
        DialError, HandshakeRefused: the hub has not noted it.
        NotCarried: the hub is older, and needs no announcement.
    """
    await ask(link, Kind.RENEW, NextKey(await asyncio.to_thread(key_of, files.cert)), Noted)
