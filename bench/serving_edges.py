"""Serving edges: many agents in one process that serve calls, for measuring a takeover between two hubs.

Every edge is a real session with each hub over a real WebSocket, with an agent's uplink, report and operations. Its
vendor is simulated and strict: each CreateVolume that reaches it makes another volume, whatever its name.

    python bench/serving_edges.py --hub ws://127.0.0.1:7001 --hub ws://127.0.0.1:7002 --count 2000

Commands come as lines on standard input; the process ends with it. The answer to each is a line of JSON.

    state     {"up": edges whose active link is to the newest leader, "dials": [dials to each hub that have begun],
               "epoch": the highest that a hub has said, "since": when the last edge began to follow it (monotonic),
               "stale": calls of an older leader than an edge knew}
    churn N   from now on, N edges of the second half end their links in a second; 0: none
    vendor    {"made": {name: [volumes]}, "deleted": {volume: deletions}}
"""

import argparse
import asyncio
import itertools
import json
import logging
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from common.csi.reports import encode_reports
from common.links.standing import Standing
from common.links.uplink import Dialling, Uplink

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.csi import csi_pb2 as csi  # noqa: E402
from common.errors import not_carried  # noqa: E402
from common.links.dial import dial  # noqa: E402
from common.messages import Hello, Kind, Open  # noqa: E402
from common.net.endpoint import Endpoint, hub_endpoint  # noqa: E402  # noqa: E402
from common.observe.accounting import Accounts  # noqa: E402  # a script outside the packages
from common.observe.metrics import Metrics  # noqa: E402
from common.observe.version import introduce  # noqa: E402
from common.relay.client_call import ClientCall  # noqa: E402
from common.session.limits import Limits  # noqa: E402  # noqa: E402
from common.session.link import Link, LinkHandler, Stream  # noqa: E402  # noqa: E402
from common.session.receiver import Receiver  # noqa: E402
from common.status import Code, Origin, Status  # noqa: E402
from edge.calls.controller_lease import ControllerLease  # noqa: E402
from edge.hub_call import HubCall  # noqa: E402
from edge.operations import Operations  # noqa: E402
from tests.kit.placed_nodes import RPC, report  # noqa: E402

log = logging.getLogger("csi_bridge.bench")

STARTS_PER_S = 500
"""Edges that begin to dial in a second, so that no hub refuses one for its limits."""

_QUICK_S, _SLOW_S, _SLOW_EVERY = 0.05, 3.0, 10
"""A vendor's time for a change; every so many calls it is slow, so that a fault finds operations under way."""

_CAPABILITIES = (RPC.CREATE_DELETE_VOLUME, RPC.GET_CAPACITY)


@dataclass
class Tally:
    """The state of all edges together.

    Attributes:
        epochs: by edge: the epoch of its active link.
        epoch: the highest that a hub has said.
        since: when the last edge began to follow it.
        stale: the calls that came from an older leader than the edge knew.
        dials: by hub: the dials that have begun.
        made: by name: the volumes that vendors have made.
        deleted: by volume: how often a vendor was told to delete it.
    """

    epochs: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    since: float = 0.0
    stale: int = 0
    dials: Counter[str] = field(default_factory=Counter)
    made: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    deleted: Counter[str] = field(default_factory=Counter)

    async def dial(self, hub: Endpoint, hello: Hello, handler: LinkHandler, **how: Any) -> Link:
        """Dial a hub (`common.links.uplink.Dial`)."""
        self.dials[str(hub)] += 1
        return await dial(hub, hello, handler, **how)


class _Vendor:
    """A vendor's driver of one edge (as `edge.calls.drivers.Driver` for its calls)."""

    _turns = itertools.count(1)

    def __init__(self, edge: "ServingEdge", tally: Tally) -> None:
        self._edge, self._tally = edge, tally

        self.channel = self

    def open(self, call: ClientCall) -> None:
        """Make a change at once, and answer after the vendor's time."""
        after_s = _SLOW_S if next(self._turns) % _SLOW_EVERY == 0 else _QUICK_S
        status, answer = Status(Code.OK), csi.CreateVolumeResponse().SerializeToString()
        match call.method.rpartition("/")[2]:
            case "CreateVolume":
                asked = csi.CreateVolumeRequest.FromString(call.request)
                volume = csi.Volume(volume_id=f"{self._edge.node}-{secrets.token_hex(8)}", capacity_bytes=1)
                self._tally.made[asked.name].append(volume.volume_id)
                answer = csi.CreateVolumeResponse(volume=volume).SerializeToString()
            case "DeleteVolume":
                self._tally.deleted[csi.DeleteVolumeRequest.FromString(call.request).volume_id] += 1
            case "GetCapacity":  # the answer tells which leader the edge follows
                after_s = 0.0
                answer = csi.GetCapacityResponse(available_capacity=self._edge.epoch).SerializeToString()
            case name:
                after_s, status = 0.0, Status(Code.UNIMPLEMENTED, f"a vendor of this bench does not serve {name}")
        body = answer if status.ok else None
        call.later = asyncio.get_running_loop().call_later(after_s, call.receiver.answered, status, body)


