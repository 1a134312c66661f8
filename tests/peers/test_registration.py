"""Drivers register with the agent as with a kubelet: by the tests' own registrar in Go, and by the stock one.

The stock node-driver-registrar is used where somebody has put it on PATH; no module proxy serves it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.bridge import Agent, Bridge
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.processes import Process, Supervisor
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

NAME = "dirdriver.csi"


class Edge:
    """A hub, and an agent that knows of no driver until one registers."""

    def __init__(self, bridge: Bridge, directory: Path, supervisor: Supervisor, program: Path) -> None:
        self.bridge = bridge
        self.registry = directory / "kubelet" / "plugins_registry"
        self._supervisor, self._program = supervisor, program
        bridge.start_hub()
        self.agent: Agent = bridge.start_agent("n1", flags=(f"--root-dir={self.registry.parent}", "--registration=own"))
        wait_for(self.registry.is_dir, what="registry directory", instead=self.agent.process.log_tail)

    def start_registrar(self, driver: Path) -> Process:
        command = [
            self._program,
            f"--csi-address={driver}",
            f"--kubelet-registration-path={driver}",
            f"--plugin-registration-path={self.registry}",
        ]
        return self._supervisor.start("registrar", command)

    def wait_registered(self, *, times: int = 1) -> None:
        self.agent.wait_logged(f"driver {NAME} is registered", times=times)


@pytest.fixture(params=["registrar", "csi-node-driver-registrar"])
def edge(
    request: pytest.FixtureRequest, short_dir: Path, supervisor: Supervisor, peer: Callable[[str], Path]
) -> Iterator[Edge]:
    program = peer(request.param)
    with Bridge(short_dir, supervisor.directory) as bridge:
        yield Edge(bridge, short_dir, supervisor, program)


@pytest.fixture
def driver(testdriver: Callable[..., RunningDriver]) -> RunningDriver:
    return testdriver(NAME)


def test_a_registered_driver_is_called_and_registers_again_after_a_restart_of_agent_or_registrar(
    edge: Edge, driver: RunningDriver
) -> None:
    registrar = edge.start_registrar(driver.socket)
    edge.wait_registered()
    edge.bridge.wait_routed(edge.bridge.start_proxy(NAME).sidecar())  # by then the agent has asked its name
    assert [(it["name"], it["socket"]) for it in edge.agent.status()["drivers"]] == [(NAME, str(driver.socket))]

    pid = registrar.pid
    edge.agent.kill()
    edge.agent.start()
    edge.wait_registered(times=2)
    assert (registrar.pid, registrar.running) == (pid, True)

    registrar.kill()  # leaves its socket's file behind
    registrar.start()
    edge.wait_registered(times=3)
    registrar.stop()  # removes it
    edge.agent.wait_logged(f"driver {NAME} is no longer registered", times=2)
    registrar.start()
    edge.wait_registered(times=4)


def test_a_registrar_that_was_refused_registers_once_the_reason_is_gone(edge: Edge, short_dir: Path) -> None:
    with Vendor(short_dir / "v.sock", name=NAME) as vendor:
        vendor.identity.node_id = ""
        registrar = edge.start_registrar(vendor.socket)
        assert registrar.wait_exit() == 1
        assert "no node_id" in registrar.output()
        vendor.identity.node_id = "n1"
        registrar.start()
        edge.wait_registered()
