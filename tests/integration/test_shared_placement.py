"""Storage that three nodes reach, behind one proxy driver: one serves, another takes over, and nothing runs twice."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.operator import by_hand
from tests.kit.requests import create, delete
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

NODES = ("n1", "n2", "n3")

LEASE_S, MARGIN_S = 2.0, 5.0

SOON_S = 10.0  # two seconds of takeover, six until a stopped agent is noticed, and a busy machine


@dataclass
class Site:
    """Three nodes, and a proxy driver for all of them."""

    bridge: Bridge
    vendors: dict[str, Vendor]  # by node
    agents: dict[str, Agent]  # by node
    proxy: Proxy
    sidecar: Sidecar
    threads: ThreadPoolExecutor  # for calls that a test holds

    def create(self, name: str) -> Outcome:
        return self.sidecar.call("CreateVolume", create(name))

    def delete(self, name: str) -> Outcome:
        return self.sidecar.call("DeleteVolume", delete(name))

    def begin(self, method: str, request: csi.CreateVolumeRequest | csi.DeleteVolumeRequest) -> Future[Outcome]:
        return self.threads.submit(self.sidecar.call, method, request)

    def made_by(self, name: str) -> list[str]:
        """The nodes whose vendor was asked for a volume, in their order."""
        return [
            node
            for node, vendor in self.vendors.items()
            for call in vendor.calls("CreateVolume")
            if call.request.name == name
        ]

    def serving(self) -> tuple[str, int]:
        """The node that serves, by `csi-bridge status`, and the epoch."""
        shown = by_hand("status", f"--hub=unix://{self.bridge.hub.uds}", "-o=json")
        (election,) = json.loads(shown.stdout)["elections"]
        return election["node"], election["epoch"]

    def wait_made(self, name: str, *, within_s: float = SOON_S) -> str:
        """Wait until a volume is made. Returns the node that was asked last."""
        wait_for(lambda: self.create(name).ok, what=name, timeout_s=within_s, instead=lambda: self.create(name))
        return self.made_by(name)[-1]


def start(bridge: Bridge, directory: Path, stack: ExitStack, *flags: str) -> Site:
    bridge.start_hub(*flags)
    vendors, agents = {}, {}
    for node in NODES:
        vendor = vendors[node] = stack.enter_context(Vendor(directory / f"vendor-{node}.sock"))
        agents[node] = bridge.start_agent(node, vendor.socket, flags=[f"--controller-lease={LEASE_S:g}s"])
    proxy = bridge.start_proxy("vendor.test", "--placement=shared")
    threads = stack.enter_context(ThreadPoolExecutor())
    site = Site(bridge, vendors, agents, proxy, proxy.sidecar(), threads)
    wait_for(lambda: site.create("warm").ok, what="an elected node", instead=lambda: site.create("warm"))
    return site


@pytest.fixture
def site(bridge: Bridge, short_dir: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield start(bridge, short_dir, stack, "--takeover-after=2s", "--prefer=vendor.test=n1,n2")


@pytest.mark.slow
def test_another_node_takes_over_from_one_that_was_killed_or_does_not_answer_and_gives_nothing_back(
    site: Site,
) -> None:
    assert site.made_by("warm") == ["n1"]
    assert site.serving()[0] == "n1"
    site.agents["n1"].kill()
    assert site.wait_made("v") == "n2"
    assert site.serving()[0] == "n2"
    shown = by_hand("status", f"--hub=unix://{site.bridge.hub.uds}").stdout
    assert "edge node n1 was away for 2 s" in shown
    assert site.delete("warm").ok
    assert len(site.vendors["n2"].calls("DeleteVolume")) == 1
    site.agents["n1"].start()
    site.agents["n1"].wait_connected()
    assert site.wait_made("w") == "n2"
    site.agents["n2"].process.signal(signal.SIGSTOP)
    try:
        wait_for(lambda: site.serving()[0] == "n1", what="the takeover", timeout_s=SOON_S)
        assert site.wait_made("x") == "n1"
    finally:
        site.agents["n2"].process.signal(signal.SIGCONT)


def test_another_node_takes_over_at_once_from_one_whose_driver_is_gone_or_that_drains_and_its_call_ends_there(
    bridge: Bridge, short_dir: Path
) -> None:
    """The hub waits for an hour before a node that is away is replaced."""
    with ExitStack() as stack:
        site = start(bridge, short_dir, stack, "--takeover-after=1h", "--prefer=vendor.test=n1,n2")
        site.vendors["n1"].stop()
        site.vendors["n1"].socket.unlink(missing_ok=True)
        assert site.wait_made("u") == "n2"
        assert site.serving()[0] == "n2"
        gate = site.vendors["n2"].hold("CreateVolume")
        held = site.begin("CreateVolume", create("v"))
        site.vendors["n2"].wait_for_call("CreateVolume", 2)
        site.agents["n2"].ask_to_stop()
        wait_for(lambda: site.serving()[0] == "n3", what="the takeover", timeout_s=SOON_S)
        assert site.wait_made("w") == "n3"
        gate.set()
        assert held.result().ok
        assert site.made_by("v") == ["n2"]
        site.vendors["n1"].start()
        site.agents["n3"].stop()
        wait_for(lambda: site.serving()[0] == "n1", what="the takeover", timeout_s=SOON_S)
        assert site.wait_made("x") == "n1"


@pytest.mark.slow
def test_an_open_create_waits_for_its_nodes_lease_an_open_deletion_for_an_operator_and_others_do_not(
    site: Site,
) -> None:
    held = []
    for method, request, number in (("CreateVolume", create("v"), 2), ("DeleteVolume", delete("warm"), 1)):
        site.vendors["n1"].hold(method)
        held.append(site.begin(method, request))
        site.vendors["n1"].wait_for_call(method, number)
    site.agents["n1"].kill()
    began = time.monotonic()
    assert [call.result().code for call in held] == [Code.UNAVAILABLE] * 2
    assert site.wait_made("w") == "n2"
    told = site.create("v")
    assert told.code == Code.UNAVAILABLE
    assert "CreateVolume v of driver vendor.test has an open outcome on edge node n1" in told.message
    assert site.wait_made("v", within_s=LEASE_S + MARGIN_S + SOON_S) == "n2"
    assert time.monotonic() - began > LEASE_S + MARGIN_S
    assert site.made_by("v") == ["n1", "n2"]
    told = site.delete("warm")
    assert (told.code, "csi-bridge forget n1" in told.message) == (Code.UNAVAILABLE, True)
    assert not site.vendors["n2"].calls("DeleteVolume")
    assert by_hand("forget", "n1", f"--hub=unix://{site.bridge.hub.uds}").returncode == 0
    assert site.delete("warm").ok
    assert len(site.vendors["n2"].calls("DeleteVolume")) == 1


@pytest.mark.slow
def test_a_hub_that_was_killed_goes_on_with_the_same_node_and_open_calls(site: Site) -> None:
    site.agents["n1"].kill()
    assert site.wait_made("v") == "n2"
    site.vendors["n2"].hold("DeleteVolume")
    held = site.begin("DeleteVolume", delete("v"))
    site.vendors["n2"].wait_for_call("DeleteVolume")
    epoch = site.serving()[1]
    site.bridge.hub.kill()
    assert held.result().code == Code.UNAVAILABLE
    site.agents["n1"].start()
    site.agents["n2"].kill()
    site.bridge.hub.start()
    wait_for(lambda: site.create("w").ok, what="the takeover", timeout_s=60.0, instead=lambda: site.create("w"))
    assert site.serving()[1] > epoch
    assert "has an open outcome on edge node n2" in site.delete("v").message
