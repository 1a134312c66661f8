"""A line limit: how many log lines of one kind one peer may cause. It counts the others.

Rules:

* A peer gets `BURST` lines of a kind at once, and then `LINES_A_MINUTE`. Two kinds are two formats of a message.
* A line above the limit is held: the limit keeps the last one of its peer and kind, and the number of all.
* Beyond `MOST_BUCKETS` peers and kinds, new peers share one allowance for each kind.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from common.observe.token_bucket import Bucket

Line = TypeVar("Line")

BURST: Final = 100  # a restarted agent or a person who tries a setting causes far fewer lines
LINES_A_MINUTE: Final = 10  # a peer that never stops fills 3 MB of log a day with lines of one kind, of 200 bytes each
WINDOW_S: Final = 60.0  # held lines are written as one within this time
MOST_BUCKETS: Final = 65_536  # of about 270 bytes; a hub's 20,000 nodes have two kinds of lines each in ordinary times
_REFILLED_S: Final = BURST / LINES_A_MINUTE * 60  # after this time without a line, a peer has its whole burst again


@dataclass(slots=True)
class _Bucket(Bucket, Generic[Line]):
    held: int = 0
    last: Line | None = None


class LineLimit(Generic[Line]):
    """The allowances of all peers, and the lines that are held."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, object], _Bucket[Line]] = OrderedDict()
        self._holding: list[_Bucket[Line]] = []

    @property
    def holds(self) -> bool:
        return bool(self._holding)

    def admits(self, peer: str, kind: object, line: Line, now: float) -> bool:
        """Whether this line may be written now. If not, it is held."""
        bucket = self._bucket(peer, kind, now)
        if bucket.take(now):
            return True
        if not bucket.held:
            self._holding.append(bucket)
        bucket.held += 1
        bucket.last = line
        return False

    def take_held(self) -> list[tuple[Line, int]]:
        """Hand out the held lines: the last one of each peer and kind, and how many more there were."""
        held = [(bucket.last, bucket.held - 1) for bucket in self._holding if bucket.last is not None]
        for bucket in self._holding:
            bucket.held = 0
            bucket.last = None
        self._holding = []
        return held

    def _bucket(self, peer: str, kind: object, now: float) -> _Bucket[Line]:
        key = (peer, kind)
        if key not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            self._drop_refilled(now)
            if len(self._buckets) >= MOST_BUCKETS:
                key = ("", kind)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(LINES_A_MINUTE / 60, BURST, now)
        self._buckets.move_to_end(key)
        return bucket

    def _drop_refilled(self, now: float) -> None:
        while self._buckets:
            oldest = next(iter(self._buckets.values()))
            if oldest.held or now - oldest.at < _REFILLED_S:
                return
            self._buckets.popitem(last=False)
