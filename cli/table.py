"""A table: rows of text in columns, for a terminal.

Rules:

* Nothing is cut. Where a terminal is too narrow, the widest columns get narrower and their cells continue below.
* Without a terminal (a pipe, a file) each row is one line, however long.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest

_GAP = "  "

_NARROWEST = 12
"""No column gets narrower than this by wrapping: names would fall to pieces."""

_BREAK_AFTER = " ,/-.:"
"""A cell is broken behind one of these if it can be."""


def terminal_width() -> int | None:
    """The columns of the terminal that standard output is; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> Iterator[str]:
    """The lines of a table with a head; each column is as wide as its widest cell, if `width` allows."""
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        widths = _fitted(widths, width - len(_GAP) * (len(widths) - 1))
    for row in cells:
        wrapped = [_wrapped(cell, limit) for cell, limit in zip(row, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            yield _GAP.join(part.ljust(limit) for part, limit in zip(parts, widths, strict=True)).rstrip()


def printable(text: str) -> str:
    """A text without what moves a terminal's cursor: a driver's name, say, is what a vendor says."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _fitted(widths: Sequence[int], room: int) -> list[int]:
    """The widths with the widest ones lowered until all fit, or none can be lowered any more."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > _NARROWEST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _wrapped(text: str, limit: int) -> list[str]:
    lines = []
    while len(text) > limit:
        at = max((text.rfind(char, 0, limit) + 1 for char in _BREAK_AFTER), default=0)
        at = at if at > limit // 2 else limit
        lines.append(text[:at].rstrip())
        text = text[at:].lstrip()
    return [*lines, text]
