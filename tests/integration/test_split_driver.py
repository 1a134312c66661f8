"""A vendor whose controller and node plugin are processes of their own, behind one proxy driver and one edge node."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2
from common.status import Code
from tests.kit.answers import methods_of
from tests.kit.bridge import Bridge
from tests.kit.plugin import Plugin
from tests.kit.requests import create
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

NODE_CAPABILITIES = csi_pb2.NodeGetCapabilitiesResponse(
    capabilities=[csi_pb2.NodeServiceCapability(rpc={"type": "STAGE_UNSTAGE_VOLUME"})]
)


@pytest.fixture
def controller(short_dir: Path) -> Vendor:
    controller = Vendor(short_dir / "controller.sock")
    controller.lacks |= methods_of("Node")
    return controller


@pytest.fixture
def node_plugin(short_dir: Path) -> Iterator[Vendor]:
    """The node plugin: it announces a controller, as the controller does, and has none."""
    directory = short_dir / "n1-kubelet" / "plugins" / "v"
    directory.mkdir(parents=True)
    with Vendor(directory / "csi.sock") as vendor:
        vendor.lacks |= methods_of("Controller") | methods_of("GroupController")
        vendor.on("NodeGetCapabilities", lambda _: NODE_CAPABILITIES)
        yield vendor


@contextlib.contextmanager
def registered(directory: Path, vendor: Vendor) -> Iterator[Plugin]:
    registry = directory / "n1-kubelet" / "plugins_registry"
    registry.mkdir()
    with Plugin(registry / "v-reg.sock", endpoint=vendor.socket) as plugin:
        yield plugin


@pytest.mark.parametrize("registration", ["own", "observe"])
def test_each_call_reaches_the_process_that_serves_it_and_sidecars_see_one_driver(
    bridge: Bridge, short_dir: Path, controller: Vendor, node_plugin: Vendor, registration: str
) -> None:
    bridge.start_hub()
    flags = (f"--registration={registration}",)
    with registered(short_dir, node_plugin):
        agent = bridge.start_agent("n1", controller.socket, flags=flags)
        proxy = bridge.start_proxy("vendor.test")
        sidecar = proxy.sidecar()
        agent.wait_logged("driver vendor.test answers at")
        agent.wait_connected()
        bridge.wait_linked(proxy)
        early = sidecar.call("CreateVolume", create("early"))
        assert early.code is Code.UNAVAILABLE, "of a driver whose controller is not there yet nothing is told"
        assert sidecar.call("ControllerGetCapabilities").code is Code.UNAVAILABLE
        with controller:
            bridge.wait_routed(sidecar)
            wait_for(lambda: sidecar.call("ControllerGetCapabilities").ok, what="the controller's capabilities")
            assert sidecar.call("CreateVolume", create("a")).ok
            assert sidecar.call("NodeGetCapabilities").answer == NODE_CAPABILITIES
            assert agent.status()["problems"] == []
            services = {driver["socket"]: driver["services"] for driver in agent.status()["drivers"]}
            assert services == {str(controller.socket): ["Controller"], str(node_plugin.socket): ["Node"]}
        assert sidecar.call("CreateVolume", create("b")).code is Code.UNAVAILABLE, "it is away, and nobody else serves"
    assert len(controller.calls("CreateVolume")) == 1
    assert not node_plugin.calls("CreateVolume")
