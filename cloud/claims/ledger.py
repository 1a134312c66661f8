"""The ledger: a copy of all names and ids that this hub knows, for the leak audit."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from cloud.claims.book import Book
from cloud.claims.claim import IdEntry, Place
from cloud.claims.recent import Recent

_PART: Final = 1_000  # things in one part: one millisecond


class OpenName(NamedTuple):
    """A name with open calls, for the leak audit."""

    driver: str
    name: str
    node: str  # the node of the calls
    since: float  # when the first one began, in seconds since the epoch
    in_doubt: bool  # whether an outcome is in doubt; else its calls run


class Ledger(NamedTuple):
    """A copy of all names and ids that this hub knows.

    `read` copies it in parts, the open names first. So a create that ends meanwhile is in `open`, or its things are in
    `ids`, or both.
    """

    open: list[OpenName]  # the names with open calls
    ids: list[tuple[Place, IdEntry]]  # every thing, also deleted ones, and those that only lists name
    made: dict[Place, float]  # when pinned creates made things that the book does not keep (`Recent`), since the epoch
    complete_since: float  # everything that was made after this time is in `made` or `ids`


async def read(books: Mapping[str, Book], recent: Recent) -> Ledger:
    """Copy all books, within several turns of the loop. 100,000 things take half a second."""
    opened = [
        OpenName(driver, claim.name, claim.node, claim.since, claim.in_doubt)
        for driver, book in books.items()
        for claim in book.claims.values()
        if claim.is_open
    ]
    ids: dict[Place, IdEntry] = {}
    for driver, book in list(books.items()):
        for at, thing in enumerate([*book.listed, *book.ids]):
            listed = {node: IdEntry("", since) for node, since in book.listed.get(thing, {}).items()}
            ids |= {(driver, thing, node): entry for node, entry in (listed | book.ids.get(thing, {})).items()}
            if at % _PART == 0:
                await asyncio.sleep(0)
    made: dict[Place, float] = {}
    for number, (place, at_s) in enumerate(recent.all()):
        made[place] = at_s
        if number % _PART == 0:
            await asyncio.sleep(0)
    return Ledger(opened, list(ids.items()), made, recent.complete_since)
