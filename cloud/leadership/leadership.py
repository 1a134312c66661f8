"""The leadership: when a hub may take the Lease of its cluster, and until when it may act by it.

Rules, which are those of client-go's leaderelection except for the last two:

* A waiting hub takes the Lease when its spec has not changed for the duration in it, by the hub's own clock, and not
  before its own duration: somebody may have edited the Lease. The times in the Lease are for people: two machines'
  clocks are never compared.
* A leader may act for `--leader-election-renew-deadline` from the sending of its last renewal that succeeded. That ends
  before anybody else may take the Lease. A leadership that has ended is not renewed.
* A released Lease is free at once, unless this hub has seen a later state of it: the API server was restored from a
  backup, and the holder may still run. A release sets both times; an edit that only erases the holder releases nothing.
* So is at the first look the Lease of an earlier process with the same place (`StateDirectory.place`): this process has
  the lock of their state directory, so the earlier one has ended.
* A missing Lease, and one that nobody has ever held, are free after a whole duration: somebody may have deleted the
  Lease while a hub held it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

NAME: Final = "csi-bridge-hub"  # the Lease
_RELEASED_S: Final = 1  # the duration in a released Lease, as client-go writes it (ReleaseOnCancel)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The Lease as a hub has read it; without arguments, a missing one."""

    holder: str = ""  # the identity of the hub that holds it; empty: none does
    duration_s: int = 0  # how long it must not have changed before another hub takes it; 0: it does not say
    transitions: int = 0  # how often it went to another holder
    version: str = ""  # its resource version; empty: there is no Lease
    renewed: str = ""  # by the holder's clock; empty: it does not say
    acquired: str = ""


def read_lease(lease: dict[str, Any]) -> LeaseRecord:
    metadata = lease["metadata"]
    spec = lease.get("spec") or {}
    return LeaseRecord(
        spec.get("holderIdentity") or "",
        spec.get("leaseDurationSeconds") or 0,
        spec.get("leaseTransitions") or 0,
        metadata["resourceVersion"],
        spec.get("renewTime") or "",
        spec.get("acquireTime") or "",
    )


def taken(record: LeaseRecord, identity: str, *, duration_s: int, time: str) -> dict[str, Any]:
    """The change with which a hub takes the Lease, in the state in which it has read it."""
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": duration_s,
        "acquireTime": time,
        "renewTime": time,
        "leaseTransitions": (record.transitions + 1) % 2**31,  # an int32 in the API, which somebody may have edited
    }
    return {"spec": spec}


def released(time: str) -> dict[str, Any]:
    return {"spec": {"holderIdentity": "", "leaseDurationSeconds": _RELEASED_S, "acquireTime": time, "renewTime": time}}


class Sighting:
    """One waiting hub's view of the Lease, by its own clock."""

    def __init__(self, identity: str, duration_s: float) -> None:
        """`identity` is the hub's, and ends with its place; `duration_s` is the shortest wait."""
        self._identity = identity
        self._duration_s = duration_s
        self._seen: LeaseRecord | None = None
        self._free_at = 0.0

    def free_at(self, record: LeaseRecord, now: float) -> float:
        """When the Lease is free if it stays as it was just read; it is free now if that is not after `now`."""
        before = self._seen
        self._seen = record
        if before is None or replace(record, version=before.version) != before:
            self._free_at = now + (0.0 if self._is_free(record, before) else max(record.duration_s, self._duration_s))
        return self._free_at

    def _is_free(self, record: LeaseRecord, before: LeaseRecord | None) -> bool:
        if not record.holder:
            is_older = before is not None and int(record.version or 0) < int(before.version or 0)
            is_released = record.duration_s == _RELEASED_S and record.acquired == record.renewed
            return is_released and not is_older
        if record.holder == self._identity:  # the answer to its taking was lost
            return True
        return before is None and record.holder.endswith(self._identity[self._identity.rindex("_") :])


class Leadership:
    """One hub's right to act as the only one of its cluster."""

    def __init__(self, until: float, now: Callable[[], float]) -> None:
        """It ends at `until`, of the clock `now`, which counts the time in which the machine was suspended."""
        self._until = until
        self._now = now

    @property
    def left_s(self) -> float:
        return self._until - self._now()

    def holds(self) -> bool:
        return self.left_s > 0

    def end(self) -> None:
        self._until = -math.inf

    def renew(self, until: float) -> None:
        # One that has ended stays ended.
        if self.holds():
            self._until = max(self._until, until)
