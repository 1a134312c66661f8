"""The ledger: all that this hub knows of names and ids, read in parts, for the leak audit."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from cloud.claims.book import Book
from cloud.claims.claim import Id, Place
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
    """All that this hub knows of names and ids, for the leak audit.

    It is read in parts, the open names first. A create that ends meanwhile stands there, or its things in `ids`.
    """

    open: list[OpenName]  # the names with open calls
    ids: list[tuple[Place, Id]]  # every thing, those that lists alone tell and deleted ones included
    made: dict[Place, float]  # when the things were made that the book has no more, in seconds since the epoch
    complete_since: float  # no thing that was made after this time is missing in `made` and `ids`


async def read(books: Mapping[str, Book], recent: Recent) -> Ledger:
    """Read all books, by driver, within some turns of the loop: of 100,000 things it takes half a second."""
    opened = [
        OpenName(driver, claim.name, claim.node, claim.since, claim.in_doubt)
        for driver, book in books.items()
        for claim in book.claims.values()
        if claim.is_open
    ]
    ids: dict[Place, Id] = {}
    for driver, book in list(books.items()):
        for at, thing in enumerate([*book.listed, *book.ids]):
            listed = {node: Id("", since) for node, since in book.listed.get(thing, {}).items()}
            ids |= {(driver, thing, node): its for node, its in (listed | book.ids.get(thing, {})).items()}
            if at % _PART == 0:
                await asyncio.sleep(0)
    made: dict[Place, float] = {}
    for number, (place, at_s) in enumerate(recent.all()):
        made[place] = at_s
        if number % _PART == 0:
            await asyncio.sleep(0)
    return Ledger(opened, list(ids.items()), made, recent.complete_since)
