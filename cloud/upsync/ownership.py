"""What is the hub's: how objects of the API remember which of them the hub made, and what it put into others."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from cloud.kube import Body, KubeError, Resource

MADE_BY: Final = "csi-bridge.io/made-by"
HUB: Final = "hub"
"""The annotation of a Node that the hub made, and its value. Nobody else is that Node's kubelet."""

_DRIVERS: Final = "csi-bridge.io/drivers"
"""The annotation with the names of the drivers whose entries the hub wrote: a JSON list."""


class Reader(Protocol):
    """What is asked of `cloud.kube.Kube`."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        """One object."""


async def find(api: Reader, resource: Resource, name: str, namespace: str = "") -> Body | None:
    """An object; None if there is none.

    Raises:
        KubeError: it was refused, or not answered.
    """
    try:
        return await api.get(resource, name, namespace)
    except KubeError as error:
        if not error.is_missing:
            raise
        return None


def is_made(node: Body) -> bool:
    """Whether the hub made a Node."""
    return annotation(node, MADE_BY) == HUB


def written_drivers(body: Body) -> frozenset[str]:
    """The drivers whose entries in an object are the hub's; none if somebody made nonsense of the annotation."""
    try:
        names = json.loads(annotation(body, _DRIVERS) or "[]")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(it for it in names if isinstance(it, str)) if isinstance(names, list) else frozenset()


def remember_drivers(drivers: Collection[str]) -> Body:
    """The annotations, for a merge patch, that make these the drivers of `written_drivers`."""
    return {_DRIVERS: json.dumps(sorted(drivers), separators=(",", ":")) if drivers else None}


def unmarked(body: Body) -> Body:
    """The annotations, for a merge patch, that make an object nobody's; empty if it has no mark of the hub's."""
    return {name: None for name in (MADE_BY, _DRIVERS) if annotation(body, name)}


def annotation(body: Mapping[str, Any], name: str) -> str:
    """An annotation's text; empty without one."""
    return str(((body.get("metadata") or {}).get("annotations") or {}).get(name, ""))
