"""A secret reader: reads one Secret, for `on_demand`."""

from typing import Any, Final, Protocol

from cloud.kube import RESOURCES, KubeError, Resource
from common.objects import Ref

REFRESH_S: Final = 60.0
"""Between two looks at one Secret: the kubelet's (its cache of Secrets lives so long where it does not watch them)."""

Body = dict[str, Any]


class SecretApi(Protocol):
    """What is asked of `cloud.kube.Kube`."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        """One object."""


class SecretReader:
    """Reads Secrets (`on_demand.Getter`)."""

    def __init__(self, api: SecretApi) -> None:
        self._api = api

    async def get(self, ref: Ref) -> tuple[Body | None, float]:
        """A Secret, None if there is none.

        Raises:
            KubeError: it was refused, or not answered.
        """
        try:
            return await self._api.get(RESOURCES["Secret"], ref.name, ref.namespace), REFRESH_S
        except KubeError as error:
            if not error.is_missing:
                raise
            return None, REFRESH_S

    def stand_in(self, _ref: Ref, _error: KubeError) -> None:
        """Nothing: it would be taken for a Secret without values."""

    def in_words(self, ref: Ref, error: KubeError) -> str:
        """For people."""
        return f"{ref} cannot be read, and nodes keep their copy of it: {error}"
