"""A port for one role: a listener of the hub that admits edge agents only, or proxy drivers only."""

from cloud.admission import Role
from cloud.uds_hub import Hub
from common.link import Link
from common.messages import Open
from common.receiver import Receiver
from common.status import Origin


class RolePort:
    """Hands the links of one listener to the hub (`common.link.LinkHandler`).

    Attributes:
        role: the only role that the hub admits there.
    """

    origin = Origin.HUB

    def __init__(self, hub: Hub, role: Role) -> None:
        self._hub, self.role = hub, role

    def greeted(self, link: Link) -> None:
        """Admit a peer of the role, or refuse the peer."""
        self._hub.greeted(link, only=self.role)

    def opened(self, link: Link, frame: Open, deadline: float | None) -> Receiver:
        """See `Hub.opened`."""
        return self._hub.opened(link, frame, deadline)

    def refused(self, link: Link, reason: str, message: str) -> None:
        """See `Hub.refused`."""
        self._hub.refused(link, reason, message)

    def closed(self, link: Link, reason: str, message: str) -> None:
        """See `Hub.closed`."""
        self._hub.closed(link, reason, message)

    def draining(self, link: Link, message: str) -> None:
        """See `Hub.draining`."""
        self._hub.draining(link, message)
