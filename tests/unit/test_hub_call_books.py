"""Random traffic through a hub: whatever happens to its calls, each has one end, and then nothing of it is left."""

import asyncio
import random
from pathlib import Path

import pytest

from cloud.proxy.driver_settings import Mode
from common.csi import csi_pb2 as csi
from common.csi.reports import encode_reports
from common.errors import MessageTooLarge, TunnelClosed
from common.messages import Kind
from common.observe.version import introduce
from common.session.link import Link, Stream
from common.status import Code, Origin, Status
from tests.kit.hub_in_memory import CREATE, DRIVER, Hub, report, running
from tests.kit.linked import cut
from tests.kit.waiting import settle, until

DELETE, PUBLISH = "/csi.v1.Controller/DeleteVolume", "/csi.v1.Controller/ControllerPublishVolume"
METADATA = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
WINDOW = 8_192
SMALL = {"chunk_bytes": 256, "max_message_bytes": 4_096, "stream_window_bytes": 1_500, "session_window_bytes": WINDOW}
CALLS = 60


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Traffic:
    """A hub with nodes, and a proxy driver whose calls take every way."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.mode = self.random.choice([Mode.PINNED, Mode.LOCAL, Mode.AUTO])
        self.world = Hub(directory)
        self.ends: list[Code | int] = []
        self.gate = asyncio.Event()  # until it is set, some calls do not end
        self.boots = {"n1": 0, "n2": 0}
        self.edges: dict[str, Link] = {}
        self.proxy: Link

    async def come(self, name: str) -> None:
        """A node comes, perhaps again."""
        self.boots[name] += 1
        hello = introduce("edge", name, instance=f"i-{name}", boot=self.boots[name])
        self.edges[name] = await self.world.come(hello, serve=self.serve, **SMALL)
        reports = self.edges[name].open(Kind.REPORT, encode_reports([report(node=name)]))
        await settle()
        reports.cancel()
        await settle()

    async def dial(self) -> None:
        """The proxy driver comes, perhaps again, and takes small messages or larger ones."""
        hello = introduce("driver", DRIVER, instance="p", placement=self.mode)
        largest = {"max_message_bytes": self.random.choice([1_024, 4_096])}
        self.proxy = await self.world.come(hello, **(SMALL | largest))

    def leave(self, name: str) -> None:
        """Cut the links of a node, or of the proxy driver."""
        peers = {**self.edges, "": self.proxy}
        for link in self.world.links:
            if not link.over and link.peer.name == (name or DRIVER):
                cut(link, peers[name])

    async def serve(self, stream: Stream) -> None:
        """A node that answers now or late, refuses, sends several messages, or gives no answer."""
        assert stream.opened is not None
        await turns(self.random.choice([0, 0, 1, 5, 20]))
        request = await stream.receive() or b""
        body = b""
        if stream.opened.method == CREATE:
            name = csi.CreateVolumeRequest.FromString(request).name
            filled = {"a": "b" * self.random.choice([0, 0, 400, 3_000])}
            volume = csi.Volume(volume_id=f"vol-{name}", volume_context=filled)
            body = csi.CreateVolumeResponse(volume=volume).SerializeToString()
        match self.random.randrange(6):
            case 0 | 1:
                stream.end(Status(Code.OK), body)
            case 2:
                # The hub keeps a unary answer, and its credit, until the end. Behind one that takes the whole window no
                # other message comes: only a deadline would end the call.
                many = len(body) < SMALL["stream_window_bytes"]
                for _ in range(self.random.choice([1, 2, 8]) if many else 1):
                    await stream.send(body)
                stream.end(Status(self.random.choice([Code.OK, Code.INTERNAL])))
            case 3:
                stream.end(Status(self.random.choice([Code.ALREADY_EXISTS, Code.ABORTED]), "no", Origin.VENDOR))
            case 4:
                await self.gate.wait()
                stream.end(Status(Code.OK), body)

    async def call(self) -> None:
        """One call, whose caller reads, leaves, or does not take the answer."""
        bodies = {
            CREATE: csi.CreateVolumeRequest(name=f"pvc-{self.random.randrange(4)}"),
            DELETE: csi.DeleteVolumeRequest(volume_id=f"vol-pvc-{self.random.randrange(4)}"),
            PUBLISH: csi.ControllerPublishVolumeRequest(volume_id="vol-pvc-0", node_id="n"),
            METADATA: csi.GetMetadataAllocatedRequest(snapshot_id="s"),
        }
        method, body = self.random.choice(list(bodies.items()))
        node = self.random.choice(["", "n1", "n2"])
        try:
            stream = self.proxy.open(Kind.CALL, body.SerializeToString(), subject=DRIVER, method=method, node=node)
            if self.random.random() < 0.2:
                await turns(self.random.randrange(12))
                stream.cancel()
                return
            async for _ in stream:
                await turns(self.random.choice([0, 0, 2, 6]))
        except (TunnelClosed, MessageTooLarge):
            return
        self.ends.append(stream.status.code)
        stream.acknowledge(delivered=self.random.random() < 0.7)

    async def run(self) -> None:
        """Many calls at once, while nodes and the proxy driver come and go."""
        for name in self.boots:
            await self.come(name)
        await self.dial()
        calls = []
        for _ in range(CALLS):
            calls.append(asyncio.ensure_future(self.call()))
            await turns(self.random.choice([0, 0, 1, 3, 10]))
            if self.random.random() < 0.05:
                gone = self.random.choice(["n1", "n2", ""])
                self.leave(gone)
                await (self.come(gone) if gone else self.dial())
        await settle()
        self.gate.set()
        await asyncio.gather(*calls)

    def books(self) -> list[object]:
        """All that the hub still knows of calls, and how much of each window is away."""
        hub, book = self.world.hub._calls, self.world.placement.claims.book("d.example")
        sessions = [link for link in self.world.links if not link.over]
        return [
            self.world.metrics.calls_in_flight,
            hub.counts._under_way,
            [claim for claim in book.claims.values() if claim.running],
            *(sum(node.visit.calls.values()) for node in self.world.nodes._nodes.values() if node.visit is not None),
            *(session._streams for session in sessions),
            *(WINDOW - session._inbox.granted - session._inbox.owed for session in sessions),
        ]


@pytest.mark.parametrize("seed", range(8))
async def test_calls_that_end_in_any_way_leave_nothing_behind(seed: int, tmp_path: Path) -> None:
    traffic = Traffic(seed, tmp_path)
    async with running(traffic.world):
        await traffic.run()
        traffic.proxy.writer.flush_soon()
        await until(lambda: not any(traffic.books()), "empty books", within_s=10.0, instead=traffic.books)
        assert len(set(traffic.ends)) > 1
