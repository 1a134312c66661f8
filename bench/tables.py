"""A table: figures as text for the terminal, and as Markdown for docs/performance.md.

The page has a place for most groups: the lines between `<!-- bench: GROUP -->` and `<!-- end -->`. `--write` replaces
them, so that nobody copies a number by hand. A group without a place is for the terminal and for `--against`.
"""

import re
from collections.abc import Mapping, Sequence

from bench.figure import Figure

_TIMES = "\N{MULTIPLICATION SIGN}"
_PLACE = re.compile(r"(<!-- bench: (\S+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def as_text(figures: Sequence[Figure]) -> str:
    """Return the table for a terminal."""
    rows = [("figure", "ours", "limit", "", "peers")]
    rows += [(each.name, each.measured, each.target, each.verdict, _peers(each)) for each in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["", lines[0], "-" * len(lines[0]), *lines[1:], ""])


def as_markdown(figures: Sequence[Figure]) -> str:
    """Return the same as Markdown, without the columns that have nothing."""
    head = ("figure", "limit", "peers", "ours")
    rows = [
        (each.name, each.target, _peers(each), each.measured + (f" **{each.verdict}**" if each.met is False else ""))
        for each in figures
    ]
    columns = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [f"| {' | '.join(_typeset(row[at]) or '-' for at in columns)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]) + "\n"


def replaced(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with these tables in their places, by group."""
    return _PLACE.sub(
        lambda place: place[1] + tables.get(place[2], place[0][len(place[1]) : -len(place[3])]) + place[3], page
    )


def _peers(figure: Figure) -> str:
    return ", ".join(f"{name}: {told}" for name, told in figure.peers.items())


def _typeset(cell: str) -> str:
    words = {"<=": "≤", ">=": "≥", "->": "→", "us": "µs"}
    text = re.sub(r"(?<![^\s(])(<=|>=|->|us)(?![^\s,)])", lambda match: words[match[0]], cell)
    return re.sub(r"(?<=\d )x(?![^\s,)])", _TIMES, text).replace("|", "\\|")
