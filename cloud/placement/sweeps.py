"""The sweeps: whole lists that are handed out page by page. In memory alone, so they end with the hub's process.

Rules:

* A sweep does not change: its pages fit together while nodes come and go, and a retry gets the same page again. A sweep
  ends with its last page.
* A page has at most `_PAGE_BYTES`, also if the caller sets no limit: sidecars take no answer above 4 MiB.
* A token names its sweep by a random number. One that the hub does not know, such as another hub process's, ends with
  ABORTED: the caller begins again (CSI spec, "ListVolumes Errors").
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.csi.methods import METHODS
from common.errors import TokenUnknown

_PREFIX: Final = "csi-bridge-"

_PAGE_BYTES: Final = 2 * 1_048_576

_LIFE_S: Final = 600.0
"""A sidecar takes all pages within its timeout of 15 s, at most a few minutes."""

_MOST: Final = 4
"""The sweeps of one driver. Each sidecar needs one at a time; one that leaves amid a sweep leaves it behind."""


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A whole list.

    Attributes:
        driver: the driver.
        method: the gRPC path.
        entries: an answer for each entry alone, serialized.
        at: when it was made, in seconds of the monotonic clock.
    """

    driver: str
    method: str
    entries: Sequence[bytes]
    at: float


def is_ours(token: str) -> bool:
    """Whether a token was made by a hub, and not by a vendor."""
    return token.startswith(_PREFIX)


class Sweeps:
    """The sweeps of all drivers."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        """Begin without sweeps. `monotonic` gives the seconds of the monotonic clock."""
        self._monotonic = monotonic
        self._sweeps: dict[str, _Sweep] = {}
        """By the number in their tokens, the oldest first."""

    def first(self, driver: str, method: str, entries: Sequence[bytes], most: int) -> bytes:
        """The first page of a list, as an answer. Keeps the list if there are more pages.

        Args:
            driver: the driver.
            method: the gRPC path.
            entries: an answer for each entry alone, serialized.
            most: the caller's limit of entries; 0: none.
        """
        sweep, number = _Sweep(driver, method, entries, self._monotonic()), secrets.token_hex(8)
        page, end = _page(sweep, number, 0, most)
        if end < len(entries):
            self._make_room(driver)
            self._sweeps[number] = sweep
        return page

    def next(self, driver: str, method: str, token: str, most: int) -> bytes:
        """The page at a token, as an answer.

        Raises:
            TokenUnknown: it is no token of this list, or the hub no longer has the list.
        """
        number, _, start = token.removeprefix(_PREFIX).partition("-")
        sweep = self._sweeps.get(number) if is_ours(token) and start.isdecimal() and len(start) < len(token) else None
        if sweep is None or (sweep.driver, sweep.method) != (driver, method) or self._is_old(sweep):
            raise TokenUnknown(method)
        if len(start) > len(str(len(sweep.entries))) or int(start) > len(sweep.entries):
            raise TokenUnknown(method)
        page, end = _page(sweep, number, int(start), most)
        if end == len(sweep.entries):
            del self._sweeps[number]
        return page

    def _is_old(self, sweep: _Sweep) -> bool:
        return self._monotonic() - sweep.at >= _LIFE_S

    def _make_room(self, driver: str) -> None:
        """Drop the sweeps that are too old, and the oldest one of the driver if it has too many."""
        for number in [number for number, sweep in self._sweeps.items() if self._is_old(sweep)]:
            del self._sweeps[number]
        own = [number for number, sweep in self._sweeps.items() if sweep.driver == driver]
        if len(own) >= _MOST:
            del self._sweeps[own[0]]


def _page(sweep: _Sweep, number: str, start: int, most: int) -> tuple[bytes, int]:
    """The answer that begins with an entry, and the number of the first entry that is not in it."""
    end = size_bytes = 0
    for end in range(start, len(sweep.entries)):
        size_bytes += len(sweep.entries[end])
        if end > start and (size_bytes > _PAGE_BYTES or end - start == most):
            break
    else:
        end = len(sweep.entries)
    more: Any = METHODS[sweep.method].response()
    if end < len(sweep.entries):
        more.next_token = f"{_PREFIX}{number}-{end}"
    return b"".join([*sweep.entries[start:end], more.SerializeToString()]), end
