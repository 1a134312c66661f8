"""What the passages of CSI calls share (`cloud.passage`): the way to a node, the accounts, and which calls may pass.

* A proxy driver may call only its own driver (`cloud.proxy_rights`), and only the controller side of CSI.
* A hub that stops refuses every call whose request comes from then on.
"""

import logging

from cloud.node_calls import NodeCalls
from cloud.placement.placement import Placement
from cloud.proxy_rights import ProxyRights
from common.accounting import Accounts
from common.csi.methods import is_controller_side
from common.errors import Draining, NotCarried
from common.link import Link
from common.messages import Open
from common.metrics import Metrics
from common.status import Origin

log = logging.getLogger("csi_bridge.hub")

_CARRIED = "the hub forwards only methods of CSI, and of the Node service, which mounts volumes, NodeGetCapabilities"


class CallStreams:
    """The calls of proxy drivers and operators.

    Attributes:
        placement: sends a call to its node.
        counts: counts the calls of each node.
        accounts: note every call.
    """

    def __init__(self, placement: Placement, counts: NodeCalls, metrics: Metrics, rights: ProxyRights) -> None:
        """Without calls.

        Args:
            placement: sends a call to its node.
            counts: counts the calls of each node.
            metrics: counts all of them.
            rights: say which proxy driver may call which driver.
        """
        self.placement = placement
        self.counts = counts
        self.accounts = Accounts(metrics, log, origin=Origin.HUB)
        self._rights = rights
        self._draining = False

    def drain(self) -> None:
        """Refuse every call whose request comes from now on: the nodes' links take no new ones."""
        self._draining = True

    def check(self, link: Link, frame: Open) -> None:
        """Check a call whose request has come.

        Raises:
            Draining: the hub is stopping.
            ForeignDriver, NotAllowed: the proxy driver may not call this driver.
            NotCarried: the method is none of the controller side.
        """
        if self._draining:
            raise Draining("hub")
        self._rights.check(link, frame.subject)
        if not is_controller_side(frame.method):
            raise NotCarried(frame.method, _CARRIED)
