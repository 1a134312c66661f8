"""The recent things: those that pinned creates have made lately, and that only their callers know. Pure.

A caller that has just got a volume is about to write its PersistentVolume. Until then nothing refers to the volume, and
the leak audit (`cloud.leaks`) must not take it for one that everybody has forgotten.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from cloud.placement.claim import Place

KEPT_S: Final = 3_600.0
"""How long they are kept: the longest `--audit-grace`."""

MOST: Final = 20_000
"""How many are kept: 6 MB. A driver that makes more within an hour is audited later."""


class Recent:
    """The things that were made lately, oldest first.

    Attributes:
        complete_since: no thing that was made after this time is missing, in seconds since the epoch.
    """

    def __init__(self, now: float) -> None:
        """Without things: a hub that starts has forgotten those of its life before."""
        self.complete_since = now
        self._made: dict[Place, float] = {}

    def add(self, places: Iterable[Place], now: float) -> None:
        """Note things that were made now."""
        for place in places:
            self._made.pop(place, None)  # so that it comes last
            self._made[place] = now
        while self._made:
            oldest = next(iter(self._made))
            at = self._made[oldest]
            if len(self._made) > MOST:
                self.complete_since = max(self.complete_since, at)
            elif now - at <= KEPT_S:
                return
            del self._made[oldest]

    def all(self) -> Mapping[Place, float]:
        """When each was made, in seconds since the epoch."""
        return dict(self._made)
