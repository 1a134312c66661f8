"""A table: rows of text in columns, for a terminal; and every other line that a command prints.

Rules:

* Every cell is shown whole. On a narrow terminal the widest columns get narrower, and their cells continue below.
* Without a terminal (a pipe, a file) each row is one line of any length.
* Commands print with `say` alone: peers and drivers write many of the texts, and could steer the terminal with them.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

import click

from common.errors import BridgeError
from common.pages.json_form import encode

_GAP = "  "
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))

_NARROWEST = 12  # wrapping makes no column narrower than this: names would be unreadable
_SHORT = 20  # a column up to this width is narrowed only after all wider ones: a time has 20 characters

# A cell is broken behind one of these characters if possible. The first string has priority.
_BREAK_AFTER = (" ", "/-.:,")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    # each column is as wide as its widest cell if the terminal allows
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty():
        widths = _fitted(widths, shutil.get_terminal_size().columns - len(_GAP) * (len(widths) - 1))
    for row in cells:
        wrapped = [_wrapped(cell, limit) for cell, limit in zip(row, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            yield _GAP.join(part.ljust(limit) for part, limit in zip(parts, widths, strict=True)).rstrip()


def paragraph(lines: Iterable[str]) -> Iterator[str]:
    """An empty line and the lines, as `printable` text; nothing if there are none."""
    for number, line in enumerate(lines):
        if not number:
            yield ""
        yield printable(line)


def printable(text: str) -> str:
    # the name of a vendor's driver may contain characters that control a terminal
    return "".join(char if char.isprintable() else "?" for char in text)


def say(text: str, *, err: bool = False) -> None:
    click.echo("\n".join(map(printable, text.split("\n"))), err=err)


def answer(lines: Iterable[str], state: object, *, as_json: bool) -> None:
    if as_json:
        say(encode(state, indent=2).decode())
        return
    for line in lines:
        say(line)


def confirm(question: str, unless: str) -> None:
    """Ask at the terminal. Raises BridgeError, with the words `unless`, if there is none, or the answer is no."""
    if not sys.stdin.isatty():
        raise BridgeError(f"{unless}: there is no terminal to ask at; a script passes --yes")
    if not click.confirm(printable(question)):
        raise BridgeError(unless)


def age(seconds: float) -> str:
    """A time as kubectl shows it, of at least two units: `65s`, `3m`, `26h`."""
    seconds = max(0, int(seconds))
    unit_s, unit = next(it for it in _UNITS if seconds >= 2 * it[0] or it[0] == 1)
    return f"{seconds // unit_s}{unit}"


def _fitted(widths: Sequence[int], room: int) -> list[int]:
    fitted = list(widths)
    long = [column for column, width in enumerate(widths) if width > _SHORT]
    for columns in (long, range(len(widths))):
        while sum(fitted) > room:
            widest = max(columns, key=fitted.__getitem__, default=None)
            if widest is None or fitted[widest] <= _NARROWEST:
                break
            fitted[widest] -= 1
    return fitted


def _wrapped(text: str, limit: int) -> list[str]:
    lines = []
    while len(text) > limit:
        found = (max(text.rfind(char, 0, limit) + 1 for char in chars) for chars in _BREAK_AFTER)
        at = next((it for it in found if it > limit // 2), limit)
        lines.append(text[:at].rstrip())
        text = text[at:].lstrip()
    return [*lines, text]
