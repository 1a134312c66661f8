"""An agent that is without its hub for `--controller-lease` cancels its operations of shared drivers, and begins none.

The agent is a process, the hub is the test's own, and between them is a link that the test stalls.
"""

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from common.errors import TunnelClosed
from common.links.listener import Listener, listen_tcp
from common.messages import Kind, Reason
from common.observe.version import introduce
from common.parsers import HostPort
from common.session.limits import Limits
from common.session.link import Link, Side, Stream
from common.status import Code, Origin, Status
from tests.kit.bridge import Agent, Bridge
from tests.kit.linked import Peer
from tests.kit.requests import create
from tests.kit.vendor import Vendor
from tests.kit.waiting import until, wait_for
from tests.lab.link import Link as Line

CREATE, DELETE = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/DeleteVolume"

LEASE_S = 2.0

LONG_S = 6.0  # the lease of a test in which it must not end: on a busy machine, a process may not run for a while

LOST = "no answer of the hub for 2 s (--controller-lease)"


class Hub(Peer):
    """A hub with one agent, which calls as a test says."""

    origin = Origin.HUB

    def __init__(self, epoch: int = 1) -> None:
        super().__init__(self._read)
        self.epoch = epoch  # of its hello
        self.link: Link | None = None  # the agent's newest link
        self.greetings = 0  # how many links there were
        self._listener = Listener(
            listen_tcp(HostPort("127.0.0.1", 0)),
            Side(introduce("hub", "hub", instance=f"elects-{epoch}"), self, Limits(keepalive_s=60.0)),
        )

    @property
    def address(self) -> str:
        return self._listener.address

    def call(self, method: str, request: bytes, *, epoch: int) -> Stream:
        assert self.link is not None
        stream = Stream(self.link)
        stream.id = self.link.start(
            stream, Kind.CALL, request, subject="vendor.test", method=method, call="c", epoch=epoch
        )
        return stream

    def greeted(self, link: Link) -> None:
        link.accept(self.epoch)
        self.link = link
        self.greetings += 1

    async def _read(self, stream: Stream) -> None:
        async for _ in stream:
            pass

    def closed(self, link: Link, reason: str, message: str) -> None:
        if link is self.link:
            self.link = None

    async def __aenter__(self) -> Self:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()


async def ended(stream: Stream) -> Status:
    async with asyncio.timeout(30):
        async for _ in stream:
            pass
    assert stream.status is not None
    stream.acknowledge(delivered=True)
    return stream.status


@dataclass
class LeasedNode:
    """Two hubs, an agent and its vendor."""

    hub: Hub  # it leads
    standby: Hub
    line: Line  # the line between this hub and the agent
    agent: Agent
    vendor: Vendor
    gate: threading.Event = field(default_factory=threading.Event)  # lets the vendor answer its running creates

    async def running_create(self, name: str = "pvc-1") -> Stream:
        """A CreateVolume of epoch 5 that hangs at the vendor."""
        self.gate = self.vendor.hold("CreateVolume")
        number = len(self.vendor.calls("CreateVolume")) + 1
        stream = self.hub.call(CREATE, create(name).SerializeToString(), epoch=5)
        await asyncio.to_thread(self.vendor.wait_for_call, "CreateVolume", number)
        return stream

    async def cancelled(self) -> None:
        """Wait until the agent has cancelled the vendor's call."""
        (call,) = self.vendor.calls("CreateVolume")
        await until(lambda: call.cancelled, "cancelled call")

    async def logged(self, text: str) -> None:
        """Wait for a line in the agent's log."""
        await asyncio.to_thread(self.agent.wait_logged, text)

    async def linked_again(self) -> None:
        await until(lambda: self.hub.greetings > 1 and self.hub.link is not None, "second link")

    def stop(self) -> None:
        self.agent.process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.agent.process.signal(signal.SIGCONT)


@pytest.fixture
def lease_s() -> float:
    """The length of the lease; a test may have another one."""
    return LEASE_S


@pytest.fixture
async def node(short_dir: Path, tmp_path: Path, lease_s: float) -> AsyncIterator[LeasedNode]:
    async with contextlib.AsyncExitStack() as stack:
        hub, standby = [await stack.enter_async_context(Hub(epoch)) for epoch in (1, 0)]
        line = await stack.enter_async_context(Line(to=hub.address))
        vendor = stack.enter_context(Vendor(short_dir / "vendor.sock"))
        bridge = stack.enter_context(Bridge(short_dir, tmp_path))
        hubs = f"--hub=ws://{line.address}", f"--hub=ws://{standby.address}"
        flags = (*hubs, f"--controller-lease={lease_s:g}s", "--drain-timeout=15s")
        agent = Agent("n1", line.address, [vendor.socket], short_dir, tmp_path, flags)
        bridge.members.append(agent)
        await asyncio.to_thread(agent.start)
        await until(lambda: hub.link is not None, "link")
        await asyncio.to_thread(
            wait_for, lambda: agent.status()["drivers"][0]["services"], what="driver that the agent has asked"
        )
        yield LeasedNode(hub, standby, line, agent, vendor)


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [LONG_S])
async def test_the_lease_goes_on_while_the_hub_answers_also_while_the_agent_drains_and_an_older_epoch_is_refused(
    node: LeasedNode,
) -> None:
    stream = await node.running_create()
    await asyncio.sleep(LONG_S + 1)
    assert not node.vendor.calls("CreateVolume")[0].cancelled
    assert stream.status is None
    old = node.hub.call(DELETE, b"\n\x02v1", epoch=4)
    status = await ended(old)
    assert (status.code, status.origin) == (Code.ABORTED, Origin.UNSENT)
    assert node.vendor.calls("DeleteVolume") == []
    node.agent.ask_to_stop()
    await node.logged("stopping: calls under way have 15 s to finish")
    await asyncio.sleep(LONG_S + 1)
    assert not node.vendor.calls("CreateVolume")[0].cancelled
    assert not node.agent.logged("no answer of the hub")
    node.gate.set()
    assert (await ended(stream)).ok
    await asyncio.to_thread(node.agent.process.wait_exit)


