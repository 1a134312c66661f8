"""What a mount guard looks at, in memory: objects, the states of Nodes, facts, links, and a clock."""

import json
from typing import Any

from cloud.detach.absences import Absences
from cloud.detach.fences import Fences
from cloud.detach.mount_guard import MountGuard
from cloud.detach.mounts import Mounts, no_mounts
from cloud.kinds.nodes import NodeState
from cloud.nodes.known_node import KnownNode, Moment
from cloud.nodes.node_records import StoredNode, record_of
from cloud.nodes.visit import Visit
from cloud.records.records import Change
from cloud.sources.source import Source
from cloud.sync.fact_kinds import Fact, name_in_use
from common.csi.csi_pb2 import ControllerUnpublishVolumeRequest, NodeGetInfoResponse
from common.csi.reports import NODE_GET_INFO, Answer, DriverReport
from common.errors import VolumeHeld
from common.objects.objects import Ref, Stamp
from common.operator_orders import Fence, Unfence
from tests.kit.cluster_objects import DRIVER, attachment, entries, node, volume
from tests.kit.memory_records import MemoryRecords

NOW = 1_800_000_000.0
LEFT = 1_799_999_000.0  # when the nodes left that are away
LEFT_TEXT = "2027-01-15T07:43:20Z"
BROKE = "2027-01-15T07:44:00Z"  # since when the Nodes are not Ready that are not
HANDLE = "h-pv-1"  # the handle of the volume `pv-1` (`cluster_objects.volume`)
IN_USE = name_in_use(DRIVER, HANDLE)


class Links:
    """The links and reports of nodes: `Nodes` as the guard and the absences see them."""

    def __init__(self) -> None:
        self.away: dict[str, float | None] = {}  # each node that has ever connected, and since when it is away
        self.ids: dict[str, str] = {}  # the node ids in the nodes' reports of the driver

    def knows(self, name: str) -> bool:
        return name in self.away

    def is_connected(self, name: str) -> bool:
        return name in self.away and self.away[name] is None

    def record(self, name: str) -> Change:
        return record_of(StoredNode(name, since=self.away[name] or 0.0))

    def of(self, name: str) -> KnownNode:
        since = self.away.get(name, LEFT)
        visit = Visit(name, None, 0.0) if since is None else None  # type: ignore[arg-type]  # nobody asks for its link
        stored = StoredNode(name if name in self.away else "", since=since or 0.0)
        return KnownNode(stored, Moment(0.0, since or 0.0), visit=visit)

    def with_driver(self, driver: str) -> list[str]:
        return list(self.ids) if driver == DRIVER else []

    def find_report(self, driver: str, name: str) -> DriverReport | None:
        if driver != DRIVER or name not in self.ids:
            return None
        body = NodeGetInfoResponse(node_id=self.ids[name]).SerializeToString()
        return DriverReport(driver, name, {NODE_GET_INFO: Answer(0, body=body)})


class Objects(Source):
    """Objects in memory, with the states of Nodes if they are a cluster's."""

    nodes_trouble = ""

    def __init__(self, *, is_cluster: bool) -> None:
        super().__init__()
        self.is_ready, self.is_cluster = True, is_cluster
        self.states: dict[str, NodeState] = {}

    def node_state(self, name: str) -> NodeState | None:
        return self.states.get(name) if self.is_cluster else None


class Facts:
    """The facts of nodes: `FactTable` as the mounts see it."""

    def __init__(self) -> None:
        self.told: dict[str, dict[Ref, Fact]] = {}
        self.earlier_use: dict[str, frozenset[str]] = {}  # by node: what earlier machines of this name had in use

    def of(self, node: str) -> dict[Ref, Fact]:
        return self.told.get(node, {})

    async def clear_earlier_use(self, node: str) -> None:
        self.earlier_use.pop(node, None)


class Guarded:
    """A guard and all that it looks at. A cluster has Nodes; without one there are only links, facts and objects."""

    def __init__(self, *, has_cluster: bool = True) -> None:
        self.records, self.links = MemoryRecords(), Links()
        self.source, facts = Objects(is_cluster=has_cluster), Facts()
        self.states, self.facts, self.earlier_use = self.source.states, facts.told, facts.earlier_use
        self.monotonic = 0.0  # seconds since the nodes left that are away
        self.mounts = Mounts(self.source, facts)
        self.start()

    def start(self) -> None:
        """Start the hub's part, again with what the disk has."""
        self.absences = Absences(self.links, self.mounts)
        joined = lambda _node: " (it joined at noon from 10.0.0.9:7)"  # noqa: E731  # short
        self.fences = Fences(self.records, self.absences, self.mounts, joined=joined, now=lambda: NOW)
        self.guard = MountGuard(self.links, self.mounts, self.absences, self.fences, monotonic=lambda: self.monotonic)

    def put(self, *objects: Any) -> None:
        """Add or change objects, as users write them."""
        self.source.update({ref: entry.item for ref, entry in entries(*objects).items()})

    def drop(self, ref: Ref) -> None:
        self.source.update({ref: None})

    # ---- nodes

    def agent(self, name: str, *in_use: str, node_id: str = "", away: float | None = None) -> None:
        """A node without a kubelet, with a Node that the hub made if there is a cluster."""
        self.links.away[name] = away
        self.tell(name, *in_use)
        self.put(_node(name, node_id or name, {"csi-bridge.io/made-by": "hub"}))
        self.states[name] = NodeState("True" if away is None else "Unknown", BROKE, frozenset(in_use), False)

    def tell(self, name: str, *in_use: str, fence: dict[str, Any] | None = None) -> None:
        """An agent tells which volumes its node uses, and which it fences."""
        status = {"volumesInUse": list(in_use), **({"fence": fence} if fence else {})}
        self.facts[name] = {Ref("Node", "", name): Fact(Stamp("", "1"), {"status": status})}

    def kubelet(self, name: str, *in_use: str, ready: str = "True", since: str = BROKE) -> None:
        """A node with a kubelet."""
        self.put(_node(name, name, {}))
        self.states[name] = NodeState(ready, since, frozenset(in_use), False)

    def attach(self, name: str, *, node_id: str = "", pv: str = "pv-1") -> None:
        """A volume is attached to a node, by the id that the attacher saw."""
        body = attachment(f"csi-{name}-{pv}", volume=pv, node=name)
        if node_id:
            body["metadata"]["annotations"] = {"csi.alpha.kubernetes.io/node-id": node_id}
        self.put(volume(pv), body)

    # ---- questions

    def held(self, node_id: str, *, handle: str = HANDLE, serving: str = "server") -> str:
        """Why a detach is held; empty if it passes."""
        request = ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node_id).SerializeToString()
        try:
            self.guard.check(DRIVER, request, serving)
        except VolumeHeld as error:
            return str(error)
        return ""

    async def fence(self, name: str, why: str = "") -> list[str]:
        return (await self.fences.fence(Fence(node=name, why=why), "pid 7 uid 0")).said

    async def unfence(self, name: str) -> list[str]:
        return (await self.fences.unfence(Unfence(node=name), "pid 7 uid 0")).said


def _node(name: str, node_id: str, annotations: dict[str, str]) -> Any:
    body = node(name)
    body["metadata"]["annotations"] = {"csi.volume.kubernetes.io/nodeid": json.dumps({DRIVER: node_id}), **annotations}
    return body


def only_links() -> Guarded:
    """A hub without objects: it knows links and reports."""
    world = Guarded(has_cluster=False)
    world.mounts = no_mounts()
    world.start()
    return world
