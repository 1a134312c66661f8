"""The recent things: the things that creates have made lately, and that no book keeps. Pure.

A sidecar that has just got a volume will write its PersistentVolume soon. Until then nothing refers to the volume, and
the leak audit (`cloud.operators`) must not take it for a leak.

The hub keeps the answers as bytes. Only the audit reads the things in them.
"""

from collections.abc import Iterator
from typing import Final

from cloud.claims.claim import Place
from cloud.claims.requests import Made, things_in

KEPT_S: Final = 3_600.0  # how long the hub keeps an answer: the longest `--audit-grace`
MOST: Final = 20_000  # the number of answers: 9 MB of usual ones. If more come within an hour, the audit waits longer.

# Of a larger answer, the hub keeps only the things: a node may send megabytes.
_LARGE_BYTES: Final = 1_024


class Recent:
    """The answers of creates that succeeded lately, oldest first."""

    def __init__(self, now: float) -> None:
        # Everything that was made after this time is here, in seconds since the epoch. A hub that starts does not know
        # the answers of before.
        self.complete_since = now
        # By driver, node, method and answer: when the answer came.
        self._answers: dict[tuple[str, str, str, bytes | Made], float] = {}

    def add(self, driver: str, node: str, method: str, answer: bytes, now: float) -> None:
        key = driver, node, method, answer if len(answer) <= _LARGE_BYTES else _read(method, answer)
        self._answers.pop(key, None)  # so that it comes last
        self._answers[key] = now
        while True:
            oldest = next(iter(self._answers))
            at = self._answers[oldest]
            if len(self._answers) > MOST:
                self.complete_since = max(self.complete_since, at)
            elif now - at <= KEPT_S:
                return
            del self._answers[oldest]

    def all(self) -> Iterator[tuple[Place, float]]:
        """Each thing, and when it was made, in seconds since the epoch, oldest first."""
        for (driver, node, method, answer), at in list(self._answers.items()):
            known = answer if isinstance(answer, Made) else _read(method, answer)
            for thing in known.things:
                yield (driver, thing, node), at


def _read(method: str, answer: bytes) -> Made:
    try:
        return things_in(method, answer)._replace(terms=())
    except ValueError:
        return Made()
