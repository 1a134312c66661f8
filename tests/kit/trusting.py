"""The rights of nodes whose reports a test says, and of nodes whose every word counts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloud.nodes.node_rights import NodeRights
from common.objects.objects import Ref


class SaidNodes:
    """Nodes that all have reported the same drivers, with one certificate (`cloud.nodes.edge_nodes.Nodes`)."""

    def __init__(self, reported: Mapping[str, Mapping[str, str]] | None = None, named: Sequence[str] = ()) -> None:
        self._reported, self.rights = reported or {}, named

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Their reports never change."""

    def of(self, _node: str) -> "SaidNodes":
        return self

    def reported(self) -> Mapping[str, Mapping[str, str]]:
        return self._reported

    def owner(self, _key: str, value: str, _driver: str) -> str:
        """The zone z1 is the segment of n1, and so on."""
        return value.replace("z", "n") if value.startswith("z") else ""


class _Trusting(NodeRights):
    def believed(self, _node: str, _ref: Ref, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return body


TRUSTING = _Trusting(SaidNodes())  # type: ignore[arg-type]  # all of it that rights need
