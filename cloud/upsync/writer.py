"""A writer: writes the nodes' facts of one kind to Kubernetes."""

from abc import ABC, abstractmethod
from typing import Any

from cloud.kube.client import Kube
from common.objects.objects import Ref


class FactWriter(ABC):
    """Writes facts of one kind."""

    def __init__(self, api: Kube) -> None:
        self._api = api
        self._problems: dict[tuple[str, Ref], list[str]] = {}  # for people, in sentences

    @abstractmethod
    async def write(self, node: str, ref: Ref, fact: dict[str, Any] | None) -> float | None:
        """Write a fact; None: the node has withdrawn it. Returns the seconds until the next write, or None.

        Raises KubeError if the write failed: try again.
        """

    def forget(self, node: str, ref: Ref) -> None:
        """Forget an object that is not written any more."""
        self._problems.pop((node, ref), None)

    def problems(self) -> list[str]:
        return [text for key in sorted(self._problems) for text in self._problems[key]]
