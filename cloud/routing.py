"""A route: the node that the caller names, else the only node that runs the driver. Pure.

If neither decides, the route is an error that names the candidates, and never a guess. After the hub has lost reports
of nodes, "the only node" would be a guess.
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
        is_connected: whether a node is connected now. A disconnected one is a candidate as well.
        losses: the hub's losses of nodes' reports, in sentences.

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
