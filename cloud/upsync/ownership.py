"""The ownership marks: annotations that say which objects and entries the hub made.

Why not server-side apply, whose managedFields say who owns a field:

* It removes no field that another writer owns, too. But a driver's entry with another node id, or a resizer's status
  after the expansion, must go whoever wrote it.
* It removes fields that are applied no more. But the entry of a driver that is away for a while must stay, and so must
  the labels that volumes are bound by. The node ids are one text for all drivers.
* It needs the version that was read all the same: a late request of an earlier hub must overwrite nothing. If the
  object is gone, a request with a version, but without a UID, makes it anew.
"""

import json
from collections.abc import Collection
from typing import Any, Final

from cloud.kinds.rules.fields import Body, part
from cloud.kube.node_marks import EDGE, EDGECORE

MADE_BY: Final = "csi-bridge.io/made-by"  # the annotation of an object that the hub made; such a Node has no kubelet
HUB: Final = "hub"  # its value
LEASES: Final = "kube-node-lease"  # the namespace of the nodes' Leases

_DRIVERS: Final = "csi-bridge.io/drivers"  # the annotation with the drivers whose entries the hub wrote: a JSON list


def is_made(node: Body) -> bool:
    return annotation(node, MADE_BY) == HUB


def has_edgecore(node: Body) -> bool:
    """Whether an administrator says that the Node's kubelet is KubeEdge's EdgeCore."""
    return part(node, "metadata", "labels").get(EDGE) == EDGECORE


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
