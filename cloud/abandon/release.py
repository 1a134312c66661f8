"""The release of a node's own storage: one pass, and what it did."""

from dataclasses import dataclass, field
from typing import Protocol

from cloud.abandon.own_storage import Owner, Records
from common.operator_orders import Released


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of a pass.

    Attributes:
        found: the objects, in the order of their release.
        names: the values of the segments that tie the volumes to the node, and the node's name.
        namespaces: those of the claims and VolumeSnapshots.
    """

    found: list[Released] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)


class Release(Protocol):
    """Releases the own storage of a node."""

    async def run(self, node: str, owner: Owner, records: Records, *, is_dry: bool) -> Pass:
        """Make one pass. Changes nothing if it is dry.

        Args:
            node: the node.
            owner: the owners of topology segments.
            records: the hub's records.
            is_dry: change nothing, and say what would go.

        Raises:
            NotReleased: the cluster cannot be read or changed.
        """


class NotReleased(Exception):
    """The cluster cannot be read, or refuses a change.

    Attributes:
        is_forbidden: the hub has no permission for it.
    """

    def __init__(self, why: str, *, is_forbidden: bool) -> None:
        super().__init__(why)
        self.is_forbidden = is_forbidden
