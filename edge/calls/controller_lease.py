"""A controller lease: the agent may change shared storage while its hub answers, by the agent's own clock.

A driver whose storage every node reaches has one serving node, which the hub elects. When that node is away, another
one takes its work over. So an agent that cannot hear its hub has to stop, because the hub cannot tell it to.

Rules:

* A call that came with an election's epoch (`Open.epoch`) begins only while the lease holds. Without a lease the call
  waits for one. The driver's call asks again when its request is about to leave: it may wait for a connection, and the
  process may be stopped meanwhile (`may_begin` of `common.relay.client_call`).
* A pong on the active link renews the lease, for `length_s` from when the *ping was sent*. After a stop of the
  process, the answers that it reads may be old.
* The clock goes on while the machine is suspended.
* When the lease ends, the agent cancels the calls that it has begun under it. A driver may finish them all the same
  (docs/recovery.md#the-serving-node-of-a-shared-driver).
* Volumes with `csi-bridge.io/offline: fence` are mounted under the same lease. When it ends, the agent shuts
  their file systems down (`edge.fencing`).
* The agent pings on its own only while it needs the lease: since a call with an epoch came on this link, or while one
  runs or a volume is held. An idle link costs nothing more.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from common.session.link import Link

log = logging.getLogger("csi_bridge.edge.lease")

_PINGS = 4  # the pings in one length of the lease: three may be slow or late, and the lease still holds

# While calls run under the lease, the clock is looked at in this interval: the loop's timers stand still in a suspend.
_LOOK_S = 1.0


class Leased(Protocol):
    """Something that runs under the lease."""

    def lose(self) -> None:
        """The lease has ended: stop."""


def boot_time() -> float:
    # It goes on while the machine is suspended.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():  # the waiting task may be cancelled in this turn of the loop
        future.set_result(None)


class ControllerLease:
    """The lease of one agent. It does not hold before the first pong."""

    def __init__(self, length_s: float, *, clock: Callable[[], float] = boot_time) -> None:
        self.length_s = length_s  # how long a pong renews it, from the ping's sending
        # Called with the lease's new end, by the clock, before anything may begin under it.
        self.renewed: Callable[[float], None] = lambda _ends_at: None
        self._clock = clock
        self._link: Link | None = None
        self._ends_at: float | None = None  # by the clock; None if no lease was needed since the link came
        self._pinged_at: float | None = None  # when the last ping was sent on this link
        self._awaits_pong = False
        self._is_needed = False
        self._is_lost = False
        self._running: dict[Leased, None] = {}  # what runs under the lease, in order
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    # ---- the link ----------------------------------------------------------------------------------------------------

    def up(self, link: Link) -> None:
        # the lease is renewed on it once an operation with an epoch comes, or if one still runs
        self._link = link
        self._pinged_at = None
        self._awaits_pong = False
        self._is_needed = bool(self._running or self._waiting)
        self._is_lost = self._is_lost and self._is_needed
        self._check_times()

    def down(self, link: Link) -> None:
        # what runs under the lease goes on until its end
        if link is self._link:
            self._link = None

    # ---- calls -------------------------------------------------------------------------------------------------------

    def holds(self) -> bool:
        return self._ends_at is not None and self._clock() < self._ends_at

    def need(self) -> bool:
        """Note that an operation with an epoch has come. Returns whether it may begin now; if not, `wait`."""
        holds = self.holds()
        if not self._is_needed:
            self._is_needed = True
            if not holds:
                self._ends_at = None  # nobody needed it when it ended, so nothing was lost
            self._check_times()
        return holds

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once the lease holds, unless `leave` comes first."""
        self._waiting[go_on] = None
        self._check_times()

    def leave(self, go_on: Callable[[], None]) -> None:
        self._waiting.pop(go_on, None)

    async def wait_held(self) -> None:
        while not self.need():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            go_on = partial(_wake, future)
            self.wait(go_on)
            try:
                await future
            finally:
                self.leave(go_on)

    def resume(self, ends_at: float) -> None:
        """Go on with the lease of the agent's last start, which has not ended yet."""
        self._ends_at = ends_at
        self._is_needed = True
        self._check_times()

    def begin(self, item: Leased) -> None:
        """Call `item.lose()` when the lease ends, unless `end` comes first. Never before this returns."""
        self._running[item] = None
        if len(self._running) == 1:
            self._set_timer(self._clock())

    def end(self, item: Leased) -> None:
        self._running.pop(item, None)

    # ---- for people --------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        if not self._is_lost:
            return []
        what = "the agent has cancelled its operations of shared drivers, and begins no other until the hub answers"
        return [f"no answer of the hub for {self.length_s:g} s (--controller-lease): {what}"]

    # ---- pings and the end -------------------------------------------------------------------------------------------

    def _check_times(self) -> None:
        now = self._clock()
        if self._is_needed and not self._is_lost and self._ends_at is not None and now >= self._ends_at:
            self._lose()
        if self._link is not None and self._is_needed and self._is_ping_due(now):
            self._ping(self._link, now)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end = None if self._is_lost else self._ends_at
        due = [max(0.0, at - now) for at in (end, self._next_ping()) if at is not None]
        if self._is_needed and (due or self._running):
            wait_s = min(due + [_LOOK_S] * bool(self._running))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._check_times)

    def _next_ping(self) -> float | None:
        if self._link is None or self._pinged_at is None:
            return None
        return self._pinged_at + (self.length_s if self._awaits_pong else self.length_s / _PINGS)

    def _is_ping_due(self, now: float) -> bool:
        # One ping at a time, because a slow pong counts too, until it would be of no use.
        at = self._next_ping()
        return at is None or now >= at or (bool(self._waiting) and not self._awaits_pong)

    def _ping(self, link: Link, now: float) -> None:
        self._pinged_at = now
        self._awaits_pong = True
        link.ping(partial(self._renew, link, now))

    def _renew(self, link: Link, sent_at: float) -> None:
        if link is not self._link:
            return
        self._awaits_pong = False
        self._ends_at = max(self._ends_at or 0.0, sent_at + self.length_s)
        self.renewed(self._ends_at)
        if self.holds():
            if self._is_lost:
                self._is_lost = False
                log.info("the hub answers again: operations of shared drivers may begin")
            waiting = self._waiting
            self._waiting = {}
            for go_on in waiting:
                go_on()
        self._check_times()

    def _lose(self) -> None:
        self._is_lost = True
        running = self._running
        self._running = {}
        log.warning("%s", *self.problems())
        for item in running:
            item.lose()
