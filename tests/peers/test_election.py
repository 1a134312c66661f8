"""The stock provisioner over three nodes with one storage: the serving node fails with claims under way.

No volume is lost, none is made twice, and no two nodes work on one volume at the same time.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from common.csi import csi_pb2 as csi
from tests.support.answers import volume
from tests.support.bridge import Bridge
from tests.support.vendor import Vendor
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.lab.remote import RemoteLink
    from tests.peers.support.claims import Claims
    from tests.peers.support.sidecars import Sidecars
    from tests.support.bridge import Agent
    from tests.support.processes import Supervisor
    from tests.support.vendor import VendorCall

pytestmark = pytest.mark.slow

_SOON = ("--retry-interval-start=500ms", "--retry-interval-max=2s", "--worker-threads=5")
"""The provisioner's patience with a failure: its default grows to 5 minutes. With few workers it still has claims to
begin when the fault comes."""

_LEASE_S = 5.0

_LIMIT_S = 120.0

_CLAIMS = [f"data-{number}" for number in range(20)]

_MAY_RETRY = {"Unavailable", "DeadlineExceeded", "Aborted", "Canceled"}
"""The codes after which the provisioner asks again."""


@dataclass
class Storage:
    """What every node reaches.

    Attributes:
        names: the names of its volumes.
        made: how often each name was asked for, by node.
        beside: the names on which two nodes worked at one time.
    """

    names: set[str] = field(default_factory=set)
    made: dict[str, Counter[str]] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)
    _at_work: dict[str, Counter[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def work(self, name: str, node: str) -> Iterator[None]:
        """A node works on a volume for half a second."""
        with self._lock:
            at_work = self._at_work.setdefault(name, Counter())
            at_work[node] += 1
            if len(+at_work) > 1:
                self.beside.append(name)
        time.sleep(0.5)
        with self._lock:
            yield
            at_work[node] -= 1

    def create(self, node: str) -> Callable[[VendorCall], Message]:
        """CreateVolume at a node."""

        def script(call: VendorCall) -> Message:
            with self.work(call.request.name, node):
                self.names.add(call.request.name)
                self.made.setdefault(node, Counter())[call.request.name] += 1
            return volume(call.request.name)

        return script

    def delete(self, node: str) -> Callable[[VendorCall], Message]:
        """DeleteVolume at a node."""

        def script(call: VendorCall) -> Message:
            name = call.request.volume_id.removeprefix("id-of-")
            with self.work(name, node):
                self.names.discard(name)
            return csi.DeleteVolumeResponse()

        return script


@dataclass
class Site:
    """Three nodes."""

    bridge: Bridge
    storage: Storage
    agents: dict[str, Agent]
    links: dict[str, RemoteLink]


@pytest.fixture
def site(short_dir: Path, supervisor: Supervisor, claims: Claims, sidecars: Sidecars) -> Iterator[Site]:
    storage, name = Storage(), claims.storage_class
    with Bridge(short_dir, supervisor.directory) as bridge, ExitStack() as stack:
        bridge.start_hub("--takeover-after=2s", f"--prefer={name}=n1")
        agents, links = {}, {}
        for node in ("n1", "n2", "n3"):
            vendor = stack.enter_context(Vendor(short_dir / f"vendor-{node}.sock", name=name))
            vendor.identity.capabilities = ["CREATE_DELETE_VOLUME"]
            vendor.on("CreateVolume", storage.create(node))
            vendor.on("DeleteVolume", storage.delete(node))
            links[node] = bridge.start_link()
            flags = [f"--controller-lease={_LEASE_S:g}s"]
            agents[node] = bridge.start_agent(node, vendor.socket, flags=flags, through=links[node].address)
        proxy = bridge.start_proxy(name, "--placement=shared")
        sidecars.start("csi-provisioner", proxy.socket, *_SOON)
        yield Site(bridge, storage, agents, links)


def stop(site: Site) -> None:
    site.agents["n1"].process.signal(signal.SIGSTOP)


def go_on(site: Site) -> None:
    site.agents["n1"].process.signal(signal.SIGCONT)


def command(site: Site, line: str) -> None:
    site.links["n1"].command(line)


FAULTS: dict[str, tuple[Callable[[Site], None], Callable[[Site], None]]] = {
    "killed": (lambda site: site.agents["n1"].kill(), lambda site: site.agents["n1"].start()),
    "drained": (lambda site: site.agents["n1"].stop(), lambda site: site.agents["n1"].start()),
    "stopped": (stop, go_on),
    "cut off": (lambda site: command(site, "stall both"), lambda site: command(site, "heal")),
}
"""What happens to the serving node, and what ends it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_serving_node_loses_no_volume_and_makes_none_twice(
    fault: str, site: Site, claims: Claims
) -> None:
    happens, ends = FAULTS[fault]
    for name in _CLAIMS:
        claims.ask(name)
    wait_for(lambda: site.storage.made.get("n1"), what="a volume of n1")
    happens(site)
    try:
        bound = [claims.wait_bound(name, timeout_s=_LIMIT_S)["spec"]["csi"]["volumeHandle"] for name in _CLAIMS]
    finally:
        ends(site)
    assert sorted(bound) == sorted(f"id-of-{name}" for name in site.storage.names)
    assert len(set(bound)) == len(_CLAIMS)
    assert site.storage.made["n2"]
    for name in _CLAIMS:
        claims.let_go(name)
    assert site.storage.names == set()
    assert site.storage.beside == []
    told = " ".join(event["message"] for name in _CLAIMS for event in claims.failures(name))
    assert set(re.findall(r"rpc error: code = (\w+)", told)) <= _MAY_RETRY
