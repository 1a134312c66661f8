"""A route: which node a call is for. Pure, without I/O.

Placement is `pinned` for now: the node that the caller names, else the only node that runs the driver. What cannot be
decided is an error that names the candidates, never a guess.
"""

from collections.abc import Collection

from common.errors import NoRoute


def route(driver: str, wanted: str, candidates: Collection[str]) -> str:
    """The node for a call.

    Args:
        driver: the driver's name.
        wanted: the node that the caller names (`--nodeid`, `--node`), or empty.
        candidates: the nodes that have reported the driver, connected or not.

    Raises:
        NoRoute: no node is named, and not exactly one runs the driver.
    """
    if wanted:
        return wanted
    if len(candidates) != 1:
        raise NoRoute(driver, tuple(sorted(candidates)))
    return next(iter(candidates))
