"""Told edges: many agents without kubelets in one process, for measuring a hub's cost of sending them objects.

Every edge is a real session over a real WebSocket with an agent's streams. It reports its driver, and learns and
acknowledges the objects that the hub sends. It sends its Node, its CSINode, and that its pods have their volumes. It
keeps the objects in memory; an agent writes them to its disk first.

    python bench/told_edges.py --hub ws://127.0.0.1:7001

Commands come as lines on standard input; the process ends with it. The answer to each is a line of JSON.

    up N      at least N edges from now on, called e0, e1, ...
    state     {"up": links, "in_step": edges that have all objects for them}
    stored    [[mark, seconds since the epoch], ...]: the objects with a mark that were stored since the last time
"""

import argparse
import asyncio
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.cluster_objects import DRIVER, MARK, node_name  # noqa: E402  # a script outside the packages
from common.csi.csi_pb2 import GetPluginInfoResponse, NodeGetInfoResponse  # noqa: E402
from common.csi.reports import ESSENTIAL_METHODS, GET_PLUGIN_INFO, NODE_GET_INFO, Answer, DriverReport, encode_reports  # noqa: E402
from common.links.standing import Standing  # noqa: E402
from common.links.uplink import Dialling, Uplink  # noqa: E402
from common.messages import Kind, Priority  # noqa: E402
from common.net.endpoint import Endpoint, hub_endpoint  # noqa: E402
from common.objects.objects import Object, Ref, Stamp, encode_body  # noqa: E402
from common.objects.pod_fact import MOUNTED  # noqa: E402
from common.objects.sync_messages import Change, Drop, InStep, Put  # noqa: E402
from common.objects.sync_stream import Telling, learn  # noqa: E402
from common.observe.version import introduce  # noqa: E402
from common.session.limits import Limits  # noqa: E402
from common.session.link import Link, LinkHandler, Stream  # noqa: E402
from common.status import Origin  # noqa: E402

_MARKED = re.compile(rf'"{re.escape(MARK)}":"(\d+)"'.encode())


@dataclass
class Tally:
    """The state of all edges together.

    Attributes:
        up: the number of links.
        in_step: the names of the edges that have all objects for them.
        stored: the mark of each marked object, and the time when it was stored, in seconds since the epoch.
    """

    up: int = 0
    in_step: set[str] = field(default_factory=set)
    stored: list[tuple[int, float]] = field(default_factory=list)


class Told:
    """The objects of one edge (`common.objects.sync_stream.Copy`), and its facts (`common.objects.sync.Truth`)."""

    def __init__(self, node: str, tally: Tally) -> None:
        self._node, self._tally = node, tally
        self._held: dict[Ref, Stamp] = {}
        self._facts = {fact.ref: fact for fact in _node_facts(node)}
        self.telling: Telling | None = None
        """The stream that sends the facts now."""

    # ---- objects from the hub

    def stamps(self) -> Mapping[Ref, Stamp]:
        return self._held

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        self._tally.in_step.discard(self._node)
        now = time.time()
        for change in changes:
            match change:
                case Put():
                    self._put(change.object, now)
                case Drop():
                    self._drop(change.ref)
                case InStep():
                    self._tally.in_step.add(self._node)
        return {}

    async def settle(self) -> None:
        """Do nothing: all objects are stored at once."""

    def _put(self, item: Object, now: float) -> None:
        self._held[item.ref] = item.stamp
        if marked := _MARKED.search(item.body):
            self._tally.stored.append((int(marked[1]), now))
        if item.ref.kind == "Pod" and b'"persistentVolumeClaim"' in item.body and item.ref not in self._facts:
            self._facts[item.ref] = _pod_fact(item)
            self._news(item.ref)

    def _drop(self, ref: Ref) -> None:
        self._held.pop(ref, None)
        if self._facts.pop(ref, None) is not None:
            self._news(ref)

    # ---- facts for the hub

    @property
    def facts(self) -> "_Facts":
        """Node, CSINode, and a condition of each pod with a volume."""
        return _Facts(self._facts)

    def _news(self, ref: Ref) -> None:
        if self.telling is not None:
            self.telling.changed([ref])


class _Facts:
    """Facts (`common.objects.sync.Truth`)."""

    def __init__(self, facts: Mapping[Ref, Object]) -> None:
        self._facts = facts

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {ref: fact.stamp for ref, fact in self._facts.items()}

    def read(self, ref: Ref) -> Object | None:
        return self._facts.get(ref)


