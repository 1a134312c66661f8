"""A secret reader: reads one Secret, for `on_demand`."""

from typing import Final

from cloud.kube import RESOURCES, Body, Kube, KubeError
from common.objects import Ref

REFRESH_S: Final = 60.0
"""The time between two reads of one Secret, as in a kubelet that does not watch Secrets."""


class SecretReader:
    """Reads Secrets (`on_demand.Getter`)."""

    def __init__(self, api: Kube) -> None:
        self._api = api

    async def get(self, ref: Ref) -> tuple[Body | None, float]:
        try:
            return await self._api.get(RESOURCES["Secret"], ref.name, ref.namespace), REFRESH_S
        except KubeError as error:
            if not error.is_missing:
                raise
            return None, REFRESH_S

    def stand_in(self, _ref: Ref, _error: KubeError) -> None:
        """None: a node would take a stand-in for a Secret without values."""

    def in_words(self, ref: Ref, error: KubeError) -> str:
        return f"{ref} cannot be read, and nodes keep their copy of it: {error}"
