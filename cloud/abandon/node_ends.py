"""The end of a node: the parts of a hub that an operator's order about a node that is gone works on."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from cloud.edge_nodes import Nodes
from cloud.placement.placement import Placement
from cloud.trust.denials import Denials
from cloud.unique_segments import UniqueSegments
from common.errors import OperatorRefused


class Forget(Protocol):
    """Lets the hub forget what it knows of a node. Raises OperatorRefused if it cannot."""

    def __call__(self, node: str) -> Awaitable[None]:
        """Forget it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnds:
    """The parts of one hub.

    Attributes:
        nodes: the nodes that it knows.
        placement: the names and ids that nodes have.
        denials: the nodes that may not connect.
        segments: the topology segments that belong to one node each.
        forget: forgets a node.
    """

    nodes: Nodes
    placement: Placement
    denials: Denials
    segments: UniqueSegments
    forget: Forget

    def check(self, node: str, what: str) -> None:
        """Check that a node cannot come back.

        Raises:
            OperatorRefused: it can. `what` says what is not done.
        """
        if not self.denials.denies(node):
            raise OperatorRefused(what, f"{node} may come back; first run csi-bridge deny {node}")
        if self.nodes.is_connected(node):
            raise OperatorRefused(what, f"{node} is still connected; its links end at once, so try again")
