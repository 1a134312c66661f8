"""Fixtures of the integration tests: a bridge of one's own, or one that the tests of a module share."""

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.requests import create
from tests.kit.sidecar import Pending, Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


@dataclass
class Routed:
    """A bridge that routes the calls of one sidecar in the cloud to one vendor's driver at one edge node."""

    bridge: Bridge
    vendor: Vendor
    agent: Agent
    proxy: Proxy
    sidecar: Sidecar

    def held_create(self, name: str) -> tuple[threading.Event, Pending]:
        """A CreateVolume that the vendor is at, and the event that lets it finish."""
        number = len(self.vendor.calls("CreateVolume")) + 1
        gate = self.vendor.hold("CreateVolume")
        call = self.sidecar.start("CreateVolume", create(name))
        self.vendor.wait_for_call("CreateVolume", number)
        return gate, call


DRIVER = "vendor.test"  # the name of the vendor's driver, unless a test gives it another one


@pytest.fixture(scope="module")
def module_dir(*, in_hub: bool) -> Iterator[Path]:  # each form has a directory of its own
    """A temporary directory of a module, one for each of its forms, with a path short enough for UNIX sockets."""
    with tempfile.TemporaryDirectory(prefix="csi-") as directory:
        yield Path(directory)


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path, *, in_hub: bool) -> Iterator[Bridge]:
    with Bridge(short_dir, tmp_path, serves=DRIVER if in_hub else "") as bridge:
        yield bridge


@pytest.fixture
def vendor(short_dir: Path) -> Iterator[Vendor]:
    with Vendor(short_dir / "vendor.sock") as vendor:
        yield vendor


@pytest.fixture
def routed(bridge: Bridge, vendor: Vendor) -> Routed:
    return build(bridge, vendor)


@pytest.fixture(scope="module")
def shared(module_dir: Path, tmp_path_factory: pytest.TempPathFactory, *, in_hub: bool) -> Iterator[Routed]:
    """A whole bridge that the tests of a module share: they leave it working."""
    with (
        Vendor(module_dir / "vendor.sock") as vendor,
        Bridge(module_dir, tmp_path_factory.mktemp("logs"), serves=DRIVER if in_hub else "") as bridge,
    ):
        yield build(bridge, vendor)


@pytest.fixture
def mended(shared: Routed) -> Iterator[Routed]:
    """The shared bridge, for a test that stops agent or proxy driver: what stopped is started again after it."""
    yield shared
    shared.vendor.as_usual("CreateVolume")
    for member in (shared.agent, shared.proxy):
        if not member.process.running:
            member.start()
    shared.bridge.wait_routed(shared.sidecar)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A volume's name that no other test uses."""
    return str(request.node.name)


def build(bridge: Bridge, vendor: Vendor, *sockets: Path, agent_flags: tuple[str, ...] = ()) -> Routed:
    """Start one of everything, and wait until calls go through. The agent looks at further sockets too."""
    bridge.start_hub()
    agent = bridge.start_agent("n1", vendor.socket, *sockets, flags=agent_flags, wait=False)
    proxy = bridge.start_proxy(vendor.identity.name)
    sidecar = proxy.sidecar()
    agent.wait_ready()
    bridge.wait_routed(sidecar)
    wait_for(lambda: sidecar.call("Probe").answer.ready.value, what="proxy driver that was told of its driver")
    return Routed(bridge, vendor, agent, proxy, sidecar)
