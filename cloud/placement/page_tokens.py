"""The page tokens of the hub: each has the node of the next page, and the token of that node's driver. Pure.

Between two pages, a node may leave, or another node may take over. The other node's driver may not know the token, or
take it for a place in its own list. So a token counts for its node alone (CSI spec, "ListVolumes Errors").
"""

from typing import Final, NamedTuple

_PREFIX: Final = "csi-bridge-at:"

_MOST_DIGITS: Final = 4


class PageToken(NamedTuple):
    """A place in a list."""

    node: str
    pages: int = 0  # the number of pages that the node has given before
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
