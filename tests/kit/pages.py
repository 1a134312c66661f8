"""Pages of a hub or an agent, made of JSON: of every field that is not given a test says nothing."""

import json
from datetime import datetime
from typing import Any, TypeVar

from cli.operators.hub_state import HubState
from common.pages.hub import HubStatus, NodeStatus
from common.pages.json_form import decode, time_of

T = TypeVar("T")

SINCE = "2026-11-21T09:12:03Z"

_NODE: dict[str, Any] = {
    "connected": True,
    "since": SINCE,
    "address": "10.0.0.7:5123",
    "instance": "i",
    "boot": 1,
    "software": "csi-bridge/1.2.3",
    "drivers": ["b.example", "a.example"],
    "unreported": [],
    "versions": {},
    "streams": 0,
    "conflict": "",
    "calls": 0,
}


def page(kind: type[T], **fields: Any) -> T:
    """A page with these fields; times in seconds since the epoch, or as in JSON."""
    return decode(json.dumps(fields, default=_plain).encode(), kind)


def at(seconds: float) -> datetime:
    return time_of(seconds)


def node(name: str, **fields: Any) -> NodeStatus:
    return page(NodeStatus, **(_NODE | {"node": name} | fields))


def state(*nodes: NodeStatus, **fields: Any) -> HubState:
    connected = sum(node.connected for node in nodes)
    usual: dict[str, Any] = {"software": "csi-bridge/1.2.3", "max_nodes": 100, "has_source": True}
    usual |= {"known": len(nodes), "connected": connected}
    return HubState(page(HubStatus, **(usual | fields)), list(nodes))


def proxy(driver: str, **fields: Any) -> dict[str, Any]:
    usual = {"since": SINCE, "address": "pid 7 uid 0", "software": "csi-bridge/1.2.3", "placement": "auto"}
    return {"driver": driver} | usual | fields


def election(driver: str, served_by: str, epoch: int, why: str, *, trouble: str = "") -> dict[str, Any]:
    since = SINCE if served_by else None
    return {"driver": driver, "node": served_by, "epoch": epoch, "since": since, "why": why, "trouble": trouble}


def refusal(name: str, **fields: Any) -> dict[str, Any]:
    """A refused peer, for a hub's `refused`."""
    usual = {"role": "edge", "address": "10.0.0.9:7", "at": SINCE, "reason": "conflict", "why": "it is another one"}
    return {"name": name, "times": 1} | usual | fields


def _plain(value: Any) -> Any:
    assert isinstance(value, datetime)
    return value.isoformat()
