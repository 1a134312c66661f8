"""The wording of messages: lists and texts, shortened for a sentence.

join_items(["x is on n1", "y is on n2"])   "x is on n1; y is on n2"
first_names(["a", "b", "c"], most=2)       "a, b and 1 more"
shorten("abcdef", 4)                       "abcd…"
"""

from collections.abc import Sequence

_MOST_ITEMS = 10  # some gRPC libraries refuse very long messages


def join_items(items: Sequence[str]) -> str:
    """Join the first items, each of which may be a phrase."""
    shown = list(items[:_MOST_ITEMS])
    if len(items) > _MOST_ITEMS:
        shown.append(f"and {len(items) - _MOST_ITEMS} more")
    return "; ".join(shown)


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Join the first names."""
    shown = ", ".join(names[:most])
    if len(names) > most:
        shown += f" and {len(names) - most} more"
    return shown


def shorten(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]}…"
