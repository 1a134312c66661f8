"""A renewal: gives a joined agent its next certificate in time, and moves its link to it.

Rules:

* The agent asks for its next certificate at about two thirds of the present one's life, on its link. The time varies by
  some percent, so that nodes that joined together do not renew together.
* The hub voids the former key when the next one has authenticated. So the agent first stores the certificate, and then
  moves its link to it (`common.links.uplink`): running calls finish on the former link.
* A node that was away past its certificate's end asks at the hub's join listener before it dials, with the signature of
  its present key.
* The clocks of node and hub may be wrong, also when the certificate was issued. The hub's clock decides whether a
  certificate counts. So the agent dials whatever the join listener answers. If a dial failed, and the certificate is
  due or begins in the future by this clock, the agent asks there, too.
* A hub whose certificates end at once, or end at once by a clock that is ahead, is asked less and less often.
* `edge join` may run beside the agent. The agent then moves its link to the new key.
* If the hub refuses, the agent goes on with its certificate, tells the reason, and asks again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from common.errors import CallError, DialError, HandshakeRefused, SettingsError, timestamp
from common.links.backoff import Backoff
from common.links.uplink import Uplink
from common.messages import Kind
from common.net.certificate_ends import Term
from common.net.enrolment import Issued, RefusedFor, Renew
from common.net.proxy import Proxy
from common.session.limits import Limits
from common.session.link import Link
from edge.identity.hub_questions import ask, ask_at, first_answer, verified
from edge.identity.identity import Identity

log = logging.getLogger("csi_bridge.edge.renewal")

# The part of a certificate's life after which the agent renews it. The rest is for a hub that is away.
RENEW_AT = 2 / 3

_SPREAD = 0.05  # the renewal comes up to this part of the life earlier or later

# The longest sleep: a clock that was set, a machine that was suspended, or a new join is noticed after this time.
_LOOK_S = 20.0

# A certificate that ends within this time has a wrong clock or a hostile hub behind it: the shortest `--cert-ttl` is
# 10 s.
_SHORT_S = 5.0

# The waits after a renewal that failed. A third of a certificate's life has room for many.
_FAILED = Backoff(first_s=1.0, most_s=600.0, jitter=lambda longest_s: random.uniform(longest_s / 2, longest_s))  # noqa: S311  # no secret

_THE_HUB = "the hub"


def due_at(term: Term, *, spread: float) -> float:
    """When a certificate is renewed. `spread` is from -1, as early as allowed, to 1, as late."""
    return term.begins_at + (term.ends_at - term.begins_at) * (RENEW_AT + spread * _SPREAD)


def _spread() -> float:
    return random.uniform(-1, 1)  # noqa: S311  # jitter, not a secret


class Renewal:
    """Renews the certificate of one joined agent. `run()` is its task; `before_dial()` is for its uplink."""

    def __init__(
        self,
        identity: Identity,
        node: str,
        *,
        limits: Limits,
        proxy: Proxy | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._node = node
        self._limits = limits
        self._proxy = proxy
        self._clock = clock
        self._monotonic = monotonic
        self._problem = ""
        self._short = 0  # the renewals in a row that gave a certificate which ends at once
        self._rests_until = 0.0  # no renewal before, in seconds of the monotonic clock
        self._asking = asyncio.Lock()

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []

    async def before_dial(self, failures: int) -> None:
        """Get the next certificate from the join listener, if the hub would refuse the present one. Never raises."""
        try:
            async with self._asking:
                if self._rests_until <= self._monotonic() and self._is_refused(failed=failures > 0):
                    await self._renew(self._ask_listener, signed=True)
        except (DialError, HandshakeRefused) as error:
            self._tell_failure(error)

    async def run(self, uplink: Uplink) -> None:
        failures = 0
        spread = _spread()
        while True:
            try:
                async with self._asking:
                    wait_s = due_at(self._term(), spread=spread) - self._clock()
                    wait_s = max(wait_s, self._rests_until - self._monotonic())
                    if wait_s <= 0:
                        await self._renew(lambda question: _ask_on(uplink.link, question), signed=False)
                    elif uplink.is_outdated:  # `edge join` has stored one beside this agent
                        uplink.move()
            except (DialError, HandshakeRefused) as error:
                self._tell_failure(error)
                failures += 1
                await asyncio.sleep(_FAILED.wait_s(failures))
                continue
            if wait_s <= 0:
                failures = 0
                spread = _spread()
                uplink.move()
            else:
                await asyncio.sleep(min(wait_s, _LOOK_S))

    def _term(self) -> Term:
        try:
            return self._identity.term()
        except (OSError, ValueError) as error:
            why = f"{self._identity.files.cert} cannot be read: {error}; join again with a new token"
            raise HandshakeRefused(RefusedFor.CERTIFICATE, why) from error

    def _is_refused(self, *, failed: bool) -> bool:
        # A dial may also have failed because of the clocks.
        term = self._term()
        now = self._clock()
        return now >= term.ends_at or (
            failed and (now >= due_at(term, spread=1) or now < self._identity.dates().begins_at)
        )

    async def _renew(self, ask_hub: Callable[[Renew], Awaitable[Issued]], *, signed: bool) -> None:
        try:
            with self._identity.held():
                question = await asyncio.to_thread(self._identity.renewal, signed=signed)
                issued = await ask_hub(question)
                await asyncio.to_thread(self._identity.store, issued, self._node, now=self._clock())
        except BlockingIOError as error:
            raise DialError(_THE_HUB, "another process gets a certificate for this state directory") from error
        except (OSError, ValueError, SettingsError) as error:
            raise DialError(_THE_HUB, f"the next certificate cannot be made or stored: {error}") from error
        except CallError as error:
            raise HandshakeRefused(RefusedFor.NO_CA_KEY, f"this hub renews no certificates: {error}") from error
        ends_at = self._term().ends_at
        log.info("the certificate was renewed, and is valid until %s", timestamp(ends_at))
        left_s = ends_at - self._clock()
        self._short = self._short + 1 if left_s < _SHORT_S else 0
        self._rests_until = 0.0
        self._problem = ""
        if self._short:
            self._rests_until = self._monotonic() + _FAILED.wait_s(self._short)
            self._tell_problem(
                f"by this node's clock, the newest certificate ends {max(left_s, 0):.0f} s after its renewal; compare "
                f"the clocks of this node and of the hub, and the hub's --cert-ttl"
            )

    def _tell_failure(self, error: Exception) -> None:
        try:
            valid = f", valid until {timestamp(self._identity.term().ends_at)},"
        except (OSError, ValueError):
            valid = ""
        self._tell_problem(f"this node's certificate{valid} cannot be renewed: {error}")

    def _tell_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("%s; the agent tries again", problem)

    async def _ask_listener(self, question: Renew) -> Issued:
        joined = await asyncio.to_thread(self._identity.joined)
        if joined is None or not joined.joins:
            why = "it has ended, and the hub told no join listener for such a case; join again with a new token"
            raise HandshakeRefused(RefusedFor.CERTIFICATE, why)
        tls = verified((await asyncio.to_thread(self._identity.files.ca.read_bytes)).decode())
        asking = partial(ask_at, node=self._node, tls=tls, limits=self._limits, proxy=self._proxy)
        issued, _ = await first_answer(joined.joins, lambda at: asking(at, Kind.RENEW, question, Issued))
        return issued


async def _ask_on(link: Link | None, question: Renew) -> Issued:
    if link is None:  # the next dial renews a certificate that has ended
        raise DialError(_THE_HUB, "there is no link")
    return await ask(link, Kind.RENEW, question, Issued)
