"""An absence: the time in which a node is away.

Rules:

* A node with a kubelet is away while its Node is not Ready. Any other is away while its agent has no link.
* The bridge's link says nothing of a kubelet's mounts, and the Node of a node without a kubelet says nothing new: the
  hub itself writes it.
* A fence is for one absence (`cloud.detach.fences`): `mark` tells it from every later one, also across restarts of the
  hub. Any sign of life ends it: of a node with a kubelet, its agent's link is one, too.
"""

from cloud.detach.mounts import Mounts
from cloud.nodes.edge_nodes import Nodes
from cloud.records.records import Change
from common.errors import timestamp


class Absences:
    """Tells how nodes are away, by their links and their Nodes."""

    def __init__(self, links: Nodes, mounts: Mounts) -> None:
        self._links = links
        self._mounts = mounts

    def knows(self, node: str) -> bool:
        """Whether there is a Node of this name, or such a node has ever connected."""
        return self._links.knows(node) or self._mounts.has_node(node)

    def of(self, node: str) -> str:
        """How a node is away, such as `it is offline since …`; empty if it is not."""
        state = self._mounts.kubelet_state(node)
        if state is None:
            since = self._links.of(node).away_since
            if since is not None:
                return f"it is offline since {timestamp(since)}"
            return "" if self._links.is_connected(node) else "its agent has never connected"
        if state.is_ready:
            return ""
        if not self._mounts.has_node(node):
            return "it has no Node in Kubernetes"
        return "its Node is not Ready" + (f" since {state.since}" if state.since else "")

    def life(self, node: str) -> str:
        """The sign of life of a node, such as `its agent is connected`; empty if there is none."""
        if self._links.is_connected(node):
            return "its agent is connected"
        state = self._mounts.kubelet_state(node)
        if state is not None and state.is_ready:
            return "its Node is Ready"
        if state is not None and state.ready == "False":  # the node controller writes Unknown, a kubelet never does
            return "its kubelet has said lately that it is not ready; wait until its condition Ready is Unknown"
        return ""

    def mark(self, node: str) -> str:
        """A text that no other absence of the node has; empty while there is a sign of life."""
        if self.life(node):
            return ""
        state = self._mounts.kubelet_state(node)
        since = self._links.of(node).away_since
        return f"{since if since is not None else ''}/{state.since if state is not None else ''}"

    def records(self, node: str) -> list[Change]:
        # It may not be written yet: a later hub finds the same mark by it.
        return [self._links.record(node)] if self._links.knows(node) else []
