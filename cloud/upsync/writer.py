"""A writer: writes the nodes' facts of one kind to Kubernetes."""

from abc import ABC, abstractmethod
from typing import Any

from common.objects import Ref


class Writer(ABC):
    """Writes facts of one kind."""

    @abstractmethod
    async def write(self, node: str, ref: Ref, fact: dict[str, Any] | None) -> float | None:
        """Write a fact; None: the node has withdrawn it. Returns the seconds until the next write, or None.

        Raises:
            KubeError: the write failed; try again.
        """

    def forget(self, node: str, ref: Ref) -> None:  # noqa: B027  # most writers remember nothing
        """Forget an object that is not written any more."""

    def problems(self) -> list[str]:
        return []
