"""A table: rows of text in columns, for a terminal."""

from collections.abc import Iterator, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table with a head; each column is as wide as its widest cell."""
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def printable(text: str) -> str:
    """A text without what moves a terminal's cursor: a driver's name, say, is what a vendor says."""
    return "".join(char if char.isprintable() else "?" for char in text)
