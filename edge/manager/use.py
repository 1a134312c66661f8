"""Whether a volume is listed in the node's `volumesInUse`, and whether the hub has stored that.

A volume that needs its attachment, or that is one node's at a time (`common.objects.sole_use`), is listed from the
first pod that wants it until it is unstaged (docs/csi-contract.md#volumesinuse-comes-before-staging). When it leaves
the list, the hub is told, and its confirmation is void. A confirmation that one node's volume is this node's counts for
the present link alone: later, an operator may have given the volume to another node.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from edge.manager.host import VolumeHost
from edge.manager.rows import VolumeRows
from edge.stores.fact_store import FactRefused
from edge.volume_errors import NotReady
from edge.volumes import PodVolume
from edge.wanted.call_inputs import Waiting

_ASK_AGAIN_S = 10.0  # the wait before the hub is asked again for a volume that another node has

log = logging.getLogger("csi_bridge.edge.volumes")


class VolumeUse:
    """The listing of one volume in `volumesInUse`."""

    def __init__(self, host: VolumeHost, rows: VolumeRows, confirmed: Callable[[], None]) -> None:
        """Begin without a pod. `confirmed` is called when the hub's confirmation arrives after `check` has raised."""
        self._key = rows.key
        self._host = host
        self._rows = rows
        self._confirmed = confirmed
        self._is_needed = self._is_sole = False
        self._was_needed = False  # whether any pod has needed it since it was last unstaged
        self._asking: asyncio.Task[None] | None = None
        self._refusal = ""  # why the hub has refused the volume to this node

    @property
    def is_reported(self) -> bool:
        device = self._rows.device
        return self._is_needed or (device is not None and (device.attached or self._was_needed))

    @property
    def is_sole(self) -> bool:
        """Whether one node at a time may have it, as the pods say that want it now, or the row of its staging."""
        device = self._rows.device
        return self._is_sole or (device is not None and device.attached and not device.attachment_uid)

    @property
    def is_confirmed(self) -> bool:
        return self._asking is not None and self._asking.done()

    def want(self, wants: Iterable[PodVolume]) -> None:
        self._void_if_unlisted()
        volumes = [want.volume for want in wants]
        self._is_needed = any(volume.is_listed for volume in volumes)
        self._is_sole = any(volume.is_sole for volume in volumes)
        self._was_needed = self._was_needed or self._is_needed
        self._void_if_unlisted()

    async def check(self) -> None:
        """Return if the hub has confirmed the listing, else raise NotReady. Called before the first staging only.

        While the volume may be staged, the hub may be away (docs/csi-contract.md#mounting-while-the-hub-is-away).
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_hub(), name=f"volumesInUse {self._key}")
        await asyncio.sleep(0)  # the hub may have confirmed already
        if not self.is_confirmed:
            why = f": {self._refusal}" if self._refusal else ""
            raise Waiting(f"the hub has not confirmed yet that this node uses the volume (volumesInUse){why}")
        if self._asking.exception() is not None:
            log.error("volume %s: cannot wait for volumesInUse", self._key, exc_info=self._asking.exception())
            self._asking = None
            raise NotReady(
                "the agent cannot find out whether the hub knows that this node uses the volume (volumesInUse)"
            )

    def unstaged(self) -> None:
        """Void the confirmation after unstaging: it was for the volume's past use."""
        self._was_needed = self._is_needed
        self.void()
        self._host.use_changed()

    def void(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self._refusal = ""

    def out_of_step(self) -> None:
        """Void the confirmation of a volume that is one node's: the link is gone."""
        if self.is_sole:
            self.void()

    async def _ask_hub(self) -> None:
        while True:
            try:
                await self._host.in_use_acked(self._key if self.is_sole else None)
            except FactRefused as error:
                self._refusal = str(error)
                again = asyncio.Event()
                self._host.clock.call_later(_ASK_AGAIN_S, again.set)
                await again.wait()
            else:
                self._confirmed()
                return

    def _void_if_unlisted(self) -> None:
        if not self.is_reported:
            self.void()
