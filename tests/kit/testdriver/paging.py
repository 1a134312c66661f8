"""A page of a list, and the token that asks for the next one.

The token names the last entry that was handed out, not a count, so what is created or deleted between two pages makes
no entry appear twice and hides none that lives through both (CSI spec, ListVolumes).
"""

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from examples.dirdriver import errors

PAGE_LIMIT = 4000
"""Entries of one answer at most, even if the caller sets no limit: an answer must stay below gRPC's 4 MiB, and an entry
with ids of full length, a context and a few nodes is below 1 KiB."""

_TOKEN = re.compile(r"after-(\d{1,18})")


class Numbered(Protocol):
    """An entry of a list: `seq` grows with each creation and is never used again."""

    @property
    def seq(self) -> int:
        """The entry's number."""


Entry = TypeVar("Entry", bound=Numbered)


def page_length(max_entries: int) -> int:
    """How many entries an answer may hold.

    Args:
        max_entries: the request's field; 0 means no restriction.

    Raises:
        CsiError: INVALID_ARGUMENT if it is negative.
    """
    if max_entries < 0:
        raise errors.invalid("max_entries must not be negative")
    return min(max_entries or PAGE_LIMIT, PAGE_LIMIT)


def start_after(starting_token: str) -> int:
    """The number after which the page starts; 0 for the first page.

    Raises:
        CsiError: ABORTED if the token is not one of ours (CSI spec, ListVolumes Errors).
    """
    if not starting_token:
        return 0
    found = _TOKEN.fullmatch(starting_token)
    if not found:
        raise errors.aborted("starting_token is not one that this driver gave; start again with an empty one")
    return int(found[1])


def cut(entries: Sequence[Entry], length: int) -> tuple[Sequence[Entry], str]:
    """The page and its next token.

    Args:
        entries: what follows the starting token; one more than `length` is enough.
        length: from `page_length`.

    Returns:
        At most `length` entries, and the token for the rest, empty if there is none.
    """
    page = entries[:length]
    return page, f"after-{page[-1].seq}" if len(entries) > length else ""
