"""A vendor with two processes, as a registry hears of them in any order and over its lives. No socket is asked."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloud.proxy.identity_cache import IdentityCache
from common.csi import csi_pb2
from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, PluginCapability
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    NODE_GET_INFO,
    REPORTED_METHODS,
    Answer,
    DriverReport,
)
from common.errors import CallError
from common.objects.topology import has_topology
from common.status import Code
from edge.registry.driver_registry import DriverRegistry
from edge.registry.driver_services import find_driver
from edge.registry.drivers_store import KnownDrivers, write_drivers
from edge.registry.registration import NodeInfo, Registration, csi_node_drivers
from tests.kit.agent_settings import agent_settings

NAME = "d.example"
PUBLISH = "/csi.v1.Node/NodePublishVolume"
CREATE = "/csi.v1.Controller/CreateVolume"

LACKS_CONTROLLER = (CONTROLLER_GET_CAPABILITIES, GROUP_GET_CAPABILITIES)
LACKS_NODE = (NODE_GET_CAPABILITIES, NODE_GET_INFO)

AGES = 1e6


def report(*, lacks: Sequence[str] = (), topology: bool = False, name: str = NAME) -> DriverReport:
    """What a process says of itself, which serves both services unless it lacks one."""
    types = ["CONTROLLER_SERVICE", *(["VOLUME_ACCESSIBILITY_CONSTRAINTS"] if topology else [])]
    services = [PluginCapability(service=PluginCapability.Service(type=each)) for each in types]
    info = csi_pb2.NodeGetInfoResponse(node_id="id", accessible_topology=csi_pb2.Topology(segments={"zone": "a"}))
    answers = {method: Answer(0) for method in REPORTED_METHODS}
    capabilities = GetPluginCapabilitiesResponse(capabilities=services).SerializeToString()
    answers[GET_PLUGIN_INFO] = Answer(0, body=csi_pb2.GetPluginInfoResponse(name=name).SerializeToString())
    answers[GET_PLUGIN_CAPABILITIES] = Answer(0, body=capabilities)
    answers[NODE_GET_INFO] = Answer(0, body=info.SerializeToString())
    answers |= dict.fromkeys(lacks, Answer(Code.UNIMPLEMENTED, "not here"))
    return DriverReport(name, "n1", answers)


def topology_keys(node: "Node") -> dict[str, list[str]]:
    return {entry["name"]: entry["topologyKeys"] for entry in csi_node_drivers(node.registry.registrations)}


class Node:
    """A node whose agent can start anew. The controller is at `c`, and named; the node plugin is at `n`."""

    def __init__(self, state: Path, *, own: bool = False) -> None:
        self.state, self.own, self.now, self.changes = state, own, 0.0, 0
        self.c, self.n = str(state / "c"), str(state / "n")
        self.start()

    def start(self, *, named: bool = True) -> None:
        settings = agent_settings(self.state, *([Path(self.c)] if named else []), own=self.own)
        self.registry = DriverRegistry(settings, clock=lambda: self.now)
        self.registry.subscribe(self._changed)

    async def restart(self) -> None:
        await self.registry._store.write()
        self.start()

    def found(self, path: str, *, name: str = "") -> None:
        """A socket was seen, or, with a name, registers with a kubelet."""
        self.registry.found(f"{path} {name}", path, name=name)

    def hears(self, path: str, said: DriverReport | None) -> None:
        """A socket was asked; None: it did not answer."""
        driver = self.registry._sockets.shared(Path(path)).driver
        before = driver.asked, driver.report
        if said is None:
            driver.trouble = "connection refused"
        else:
            driver._answered(said)
        driver.asked = True
        if (driver.asked, driver.report) != before:
            driver._changed()

    def is_forgotten(self, path: str) -> None:
        """A socket was lost, and all that is forgotten in time is."""
        self.registry.lost(f"{path} ")
        self.now += AGES
        self.registry._expire()

    def registers(self, path: str, *, topology: str) -> None:
        """The driver at a socket has registered, before this life."""
        info = NodeInfo("id", 0, {topology: "a"}, frozenset())
        registration = Registration(NAME, path, "/r.sock", (1, 0), info)
        known = KnownDrivers((registration,), {NAME: path}, frozenset({NAME} if topology == "zone" else ()))
        write_drivers(self.state / "drivers.json", known)
        self.start()

    def _changed(self) -> None:
        self.changes += 1

    def goes_to(self, method: str) -> str:
        return str(find_driver(self.registry.drivers, NAME, "n1", method).socket)


# -------------------- who mounts --------------------


async def test_that_a_known_socket_is_the_node_plugin_s_is_a_change_and_the_same_once_more_is_none(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.hears(node.c, report())
    node.found(node.n)
    node.registry.found(f"{node.n} {NAME}", node.n)
    before = node.changes
    node.found(node.n, name=NAME)
    assert node.changes == before + 1
    node.found(node.n, name=NAME)
    assert node.changes == before + 1


async def test_a_kubelets_calls_wait_for_a_node_plugin_that_was_forgotten_before_its_controller_was_heard(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.hears(node.c, None)
    node.found(node.n)
    node.hears(node.n, report())
    assert node.goes_to(PUBLISH) == node.n
    node.is_forgotten(node.n)
    node.hears(node.c, report())
    with pytest.raises(CallError, match="that serves Node"):
        node.goes_to(PUBLISH)
    assert node.goes_to(CREATE) == node.c
    (problem,) = node.registry.problems
    assert f"which was at {node.n}, is away" in problem
    assert str(tmp_path / "observed.json") in problem


async def test_a_kubelets_calls_wait_for_a_node_plugin_that_answers_after_its_controller_once_the_agent_started_anew(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.found(node.n)
    node.hears(node.c, report())
    node.hears(node.n, report())
    assert node.goes_to(PUBLISH) == node.n
    await node.restart()
    node.found(node.n)
    node.hears(node.c, report())
    with pytest.raises(CallError, match="that serves Node"):
        node.goes_to(PUBLISH)
    node.hears(node.n, report())
    assert node.goes_to(PUBLISH) == node.n
    assert node.registry.problems == []


@pytest.mark.parametrize("named", [False, True], ids=["alone", "beside a controller"])
async def test_a_node_plugin_that_moved_while_its_successor_ran_is_called_once_the_old_one_is_forgotten(
    tmp_path: Path, *, named: bool
) -> None:
    node = Node(tmp_path)
    node.start(named=named)
    if named:
        node.hears(node.c, report(lacks=LACKS_NODE))
    successor = str(tmp_path / "m")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(node.n)
        old.listen()
        for path in (node.n, successor):
            node.found(path)
            node.hears(path, report(lacks=LACKS_CONTROLLER))
        with pytest.raises(CallError, match="has 2 drivers with the name"):
            node.goes_to(PUBLISH)
    node.is_forgotten(node.n)
    assert node.goes_to(PUBLISH) == successor
    await node.registry._store.write()
    assert node.registry._store.idle_s() is None


async def test_a_driver_that_was_found_is_called_where_an_operator_names_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(named=False)
    node.found(node.c)
    node.hears(node.c, report())
    await node.restart()
    node.hears(node.c, report())
    assert node.goes_to(PUBLISH) == node.goes_to(CREATE) == node.c
    assert node.registry.problems == []


async def test_a_named_socket_that_registers_with_the_kubelet_is_the_node_plugin_whatever_was_it_before(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.found(node.n)
    node.hears(node.n, report())
    node.hears(node.c, report())
    await node.restart()
    node.found(node.c, name=NAME)
    node.hears(node.c, report())
    assert node.goes_to(PUBLISH) == node.c
    assert node.registry.problems == []


async def test_of_two_that_were_found_and_serve_all_neither_is_taken_for_the_node_plugin(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(named=False)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(node.n)
        listening.listen()
        for path in (node.n, node.c):
            node.found(path)
            node.hears(path, report())
        with pytest.raises(CallError, match="has 2 drivers with the name"):
            node.goes_to(PUBLISH)
    await node.restart()
    node.found(node.n)
    node.hears(node.c, report())
    with pytest.raises(CallError, match="has no driver"):
        node.goes_to(PUBLISH)


async def test_what_registers_with_the_kubelet_counts_before_what_is_found(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(named=False)
    node.found(node.n, name=NAME)
    node.found(node.c)
    node.hears(node.c, report())
    await node.restart()
    node.hears(node.c, report())
    with pytest.raises(CallError, match="has no driver"):
        node.goes_to(PUBLISH)


async def test_a_node_plugin_that_is_away_is_named_beside_any_other_socket_that_lacks_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.found(node.n)
    node.hears(node.n, report())
    node.hears(node.c, report())
    node.is_forgotten(node.n)
    other = str(tmp_path / "other")
    node.found(other)
    node.hears(other, report(lacks=LACKS_NODE))
    with pytest.raises(CallError, match="has no driver"):
        node.goes_to(PUBLISH)
    assert [problem for problem in node.registry.problems if f"which was at {node.n}, is away" in problem]


async def test_a_named_driver_whose_name_kubernetes_does_not_take_mounts_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, own=True)
    node.hears(node.c, report(name="d_example"))
    assert csi_node_drivers(node.registry.registrations) == []


async def test_nothing_of_node_is_told_before_the_node_plugin_was_heard_for_a_sidecar_asks_only_once(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    cache = IdentityCache(tmp_path / "proxy", NAME)
    node.hears(node.c, report(lacks=LACKS_NODE))
    (early,) = node.registry.told_reports()
    assert not early.answers.keys() & set(LACKS_NODE)
    cache.update(early)
    node.found(node.n)
    node.hears(node.n, report(lacks=LACKS_CONTROLLER))
    (told,) = node.registry.told_reports()
    cache.update(told)
    assert cache.answer(NODE_GET_CAPABILITIES).code == Code.OK


# -------------------- whose topology --------------------


@pytest.mark.parametrize("first", ["node plugin", "controller"])
async def test_a_topology_that_the_controller_alone_announces_outlives_its_absence_in_all_that_is_told(
    tmp_path: Path, first: str
) -> None:
    node = Node(tmp_path, own=True)
    node.registers(node.n, topology="zone")
    heard: list[tuple[str, DriverReport | None]] = [(node.n, report()), (node.c, None)]
    for path, said in heard if first == "node plugin" else reversed(heard):
        node.hears(path, said)
    assert topology_keys(node) == {NAME: ["zone"]}
    assert node.registry.has_topology(NAME), "nor does it get another one when it registers again"
    (told,) = node.registry.told_reports()
    assert has_topology(told.answers[GET_PLUGIN_CAPABILITIES].body)
    node.hears(node.c, report(topology=True))
    assert topology_keys(node) == {NAME: ["zone"]}


async def test_a_topology_that_was_is_no_more_once_the_controller_says_nothing_of_it(tmp_path: Path) -> None:
    node = Node(tmp_path, own=True)
    node.registers(node.n, topology="zone")
    node.hears(node.n, report())
    node.hears(node.c, report())
    assert topology_keys(node) == {NAME: ["csi-bridge.io/node", "zone"]}
    (told,) = node.registry.told_reports()
    assert not has_topology(told.answers[GET_PLUGIN_CAPABILITIES].body)


async def test_beside_a_kubelet_a_topology_that_the_controller_alone_announces_outlives_a_restart(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.found(node.n)
    node.hears(node.n, report(lacks=LACKS_CONTROLLER))
    node.hears(node.c, report(lacks=LACKS_NODE, topology=True))
    await node.restart()
    node.found(node.n)
    node.hears(node.n, report(lacks=LACKS_CONTROLLER))
    assert (node.registry.has_topology(NAME), node.registry.lacks_topology(NAME)) == (True, False)
    node.hears(node.c, report(lacks=LACKS_NODE))
    assert (node.registry.has_topology(NAME), node.registry.lacks_topology(NAME)) == (False, True)
    assert not node.registry.lacks_topology("e.example"), "nobody has heard it"


async def test_a_topology_that_the_node_plugin_alone_announces_outlives_its_absence(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.found(node.n)
    node.hears(node.n, report(topology=True))
    node.hears(node.c, report())
    await node.restart()
    node.hears(node.c, report())
    (told,) = node.registry.told_reports()
    assert has_topology(told.answers[GET_PLUGIN_CAPABILITIES].body)