async def test_a_partition_cancels_the_vendors_call_and_the_retry_begins_anew(node: LeasedNode) -> None:
    await node.running_create()
    node.line.stall()
    began = time.monotonic()
    await node.cancelled()
    assert time.monotonic() - began > LEASE_S / 2  # a quarter of it may have gone by when the line stalled
    await node.logged(f"{LOST}: the agent has cancelled its operations of shared drivers, and begins no other")
    status = await asyncio.to_thread(node.agent.status)
    assert [LOST in problem for problem in status["problems"]] == [True]
    assert status["operations"] == []
    await node.line.cut()
    node.line.heal()
    await node.linked_again()
    node.vendor.as_usual("CreateVolume")
    assert (await ended(node.hub.call(CREATE, create("pvc-1").SerializeToString(), epoch=5))).ok
    assert len(node.vendor.calls("CreateVolume")) == 2


async def test_an_agent_that_was_stopped_across_the_lease_cancels_what_it_had_begun_and_begins_nothing_that_came_then(
    node: LeasedNode,
) -> None:
    """The hub has given it up: it may have given the work to another node."""
    await node.running_create()
    node.stop()
    node.hub.call(DELETE, b"\n\x02v1", epoch=5)
    assert node.hub.link is not None
    await asyncio.sleep(LEASE_S / 2)
    node.hub.link.goodbye(Reason.PEER_SILENT, "nothing was heard")
    await asyncio.sleep(LEASE_S)
    assert not node.vendor.calls("CreateVolume")[0].cancelled
    node.go_on()
    await node.cancelled()
    await node.linked_again()
    node.vendor.as_usual("CreateVolume")
    async with asyncio.timeout(30):  # the agent refuses calls until the hub's first pong on the new link
        while not (await ended(node.hub.call(CREATE, create("pvc-2").SerializeToString(), epoch=7))).ok:  # noqa: ASYNC110  # each try is a call
            await asyncio.sleep(0.05)
    assert node.vendor.calls("DeleteVolume") == []


async def test_an_agent_that_drains_without_its_hub_cancels_its_operation_when_the_lease_ends(node: LeasedNode) -> None:
    stream = await node.running_create()
    stream.cancel()
    await asyncio.sleep(0.2)
    began = time.monotonic()
    node.agent.ask_to_stop()
    await node.cancelled()
    await asyncio.to_thread(node.agent.process.wait_exit)
    assert time.monotonic() - began < 10.0  # less than --drain-timeout


@pytest.mark.parametrize("lease_s", [LONG_S])
async def test_an_agent_follows_the_hub_that_leads_and_takes_nothing_of_the_former_one_also_after_a_restart(
    node: LeasedNode,
) -> None:
    hub = node.standby
    await node.running_create()
    node.line.stall()  # as if the former hub's machine stood still
    late = node.hub.call(DELETE, b"\n\x02v1", epoch=5)
    await until(lambda: hub.link is not None, "link to the standby")
    assert hub.link is not None
    hub.link.accept(2)
    retried = hub.call(CREATE, create("pvc-1").SerializeToString(), epoch=6)
    await asyncio.to_thread(wait_for, lambda: node.agent.status()["hubs"][1]["epoch"] == 2, what="the next leader")
    node.line.heal()
    with pytest.raises(TunnelClosed):
        await late.receive()
    node.gate.set()
    assert (await ended(retried)).ok
    assert [len(node.vendor.calls(it)) for it in ("CreateVolume", "DeleteVolume")] == [1, 0]
    assert hub.greetings == 1

    kept = node.agent.socket.parent / "n1/hub.json"
    await until(lambda: json.loads(kept.read_text())["epoch"] == 2, "epoch on the disk")
    hub.link.goodbye(Reason.STOPPED, "for the test")
    hub.epoch = 0
    node.agent.kill()
    await asyncio.to_thread(node.agent.start)
    await node.logged("has epoch 1, and 2 was heard before")
    status = await asyncio.to_thread(node.agent.status)
    assert (status["connected"], status["hubs"][1]["why"]) == (False, "a standby")