class ServingEdge(LinkHandler):
    """An agent as its hubs see it, and as its calls see it."""

    origin = Origin.EDGE
    accounts = Accounts(Metrics(), log, origin=origin)

    def __init__(self, node: str, tally: Tally) -> None:
        self.node, self.epoch = node, 0
        self.operations = Operations(60.0, node)
        self.lease = ControllerLease(60.0)
        self._tally, self._vendor = tally, _Vendor(self, tally)
        self._link: Link | None = None
        self._report = Standing(Kind.REPORT, self._tell)
        self._reports = encode_reports([report(node, capabilities=_CAPABILITIES, serves=True)])

    def greeted(self, link: Link) -> None:
        """Follow the hub that leads."""
        self._link, self.epoch = link, max(self.epoch, link.peer.epoch)
        self._tally.epochs[self.node] = link.peer.epoch
        self._tally.epoch, self._tally.since = max(self._tally.epoch, link.peer.epoch), time.monotonic()
        self._report.up(link)

    def opened(self, link: Link, frame: Open, deadline: float | None) -> Receiver:
        """Refuse any stream but a call."""
        return link.served(frame, deadline, self._refuse)

    def called(self, link: Link, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        """Serve a call as an agent does."""
        self._tally.stale += link.peer.epoch < self.epoch
        timeout_s = None if deadline is None else deadline - link.loop.time()
        call = HubCall(self, link, frame, timeout_s, request)  # type: ignore[arg-type]  # what a call needs of an agent
        call.go_on()
        return call

    def draining(self, link: Link, _message: str) -> None:
        """End the report, which would keep a draining link open."""
        if link is self._link:
            self._report.down()

    def closed(self, link: Link, _reason: str, _message: str) -> None:
        """Forget a link that is gone."""
        if link is self._link:
            self._link = None
            self._tally.epochs.pop(self.node, None)
            self._report.down()

    def heed(self, frame: Open) -> None:
        """Do nothing: no driver is shared."""

    def driver_for(self, _frame: Open) -> Any:
        """Return the vendor's driver."""
        return self._vendor

    def end_link(self) -> None:
        """Let its uplink dial again."""
        if self._link is not None:
            self._link.goodbye("bench", "the edge reconnects")

    async def _refuse(self, _stream: Stream) -> None:
        raise not_carried("a stream", "an edge of a bench serves only calls")

    async def _tell(self, stream: Stream) -> None:
        await stream.send(self._reports)
        async for _ in stream:
            pass


class _Edges:
    """All edges."""

    def __init__(self, hubs: Sequence[Endpoint], keepalive_s: float) -> None:
        self._hubs, self._limits = hubs, Limits(hello_timeout_s=30, keepalive_s=keepalive_s)
        self._tally = Tally()
        self._edges: list[ServingEdge] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._churn: asyncio.Task[None] | None = None

    async def start(self, first: int, count: int) -> None:
        """Start edges, called e0, e1, ...."""
        for number in range(first, first + count):
            hello = introduce("edge", f"e{number}", instance=secrets.token_hex(8), boot=1)
            edge = ServingEdge(f"e{number}", self._tally)
            dialling = Dialling(hello=partial(_same, hello), limits=self._limits, dial=self._tally.dial)
            uplink = Uplink(self._hubs, edge, dialling)
            self._edges.append(edge)
            self._tasks.append(asyncio.create_task(uplink.run()))
            await asyncio.sleep(1 / STARTS_PER_S)

    def obey(self, command: str) -> object:
        """Run a command, and return its answer."""
        tally = self._tally
        if command == "vendor":
            return {"made": tally.made, "deleted": tally.deleted}
        if command.startswith("churn "):
            if self._churn is not None:
                self._churn.cancel()
            self._churn = asyncio.create_task(self._end_links(int(command.split()[1])))
            return {}
        return {
            "up": sum(epoch == tally.epoch for epoch in tally.epochs.values()),
            "dials": [tally.dials[str(hub)] for hub in self._hubs],
            "epoch": tally.epoch,
            "since": tally.since,
            "stale": tally.stale,
        }

    async def _end_links(self, per_s: int) -> None:
        began = time.monotonic()
        for number, edge in enumerate(itertools.cycle(self._edges[len(self._edges) // 2 :]) if per_s else ()):
            edge.end_link()
            await asyncio.sleep(began + number / per_s - time.monotonic())


def _same(hello: Hello) -> Hello:
    return hello


async def main() -> None:
    """Run commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", type=hub_endpoint, action="append", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--keepalive", type=float, default=10.0)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # thousands of edges would log the same
    edges = _Edges(options.hub, options.keepalive)
    starting = asyncio.create_task(edges.start(options.first, options.count))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(edges.obey(line.decode().strip())), flush=True)
    starting.cancel()


if __name__ == "__main__":
    uvloop.run(main())
