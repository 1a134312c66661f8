"""A key: what two calls must not work on at once.

A call waits for the one before it, so the retry of a slow CreateVolume finds the volume made and answers with it. The
CSI spec allows ABORTED as well (Concurrency); waiting costs the caller fewer retries.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf.message import Message

FIELDS = {
    "CreateVolume": ("volume name", "name"),
    "DeleteVolume": ("volume", "volume_id"),
    "ControllerPublishVolume": ("volume", "volume_id"),
    "ControllerUnpublishVolume": ("volume", "volume_id"),
    "ControllerExpandVolume": ("volume", "volume_id"),
    "ControllerModifyVolume": ("volume", "volume_id"),
    "CreateSnapshot": ("snapshot name", "name"),
    "DeleteSnapshot": ("snapshot", "snapshot_id"),
    "CreateVolumeGroupSnapshot": ("group name", "name"),
    "DeleteVolumeGroupSnapshot": ("group", "group_snapshot_id"),
    "NodeStageVolume": ("volume", "volume_id"),
    "NodeUnstageVolume": ("volume", "volume_id"),
    "NodePublishVolume": ("volume", "volume_id"),
    "NodeUnpublishVolume": ("volume", "volume_id"),
    "NodeExpandVolume": ("volume", "volume_id"),
}
"""Per method that changes something: the kind of object, and the field that names it. Others run at any time."""


class Keys:
    """The keys in use in this process. Other processes are kept apart by `Phase` and by SQLite."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def held(self, method: str, request: Message) -> AsyncIterator[None]:
        """Hold the key of a call; waits for its turn. Cancelling ends the wait, and passes the turn on."""
        if method not in FIELDS:
            yield
            return
        kind, field = FIELDS[method]
        key = (kind, getattr(request, field))
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
