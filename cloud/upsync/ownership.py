"""The ownership marks: annotations that say which objects and entries the hub made."""

import json
from collections.abc import Collection
from typing import Any, Final

from cloud.kinds.fields import Body

MADE_BY: Final = "csi-bridge.io/made-by"  # the annotation of an object that the hub made; such a Node has no kubelet
HUB: Final = "hub"  # its value
LEASES: Final = "kube-node-lease"  # the namespace of the nodes' Leases

_DRIVERS: Final = "csi-bridge.io/drivers"  # the annotation with the drivers whose entries the hub wrote: a JSON list


def is_made(node: Body) -> bool:
    return annotation(node, MADE_BY) == HUB


def written_drivers(body: Body) -> frozenset[str]:
    """The drivers whose entries in an object are the hub's; none if the annotation is unreadable."""
    try:
        names = json.loads(annotation(body, _DRIVERS) or "[]")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(it for it in names if isinstance(it, str)) if isinstance(names, list) else frozenset()


def remember_drivers(drivers: Collection[str]) -> dict[str, Any]:
    return {_DRIVERS: json.dumps(sorted(drivers), separators=(",", ":")) if drivers else None}


def unmarked(body: Body) -> dict[str, Any]:
    return {name: None for name in (MADE_BY, _DRIVERS) if annotation(body, name)}


def annotation(body: Body, name: str) -> str:
    return str(((body.get("metadata") or {}).get("annotations") or {}).get(name, ""))
