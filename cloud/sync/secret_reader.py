"""A secret reader: reads the Secrets that closures need, one by one, again and again.

Rules:

* Nobody lists or watches Secrets: the hub needs no permission for that, and holds none that no node needs.
* A new one is read at once, each of the others once a minute.
* As long as the API server has not answered, nothing is known of a Secret: neither that it is gone nor that it changed.
"""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from cloud.kube import RESOURCES, KubeError, Resource
from common.objects import Ref

log = logging.getLogger("csi_bridge.hub.cluster")

REFRESH_S: Final = 60.0
"""Between two looks at one Secret: the kubelet's (its cache of Secrets lives so long where it does not watch them)."""

_RETRY_S: Final = 5.0
"""After a failure."""


class Api(Protocol):
    """What is asked of `cloud.kube.Kube`."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        """One object."""


class SecretReader:
    """Reads what is in use: `run` it."""

    def __init__(
        self,
        api: Api,
        found: Callable[[Ref, dict[str, Any] | None], None],
        *,
        now: Callable[[], float],
    ) -> None:
        """Nothing is in use yet.

        Args:
            api: the API server.
            found: called with each one read, None if there is none of that name.
            now: the monotonic clock.
        """
        self._api, self._found, self._now = api, found, now
        self._due: dict[Ref, float] = {}
        self._order: list[tuple[float, Ref]] = []
        """A heap of all that is or was due; what `_due` does not say counts no more."""
        self._known: set[Ref] = set()
        self._problems: dict[Ref, str] = {}
        self._woken = asyncio.Event()

    def use(self, ref: Ref) -> None:
        """A closure needs it from now on."""
        if ref not in self._due:
            self._plan(ref, 0.0)
        self._woken.set()

    def release(self, ref: Ref) -> None:
        """No closure needs it any more."""
        for kept in (self._due, self._problems):
            kept.pop(ref, None)
        self._known.discard(ref)

    def knows(self, ref: Ref) -> bool:
        """Whether the API server has said what there is."""
        return ref in self._known

    def problems(self) -> list[str]:
        """Which ones cannot be read, in sentences."""
        return list(self._problems.values())

    async def run(self) -> None:
        """Read them until cancelled."""
        while True:
            self._woken.clear()
            if self._order and self._order[0][0] <= self._now():
                due, ref = heapq.heappop(self._order)
                if self._due.get(ref) == due:
                    await self._read(ref)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._order[0][0] - self._now() if self._order else None):
                    await self._woken.wait()

    def _plan(self, ref: Ref, in_s: float) -> None:
        self._due[ref] = due = self._now() + in_s
        heapq.heappush(self._order, (due, ref))

    async def _read(self, ref: Ref) -> None:
        try:
            body = await self._api.get(RESOURCES["Secret"], ref.name, ref.namespace)
        except KubeError as error:
            if not error.is_missing:
                self._failed(ref, error)
                return
            body = None
        if ref not in self._due:  # released meanwhile
            return
        self._plan(ref, REFRESH_S)
        self._problems.pop(ref, None)
        self._known.add(ref)
        self._found(ref, body)

    def _failed(self, ref: Ref, error: KubeError) -> None:
        if ref not in self._due:
            return
        self._plan(ref, REFRESH_S if error.is_refusal else _RETRY_S)
        text = f"{ref} cannot be read, and nodes get what was known of it: {error}"
        if self._problems.get(ref) != text:
            log.warning("%s", text)
            self._problems[ref] = text
        if error.is_refusal and ref not in self._known:  # it may stay so: the nodes do not wait for it
            self._known.add(ref)
            self._found(ref, None)
