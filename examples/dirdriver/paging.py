"""Pages of a list, and the token for the next page.

The token names the last entry of the page. A count would not do: entries that are created or deleted between two pages
must neither hide an entry nor show it twice (CSI spec, ListVolumes).
"""

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from examples.dirdriver import errors

PAGE_LIMIT = 4000
"""The largest page. An answer must stay below gRPC's 4 MiB; an entry with long ids and a context is below 1 KiB."""

_TOKEN = re.compile(r"after-(\d{1,18})")


class Numbered(Protocol):
    """An entry of a list. `seq` grows with each creation, and no two entries ever share one."""

    @property
    def seq(self) -> int:
        """The entry's number."""


Entry = TypeVar("Entry", bound=Numbered)


def page_length(max_entries: int) -> int:
    """The largest number of entries for an answer. `max_entries` 0 means no limit; below 0 is INVALID_ARGUMENT."""
    if max_entries < 0:
        raise errors.invalid("max_entries must not be negative")
    return min(max_entries or PAGE_LIMIT, PAGE_LIMIT)


def start_after(starting_token: str) -> int:
    """The last `seq` before the page, 0 for the first page. A foreign token is ABORTED (CSI spec, ListVolumes)."""
    if not starting_token:
        return 0
    found = _TOKEN.fullmatch(starting_token)
    if not found:
        raise errors.aborted("starting_token is not one that this driver gave; start again with an empty one")
    return int(found[1])


def cut(entries: Sequence[Entry], length: int) -> tuple[Sequence[Entry], str]:
    """The first `length` entries, and the token for the rest, empty if there is none."""
    page = entries[:length]
    return page, f"after-{page[-1].seq}" if len(entries) > length else ""
