"""Pages of a list, and the token for the next page (CSI spec, ListVolumes)."""

from typing import TypeVar

from examples.dirdriver import errors
from examples.dirdriver.store import Volume

PAGE_LIMIT = 4000
"""The largest page. An answer must stay below gRPC's 4 MiB; an entry with long ids and a context is below 1 KiB."""

Entry = TypeVar("Entry", bound=Volume)


def page(volumes: list[Entry], max_entries: int, starting_token: str) -> tuple[list[Entry], str]:
    """The page of a request, and the token for the next page, empty after the last. The volumes are sorted by age.

    The token is the last entry's time of creation. A count would hide entries if one is deleted between two pages.
    """
    if max_entries < 0:
        raise errors.invalid("max_entries must not be negative")
    if starting_token and not starting_token.isdecimal():
        raise errors.aborted("starting_token is not one that this driver gave; start again with an empty one")
    rest = [volume for volume in volumes if volume.created_us > int(starting_token or 0)]
    found = rest[: min(max_entries or PAGE_LIMIT, PAGE_LIMIT)]
    return found, str(found[-1].created_us) if len(found) < len(rest) else ""
