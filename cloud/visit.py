"""A visit: one link of an edge node, from its hello to its end."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from common.errors import CallError, CallTimeout, Draining, LinkLost, NodeOffline, Overloaded, TunnelClosed
from common.link import Link
from common.reports import DriverReport


@dataclass(slots=True)
class Visit:
    """One link of a node.

    Attributes:
        node: the node's name.
        link: the link.
        began: when its hello came, in seconds of the monotonic clock.
        ended: when the link ended, was replaced, or was first found to be over, in seconds since the epoch; 0 before.
        told: its agent's last reports, by driver.
        gone: drivers that its agent has reported on this link, and reports no more.
        calls: the number of calls that are under way on it, by driver.
        untaken: why the hub could not take its agent's newest reports; empty if it could.
        problems: what its agent says must be solved on the node.
    """

    node: str
    link: Link
    began: float
    ended: float = 0.0
    told: Mapping[str, DriverReport] = field(default_factory=dict)
    gone: AbstractSet[str] = frozenset()
    calls: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    untaken: str = ""
    problems: Sequence[str] = ()

    def not_sent(self, error: Overloaded | TunnelClosed) -> CallError:
        """The error for a call that the link did not take."""
        if isinstance(error, Overloaded):
            return Overloaded(f"agent of edge node {self.node}", error.limit, error.flag)
        return self._offline() if self.link.over else Draining("hub")  # it lives and takes none: this hub drains it

    def fault(self, error: TunnelClosed | CallTimeout, driver: str, limit_s: float | None) -> CallError:
        """The error for a call that ended without the node's status. It is one of these.

        NodeOffline: the node left before anything of the call was sent.
        LinkLost: the node left with the call under way.
        CallTimeout: the caller's time is up.
        """
        named: CallError
        if isinstance(error, CallTimeout):
            named = CallTimeout(f"driver {driver} on edge node {self.node}", limit_s)
        else:
            named = LinkLost(f"edge node {self.node}") if error.sent else self._offline()
        named.__cause__ = error
        return named

    def _offline(self) -> NodeOffline:
        """The error for a call of which nothing was sent. It has the time of this link's end: the node may be back.

        The first such call may come before the hub hears that the link is gone. A retry gets the same time.
        """
        self.ended = self.ended or time.time()
        return NodeOffline(self.node, self.ended)
