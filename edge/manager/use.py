"""A volume's use: whether it stands in the node's `volumesInUse`, and whether the hub knows that (RULE C12).

It stands there from the first pod on that wants it attached, until it is unstaged. What the hub has confirmed is void
as soon as the volume does not stand there, which the hub is told, too.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from edge.manager.call_inputs import Waiting
from edge.manager.host import VolumeHost
from edge.manager.rows import VolumeRows
from edge.volume_errors import NotReady
from edge.volumes import PodVolume, VolumeKey

log = logging.getLogger("csi_bridge.edge.volumes")


class VolumeUse:
    """The use of one volume."""

    def __init__(self, key: VolumeKey, host: VolumeHost, rows: VolumeRows, confirmed: Callable[[], None]) -> None:
        """Nobody wants it yet; `confirmed` is called when the hub knows what it did not know when it was asked."""
        self._key, self._host, self._rows, self._confirmed = key, host, rows, confirmed
        self._is_needed = False
        self._was_needed = False
        """Since it was unstaged last."""
        self._asking: asyncio.Task[None] | None = None

    @property
    def is_reported(self) -> bool:
        """Whether it is to stand in `volumesInUse`: it needs its attachment, and is wanted or may be mounted."""
        device = self._rows.device
        return self._is_needed or (device is not None and (device.attached or self._was_needed))

    @property
    def is_confirmed(self) -> bool:
        """Whether what `check` has found still holds."""
        return self._asking is not None and self._asking.done()

    def want(self, wants: Iterable[PodVolume]) -> None:
        """Who wants it now."""
        self._look()
        self._is_needed = any(want.volume.rules.attach_required and not want.volume.ephemeral for want in wants)
        self._was_needed = self._was_needed or self._is_needed
        self._look()

    async def check(self) -> None:
        """The hub knows of it: to be asked before a driver stages it for the first time.

        Not again while it may be staged: it has stood in `volumesInUse` since, and the hub may be away (RULE C11).

        Raises:
            Waiting: the hub does not know it yet.
            NotReady: whether it does cannot be found out.
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name=f"volumesInUse {self._key}")
        await asyncio.sleep(0)  # the hub may know it already
        if not self.is_confirmed:
            raise Waiting("the hub has not confirmed yet that this node uses the volume (volumesInUse)")
        if self._asking.exception() is not None:
            log.error("volume %s: cannot wait for volumesInUse", self._key, exc_info=self._asking.exception())
            self._asking = None
            raise NotReady(
                "the agent cannot find out whether the hub knows that this node uses the volume (volumesInUse)"
            )

    def unstaged(self) -> None:
        """It is staged no more: what the hub has confirmed was for this time."""
        self._was_needed = self._is_needed
        self.void()
        self._host.in_use_changed()

    def void(self) -> None:
        """What the hub has confirmed holds no more. Nobody waits for it now."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask(self) -> None:
        await self._host.in_use_acked(self._key)
        self._confirmed()

    def _look(self) -> None:
        if not self.is_reported:
            self.void()
