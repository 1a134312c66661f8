"""A visit: one link of an edge node, from its hello to its end."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from common.csi.reports import DriverReport
from common.errors import CallError, CallTimeout, LinkLost, Overloaded, TunnelClosed, node_offline, shutting_down
from common.session.link import Link

_LONGEST_LEASE_S = 86_400  # the longest `--controller-lease`


@dataclass(slots=True)
class Visit:
    """One link of a node."""

    node: str
    link: Link
    began: float  # when its hello came, monotonic
    ended: float = 0.0  # when it ended, was replaced, or was first found to be over, since the epoch; 0 before
    told: Mapping[str, DriverReport] = field(default_factory=dict)  # the agent's last reports, by driver
    gone: AbstractSet[str] = frozenset()  # drivers that the agent has reported on this link, and reports no more
    # the number that is under way, by driver
    calls: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    untaken: str = ""  # why the newest reports do not count
    problems: Sequence[str] = ()  # what must be solved on the node, as its agent says

    @property
    def lease_s(self) -> int:
        """The controller lease of the agent; 0: it announces none. A longer one than any agent's counts as none."""
        lease_s = self.link.peer.controller_lease_s
        return lease_s if 0 < lease_s <= _LONGEST_LEASE_S else 0

    def not_sent(self, error: Overloaded | TunnelClosed) -> CallError:
        if isinstance(error, Overloaded):
            return Overloaded(f"agent of edge node {self.node}", error.limit, error.flag)
        return (
            self._offline() if self.link.over else shutting_down("hub")
        )  # it lives and takes none: this hub drains it

    def fault(self, error: TunnelClosed | CallTimeout, driver: str, limit_s: float | None) -> CallError:
        """The error for a call that ended without the node's status."""
        named: CallError
        if isinstance(error, CallTimeout):
            named = CallTimeout(f"driver {driver} on edge node {self.node}", limit_s)
        else:
            named = LinkLost(f"edge node {self.node}") if error.sent else self._offline()
        named.__cause__ = error
        return named

    def _offline(self) -> CallError:
        # The first such call may come before the hub hears that the link is gone. A retry gets the same time, because
        # the node may be back.
        self.ended = self.ended or time.time()
        return node_offline(self.node, self.ended)
