"""The right of a proxy driver to call a driver: its own name, and the policy's word.

Rules:

* A proxy driver calls only the driver of its hello. The policy may forbid even that.
* Over the network, its identity is the name in its certificate. On the hub's UNIX socket it is `uid:N`: there every
  client can claim any name.
* The hub asks the policy at each call, so that a change counts for proxy drivers that are connected.
* A refused pair of identity and driver is logged once and counted, until the policy allows it.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from cloud.admission import Role
from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.policy import Verdict
from common.errors import ForeignDriver, NotAllowed
from common.link import Link
from common.logs import of_peer
from common.metrics import Metrics
from common.pages.hub import DeniedProxy
from common.pages.json_form import time_of

log = logging.getLogger("csi_bridge.hub")

_MOST_DENIED = 100
"""The most pairs that are shown. A client of the UNIX socket can invent drivers, so the oldest ones are dropped."""


class CallPolicy(Protocol):
    """The part of `cloud.trust.policy_file.PolicyFile` that this module uses."""

    def allows_call(self, identity: str, driver: str) -> Verdict:
        """Whether a proxy driver of this identity may call a driver."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever another policy is in force."""


class ProxyRights:
    """Checks the calls and watches of proxy drivers, and remembers those that the policy forbids."""

    def __init__(self, policy: CallPolicy, metrics: Metrics) -> None:
        """Without a denial.

        Args:
            policy: says which proxy drivers may call which drivers.
            metrics: counts the denials.
        """
        self._policy = policy
        self._metrics = metrics
        self._denied: OrderedDict[tuple[str, str], DeniedProxy] = OrderedDict()
        policy.subscribe(self._judge_again)

    def check(self, link: Link, driver: str) -> None:
        """Check a proxy driver's call or watch of a driver. An operator may call every driver.

        Raises:
            ForeignDriver: it asks for another driver than its own.
            NotAllowed: the policy forbids it.
        """
        if link.context.role is not Role.DRIVER:
            return
        if driver != link.peer.name:
            raise ForeignDriver(link.peer.name, driver)
        identity = _identity(link)
        verdict = self._policy.allows_call(identity, driver)
        if not verdict.allowed:
            self._note(identity, driver, link.peer_identity.address, verdict.why)
            raise NotAllowed(identity, driver, verdict.why)

    def denied(self) -> list[DeniedProxy]:
        """The pairs that the policy forbids, the oldest first, for operators."""
        return list(self._denied.values())

    def _note(self, identity: str, driver: str, address: str, why: str) -> None:
        self._metrics.policy_denial("call")
        audit.add(Event.REFUSAL, who=identity, address=address, role=Role.DRIVER, driver=driver, why=why)
        known = self._denied.get((identity, driver))
        if known is None:
            by = of_peer(f"driver {identity}")
            log.warning("proxy driver %s at %s may not call driver %s: %s", identity, address, driver, why, extra=by)
        self._denied[identity, driver] = DeniedProxy(
            identity=identity,
            driver=driver,
            address=address,
            at=time_of(time.time()),
            times=1 if known is None else known.times + 1,
            why=why,
        )
        if len(self._denied) > _MOST_DENIED:
            self._denied.popitem(last=False)

    def _judge_again(self) -> None:
        for (identity, driver), known in list(self._denied.items()):
            verdict = self._policy.allows_call(identity, driver)
            if verdict.allowed:
                del self._denied[identity, driver]
                log.info("proxy driver %s may call driver %s again: %s", identity, driver, verdict.why)
            else:
                self._denied[identity, driver] = replace(known, why=verdict.why)


def _identity(link: Link) -> str:
    peer = link.peer_identity
    return f"uid:{peer.uid}" if peer.local else link.peer.name
