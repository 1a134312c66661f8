"""The page tokens of the hub: each names the node whose page comes next, and has the driver's own token. Pure.

A node may leave or another one take over between two pages. Its driver may not know the first one's token, or take it
for a place in a list of its own. So a token counts for its node alone (CSI spec, "ListVolumes Errors").
"""

from typing import Final, NamedTuple

_PREFIX: Final = "csi-bridge-at:"

_MOST_DIGITS: Final = 4


class PageToken(NamedTuple):
    """A place in a list."""

    node: str
    pages: int = 0  # how many pages the node has given before
    own: str = ""  # the driver's token; empty: the node's first page

    def __str__(self) -> str:
        return f"{_PREFIX}{self.node}:{self.pages}:{self.own}"


def read(token: str) -> PageToken | None:
    """Read a caller's token; None if no hub made it."""
    node, _, rest = token.removeprefix(_PREFIX).partition(":")
    pages, colon, own = rest.partition(":")
    is_number = pages.isascii() and pages.isdecimal() and len(pages) <= _MOST_DIGITS
    if not (token.startswith(_PREFIX) and node and colon and is_number):
        return None
    return PageToken(node, int(pages), own)
