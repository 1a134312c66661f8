"""A table: figures as text for the terminal, and as Markdown for docs/performance.md.

The page has a place for each group: the lines between `<!-- bench: GROUP -->` and `<!-- end -->`. `--write` replaces
them, so that nobody copies a number by hand.
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
    """Return the same as Markdown."""
    lines = ["| figure | limit | peers | ours |", "|---|---|---|---|"]
    for each in figures:
        verdict = f" **{each.verdict}**" if each.met is False else ""
        cells = (each.name, each.target or "-", _peers(each) or "-", each.measured + verdict)
        lines.append(f"| {' | '.join(map(_typeset, cells))} |")
    return "\n".join(lines) + "\n"


def replaced(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with these tables in their places, by group.

    Raises:
        ValueError: the page has no place for a group.
    """
    places = {match[2] for match in _PLACE.finditer(page)}
    if homeless := sorted(tables.keys() - places):
        raise ValueError(f"the page has no place for {', '.join(homeless)}")
    return _PLACE.sub(
        lambda place: place[1] + tables.get(place[2], place[0][len(place[1]) : -len(place[3])]) + place[3], page
    )


def _peers(figure: Figure) -> str:
    return ", ".join(f"{name}: {told}" for name, told in figure.peers.items())


def _typeset(cell: str) -> str:
    words = {"<=": "≤", ">=": "≥", "->": "→", "us": "µs"}
    text = re.sub(r"(?<![^\s(])(<=|>=|->|us)(?![^\s,)])", lambda match: words[match[0]], cell)
    return re.sub(r"(?<=\d )x(?![^\s,)])", _TIMES, text).replace("|", "\\|")