class ToldEdge(LinkHandler):
    """An agent as its hub sees it."""

    origin = Origin.EDGE

    def __init__(self, node: str, tally: Tally, *, tells: bool) -> None:
        """Make an edge without a link. Without `tells`, it only learns."""
        self.node = node
        self._tally = tally
        self._told = Told(node, tally)
        self._link: Link | None = None
        self._streams = [Standing(Kind.SYNC, self._learn, priority=Priority.SYNC)]
        if tells:
            self._streams += [
                Standing(Kind.FACTS, self._tell, priority=Priority.SYNC),
                Standing(Kind.REPORT, self._report),
            ]

    def greeted(self, link: Link) -> None:
        """Open the streams on an accepted link."""
        self._tally.up += 1
        self._link = link
        for stream in self._streams:
            stream.up(link)

    def closed(self, link: Link, _reason: str, _message: str) -> None:
        """Forget a link that is gone."""
        if self._link is not link:
            return
        self._link = None
        self._tally.up -= 1
        for stream in self._streams:
            stream.down()

    async def _learn(self, stream: Stream) -> None:
        try:
            await learn(stream, self._told)
        finally:
            self._tally.in_step.discard(self.node)

    async def _tell(self, stream: Stream) -> None:
        self._told.telling = Telling(stream, self._told.facts, on_event=lambda _event: None)
        await self._told.telling.run()

    async def _report(self, stream: Stream) -> None:
        await stream.send(encode_reports([_report_of(self.node)]))
        async for _ in stream:
            pass


def _node_facts(node: str) -> list[Object]:
    """Return an agent's facts about its node."""
    entry = {"name": DRIVER, "nodeID": node, "topologyKeys": ["csi-bridge.io/node"]}
    csi_node = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
    known = {
        "annotations": {"csi.volume.kubernetes.io/nodeid": json.dumps({DRIVER: node})},
        "labels": {"csi-bridge.io/node": node},
    }
    status = {
        "volumesInUse": [f"kubernetes.io/csi/{DRIVER}^id-{node}"],
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "nodeInfo": {"architecture": "arm64", "operatingSystem": "linux", "kernelVersion": "6.1.0", "osImage": "Linux"},
    }
    return [
        _fact(Ref("CSINode", "", node), {**csi_node, "spec": {"drivers": [entry]}}),
        _fact(
            Ref("Node", "", node),
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, **known}, "status": status},
        ),
    ]


def _pod_fact(pod: Object) -> Object:
    """Return the fact that a pod has its volumes."""
    ref = pod.ref
    return _fact(
        ref,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": pod.stamp.uid},
            "status": {
                "conditions": [{"type": MOUNTED, "status": "True", "reason": "Mounted"}],
                "volumes": [{"name": volume["name"], "state": "mounted"} for volume in pod.read()["spec"]["volumes"]],
            },
        },
    )


def _fact(ref: Ref, body: Mapping[str, Any]) -> Object:
    return Object(ref, Stamp("", "1"), encode_body(body))


def _report_of(node: str) -> DriverReport:
    answers = dict.fromkeys(ESSENTIAL_METHODS, Answer(0))
    answers[GET_PLUGIN_INFO] = Answer(0, body=GetPluginInfoResponse(name=DRIVER).SerializeToString())
    answers[NODE_GET_INFO] = Answer(0, body=NodeGetInfoResponse(node_id=node).SerializeToString())
    return DriverReport(DRIVER, node, answers)


class _Edges:
    """All edges."""

    def __init__(self, hub: Endpoint, *, tells: bool) -> None:
        self._hub, self._tells = hub, tells
        self._tally = Tally()
        self._tasks: list[asyncio.Task[None]] = []

    def obey(self, line: str) -> object:
        """Run a command, and return its answer."""
        match line.split():
            case ["up", count]:
                for number in range(len(self._tasks), int(count)):
                    self._tasks.append(asyncio.create_task(self._uplink(node_name(number)).run()))
            case ["stored"]:
                stored, self._tally.stored = self._tally.stored, []
                return stored
        return {"up": self._tally.up, "in_step": len(self._tally.in_step)}

    def _uplink(self, node: str) -> Uplink:
        hello = introduce("edge", node, instance=secrets.token_hex(8), boot=1)
        edge = ToldEdge(node, self._tally, tells=self._tells)
        limits = Limits(hello_timeout_s=20, keepalive_s=60)
        return Uplink([self._hub], edge, Dialling(hello=lambda: hello, limits=limits))


async def main() -> None:
    """Run commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", type=hub_endpoint, required=True)
    parser.add_argument("--silent", action="store_true", help="learn, and tell nothing: Kubernetes has the Nodes")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # thousands of edges would log the same
    edges = _Edges(options.hub, tells=not options.silent)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(edges.obey(line.decode())), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
