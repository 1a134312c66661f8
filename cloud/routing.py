"""A route: which node a call is for. Pure, without I/O.

The node that the caller names, else the only node that runs the driver. What cannot be decided is an error that names
the candidates, never a guess. Where something of what the nodes reported was lost, "the only node" is a guess.
"""

from collections.abc import Callable, Collection, Sequence

from common.errors import KnowledgeLost, NoRoute


def route(
    driver: str,
    wanted: str,
    candidates: Collection[str],
    *,
    is_connected: Callable[[str], bool],
    losses: Sequence[str] = (),
) -> str:
    """The node for a call.

    Args:
        driver: the driver's name.
        wanted: the node that the caller names (`--nodeid`, `--node`), or empty.
        candidates: the nodes that have reported the driver, connected or not.
        is_connected: whether a node is there now; it stays a candidate all the same.
        losses: what the hub has lost of what nodes reported, in words.

    Raises:
        NoRoute: no node is named, and not exactly one runs the driver.
        KnowledgeLost: no node is named, and the hub does not know for certain which ones run the driver.
    """
    if wanted:
        return wanted
    if losses:
        raise KnowledgeLost(driver, losses[0])
    if len(candidates) != 1:
        raise NoRoute(driver, {name: is_connected(name) for name in sorted(candidates)})
    return next(iter(candidates))
