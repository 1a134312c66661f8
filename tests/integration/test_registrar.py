"""The registrar with plugins and drivers on real sockets: who registers, who is refused and why, who is still known."""

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2
from common.csi.reports import NODE_GET_INFO
from common.errors import CallError, VendorBroken
from common.observe.tasks import supervised
from common.status import Code, Status
from edge.calls.drivers import ASK_AGAIN_S, Driver
from edge.registrar import Registrar
from edge.registry import drivers_store, plugin_client, registration_handler
from edge.registry.driver_registry import DriverRegistry
from edge.registry.driver_services import find_driver
from edge.registry.drivers_store import NodeDriver
from edge.registry.registration import NodeInfo, csi_node_drivers, node_annotations, node_labels
from tests.kit.agent_settings import agent_settings
from tests.kit.answers import methods_of
from tests.kit.plugin import SERVICE, Plugin
from tests.kit.vendor import Vendor
from tests.kit.waiting import until
from tests.kit.wire_vendor import WireVendor

CREATE = "/csi.v1.Controller/CreateVolume"
PUBLISH = "/csi.v1.Node/NodePublishVolume"


class Node:
    """A node's registry and registrar, that can be stopped and started again on the same directories."""

    def __init__(self, directory: Path, *, name: str = "n1") -> None:
        self.name = name
        self.root = directory / "root"
        self.sockets = self.root / "plugins_registry"
        self.state = directory / "state"
        self.changes = 0
        self.labels: dict[str, str] = {}
        self.registry: DriverRegistry
        self._running: contextlib.AsyncExitStack | None = None

    async def start(self, *named: Path, own: bool = True) -> None:
        settings = agent_settings(self.state, *named, node=self.name, own=own)
        self.registry = DriverRegistry(settings, labels=lambda: self.labels)
        self.registry.subscribe(self._changed)
        self._running = contextlib.AsyncExitStack()
        self._running.push_async_callback(self.registry.close)
        tasks = await self._running.enter_async_context(supervised())
        tasks.start(self.registry.run(), name="registry")
        tasks.start(Registrar(self.root, self.registry).run(), name="registrar")
        await until(self.sockets.is_dir, "the registry directory")

    async def start_with(self, plugin: Plugin) -> None:
        """Start, and wait until the plugin is told that it is registered."""
        plugin.start()
        await self.start()
        assert await told(plugin) == (True, "")

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.aclose()
            self._running = None

    async def restart(self, *named: Path, own: bool = True) -> None:
        await self.stop()
        await self.start(*named, own=own)

    async def registered(self, name: str = "vendor.test") -> None:
        await until(lambda: (known := self.registry.find(name)) is not None and known.registered, f"{name} registered")

    async def away(self, name: str = "vendor.test") -> None:
        await until(lambda: (known := self.registry.find(name)) is None or not known.registered, f"{name} away")

    def known(self) -> NodeDriver:
        found = self.registry.find("vendor.test")
        assert found is not None
        return found

    def facts(self) -> dict[str, str]:
        return {entry["name"]: entry["nodeID"] for entry in csi_node_drivers(self.registry.registrations)}

    def kept(self) -> list[dict[str, Any]]:
        drivers: list[dict[str, Any]] = json.loads((self.state / "drivers.json").read_bytes())["drivers"]
        return drivers

    async def heard_anew(self, vendor: Vendor) -> None:
        """Have a driver say something else of itself, and wait until the registry has heard it."""
        vendor.identity.node_id += "+"
        await asyncio.to_thread(vendor.restart)
        drivers = [driver for driver in self.registry.drivers if driver.socket == vendor.socket]
        await until(lambda: drivers and vendor.identity.node_id.encode() in _node_info_of(drivers[0]), "the new id")

    def socket_of(self, method: str, driver: str = "vendor.test") -> Path | str:
        """Where a call of a method goes; why not, if it goes nowhere."""
        try:
            return find_driver(self.registry.drivers, driver, self.name, method).socket
        except CallError as error:
            return str(error)

    def _changed(self) -> None:
        self.changes += 1


def _node_info_of(driver: Driver) -> bytes:
    answer = driver.report.answers.get(NODE_GET_INFO) if driver.report is not None else None
    return answer.body if answer is not None else b""


@pytest.fixture
async def node(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(plugin_client, "_GET_INFO_LIMIT_S", 4.0)  # a busy machine's threads are late by a second
    node = Node(short_dir)
    yield node
    await node.stop()


@pytest.fixture
def plugin(short_dir: Path, vendor: Vendor) -> Iterator[Plugin]:
    directory = short_dir / "root" / "plugins_registry"
    directory.mkdir(parents=True)
    plugin = Plugin(directory / "v-reg.sock", endpoint=vendor.socket)
    yield plugin
    plugin.stop()


@contextlib.contextmanager
def another(node: Node, file: str, **settings: Any) -> Iterator[Plugin]:
    with Plugin(node.sockets / file, **settings) as plugin:
        yield plugin


def topology_keys(node: Node) -> dict[str, list[str]]:
    return {entry["name"]: entry["topologyKeys"] for entry in csi_node_drivers(node.registry.registrations)}


def split_off(vendor: Vendor) -> Vendor:
    """A second process of a vendor's."""
    return Vendor(vendor.socket.with_name("w.sock"))


async def told(plugin: Plugin, number: int = 1) -> tuple[bool, str]:
    await until(lambda: len(plugin.told) >= number, f"word {number} for {plugin.socket.name}")
    status = plugin.told[number - 1]
    return status.plugin_registered, status.error


def node_info(**fields: Any) -> Callable[[object], csi_pb2.NodeGetInfoResponse]:
    segments = fields.pop("topology", None)
    answer = csi_pb2.NodeGetInfoResponse(**fields)
    if segments is not None:
        answer.accessible_topology.segments.update(segments)
    return lambda _call: answer


def with_own_topology(_call: object) -> csi_pb2.GetPluginCapabilitiesResponse:
    service = csi_pb2.PluginCapability.Service(type="VOLUME_ACCESSIBILITY_CONSTRAINTS")
    return csi_pb2.GetPluginCapabilitiesResponse(capabilities=[csi_pb2.PluginCapability(service=service)])


# -------------------- who registers --------------------


async def test_a_socket_that_is_there_at_the_start_is_registered(node: Node, plugin: Plugin, vendor: Vendor) -> None:
    vendor.on("GetPluginCapabilities", with_own_topology)
    vendor.on("NodeGetInfo", node_info(node_id="id-1", max_volumes_per_node=7, topology={"zone": "a"}))
    capability = csi_pb2.NodeServiceCapability(rpc={"type": "STAGE_UNSTAGE_VOLUME"})
    vendor.on("NodeGetCapabilities", lambda _: csi_pb2.NodeGetCapabilitiesResponse(capabilities=[capability]))
    await node.start_with(plugin)
    found = node.known()
    assert found.registration.info == NodeInfo("id-1", 7, {"zone": "a"}, frozenset({1}))
    assert csi_node_drivers(node.registry.registrations) == [
        {"name": "vendor.test", "nodeID": "id-1", "topologyKeys": ["zone"], "allocatable": {"count": 7}}
    ]
    assert node_annotations(node.registry.registrations) == {
        "csi.volume.kubernetes.io/nodeid": '{"vendor.test":"id-1"}'
    }
    assert node_labels(node.registry.registrations) == {"zone": "a"}
    assert topology_keys(node) == {"vendor.test": ["zone"]}
    assert plugin.asked == 1
    assert node.changes
    assert await found.call(PUBLISH, b"", timeout_s=5.0) == (Status(Code.OK), b"")


async def test_a_registry_directory_is_made_with_the_kubelets_mode_and_a_socket_in_a_new_one_below_is_registered(
    node: Node, vendor: Vendor
) -> None:
    before = os.umask(0o022)
    try:
        await node.start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(node.sockets.stat().st_mode) == 0o755
    (node.sockets / "deep" / "er").mkdir(parents=True)
    with another(node, "deep/er/reg.sock", endpoint=f"unix://{vendor.socket}") as plugin:
        assert await told(plugin) == (True, "")


async def test_a_registry_directory_that_is_made_again_is_served_again_and_asks_its_drivers_anew(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    await node.start_with(plugin)
    await until(lambda: [driver.name for driver in node.registry.drivers] == ["vendor.test"], "the driver by name")
    vendor.on("NodeGetInfo", node_info(node_id="id-2"))
    plugin.stop()
    node.sockets.rmdir()
    await node.away()
    await until(node.sockets.is_dir, "the directory again")
    plugin.start()
    assert await told(plugin, 2) == (True, "")
    assert node.facts() == {"vendor.test": "id-2"}


async def test_names_that_begin_with_a_dot_are_left_alone(node: Node, vendor: Vendor) -> None:
    await node.start()
    (node.sockets / ".hidden").mkdir()
    with (
        another(node, ".dotted.sock", endpoint=vendor.socket) as dotted,
        another(node, ".hidden/reg.sock", endpoint=vendor.socket) as hidden,
        another(node, "seen.sock", endpoint=vendor.socket) as seen,
    ):
        assert await told(seen) == (True, "")
    assert (dotted.asked, hidden.asked) == (0, 0)


# -------------------- leaving and coming back --------------------


async def test_a_driver_that_left_is_known_for_a_while_also_after_a_restart_and_then_forgotten(
    node: Node, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.start_with(plugin)
    plugin.stop()
    await node.away()
    assert node.facts() == {"vendor.test": "node-id"}
    await until(lambda: node.kept()[0]["gone"], "gone on disk")
    await node.stop()
    monkeypatch.setattr(drivers_store, "GRACE_S", 0.5)
    await node.start()
    assert node.facts() == {"vendor.test": "node-id"}
    await until(lambda: node.registry.find("vendor.test") is None, "forgotten")
    assert node.registry.drivers == []
    assert node.facts() == {}
    await until(lambda: node.kept() == [], "forgotten on disk")


async def test_a_driver_that_left_is_called_while_its_socket_is_there(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    await node.start_with(plugin)
    plugin.stop()
    await node.away()
    found = node.known()
    assert (await found.call(PUBLISH, b"", timeout_s=5.0))[0].ok
    vendor.stop()
    vendor.socket.unlink(missing_ok=True)
    with pytest.raises(CallError, match="has no driver vendor"):
        await found.call(PUBLISH, b"", timeout_s=5.0)


async def test_a_call_that_hangs_is_given_up_in_time(node: Node, plugin: Plugin, vendor: Vendor) -> None:
    vendor.hold("NodePublishVolume")
    await node.start_with(plugin)
    found = node.known()
    calling = asyncio.create_task(found.call(PUBLISH, b"", timeout_s=3.0))
    await until(lambda: vendor.calls("NodePublishVolume"), "the call at the driver")
    (call,) = vendor.calls("NodePublishVolume")
    with pytest.raises(VendorBroken, match=r"did not answer /csi.v1.Node/NodePublishVolume within 3 s"):
        await calling
    await until(lambda: call.cancelled, "the call cancelled at the driver")


async def test_after_a_restart_a_driver_is_known_before_it_is_up(node: Node, plugin: Plugin, vendor: Vendor) -> None:
    vendor.on("NodeGetInfo", node_info(node_id="id-1", max_volumes_per_node=3))
    await node.start_with(plugin)
    await node.stop()
    plugin.stop()
    vendor.stop()
    await node.start()
    found = node.known()
    assert (found.registration.info.max_volumes, found.registered) == (3, False)
    assert node.facts() == {"vendor.test": "id-1"}
    vendor.start()
    plugin.start()
    assert await told(plugin, 2) == (True, "")
    assert found is node.registry.find("vendor.test")
    assert found.registered


async def test_how_many_volumes_a_driver_takes_is_asked_as_often_as_wanted(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    vendor.on("NodeGetInfo", node_info(node_id="id-1", max_volumes_per_node=3))
    plugin.start()
    await node.start()
    node.registry.ask_every("vendor.test", 1.0)
    await told(plugin)
    vendor.on("NodeGetInfo", node_info(node_id="id-1", max_volumes_per_node=5))
    await until(
        lambda: csi_node_drivers(node.registry.registrations)[0].get("allocatable") == {"count": 5}, "the new count"
    )
    node.registry.ask_every("vendor.test", None)
    found = node.known()
    assert found.driver.ask_every_s == ASK_AGAIN_S


async def test_a_socket_that_goes_while_its_driver_is_asked_is_not_registered(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    gate = vendor.hold("NodeGetInfo")
    plugin.start()
    await node.start()
    call = await asyncio.to_thread(vendor.wait_for_call, "NodeGetInfo")
    plugin.stop()
    await until(lambda: call.cancelled, "the question cancelled")
    assert node.registry.find("vendor.test") is None
    assert node.registry.drivers == []
    gate.set()
    plugin.start()
    assert await told(plugin) == (True, "")


async def test_a_driver_that_restarts_with_other_capabilities_is_asked_again(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    await node.start_with(plugin)
    found = node.known()
    assert found.capabilities == frozenset()
    capability = csi_pb2.NodeServiceCapability(rpc={"type": "EXPAND_VOLUME"})
    vendor.on("NodeGetCapabilities", lambda _: csi_pb2.NodeGetCapabilitiesResponse(capabilities=[capability]))
    await asyncio.to_thread(vendor.restart)
    await until(lambda: found.capabilities == {3}, "the new capability")


async def test_a_plugin_that_does_not_take_the_good_news_is_not_registered(node: Node, plugin: Plugin) -> None:
    plugin.confirms = False
    plugin.start()
    await node.start()
    await until(lambda: plugin.asked >= 2, "a second try")
    assert not plugin.told
    plugin.confirms = True
    assert await told(plugin) == (True, "")
    await node.registered()


# -------------------- refusals --------------------


async def refusal(node: Node, **settings: Any) -> str:
    """What a plugin is told that cannot register."""
    await node.start()
    with another(node, "refused.sock", **settings) as plugin:
        registered, error = await told(plugin)
    assert not registered
    return error


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kind": "DRAPlugin"}, "plugins of type 'DRAPlugin' are not taken, only CSIPlugin"),
        ({"endpoint": "csi.sock"}, "is not the absolute path of a UNIX socket"),
        ({"endpoint": "/" + "a" * 200}, "is not the absolute path of a UNIX socket"),
        ({"endpoint": "/a\0b"}, "is not the absolute path of a UNIX socket"),
        ({"endpoint": ""}, "refused.sock: it does not give its name: it answered GetPluginInfo with UNIMPLEMENTED"),
        ({"name": "other.test"}, "now belongs to driver vendor.test"),
    ],
    ids=["another type", "no path", "a long path", "a zero", "its own socket", "another name"],
)
async def test_a_plugin_that_cannot_be_taken_is_told_why(
    node: Node, vendor: Vendor, settings: dict[str, Any], why: str
) -> None:
    assert why in await refusal(node, **({"endpoint": vendor.socket} | settings))


@pytest.mark.parametrize(
    ("length", "why"),
    [
        (5_000, "it answered NodeGetInfo with FAILED_PRECONDITION: no metadata xxx"),
        (3_000_000, "the driver broke HTTP/2 during the call: it sent a header block without an end"),
    ],
)
async def test_a_driver_that_refuses_to_say_its_node_is_refused_in_its_own_words_cut_short(
    node: Node, vendor: Vendor, length: int, why: str
) -> None:
    vendor.refuse("NodeGetInfo", Code.FAILED_PRECONDITION, "no metadata\n" + "x" * length)
    error = await refusal(node, endpoint=vendor.socket)
    assert why in error
    assert len(error) < 1000


async def test_a_driver_that_hangs_is_refused_after_the_limit(
    node: Node, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_handler, "_ASK_LIMIT_S", 0.5)
    vendor.hold("NodeGetInfo")
    assert "did not answer /csi.v1.Node/NodeGetInfo within 0.5 s" in await refusal(node, endpoint=vendor.socket)


async def test_what_was_refused_is_tried_again_and_said_once(
    node: Node, plugin: Plugin, vendor: Vendor, caplog: pytest.LogCaptureFixture
) -> None:
    vendor.refuse("NodeGetInfo", Code.UNAVAILABLE, "starting")
    plugin.start()
    await node.start()
    assert (await told(plugin, 2))[0] is False
    vendor.as_usual("NodeGetInfo")
    await until(lambda: plugin.told[-1].plugin_registered, "registered in the end")
    assert [line for line in caplog.messages if "is not registered: " in line] == [
        f"the plugin at {plugin.socket} is not registered: it answered NodeGetInfo with UNAVAILABLE: starting"
    ]


async def test_topology_that_contradicts_another_driver_is_refused_by_name(node: Node, vendor: Vendor) -> None:
    vendor.on("NodeGetInfo", node_info(node_id="1", topology={"zone": "a"}))
    with Vendor(vendor.socket.with_name("w.sock"), name="w.test") as second:
        second.on("NodeGetInfo", node_info(node_id="1", topology={"zone": "b"}))
        await node.start()
        with (
            another(node, "v.sock", endpoint=vendor.socket) as one,
            another(node, "w.sock", name="w.test", endpoint=second.socket) as two,
        ):
            words = sorted([await told(one), await told(two)])
            assert [registered for registered, _ in words] == [False, True]
            assert "says that this node is zone=" in words[0][1]


# -------------------- one name, one driver --------------------


async def test_a_second_driver_of_one_name_is_refused_until_the_first_one_left(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    await node.start_with(plugin)
    with Vendor(vendor.socket.with_name("w.sock")) as second, another(node, "w.sock", endpoint=second.socket) as two:
        registered, error = await told(two)
        assert not registered
        assert error.startswith(f"a driver vendor.test is registered already, by {plugin.socket} for {vendor.socket}")
        plugin.stop()
        await until(lambda: two.told[-1].plugin_registered, "the second one")
        assert [driver.socket for driver in node.registry.drivers] == [second.socket]


@pytest.mark.parametrize("killed", ["driver", "registrar"])
async def test_a_name_whose_driver_or_registrar_answers_no_more_is_taken_over(
    node: Node, plugin: Plugin, vendor: Vendor, killed: str
) -> None:
    await node.start_with(plugin)
    if killed == "driver":
        vendor.stop()
    else:
        await asyncio.to_thread(plugin.stop, leave_file=True)
    with Vendor(vendor.socket.with_name("w.sock")) as second, another(node, "w.sock", endpoint=second.socket) as two:
        await until(lambda: two.told and two.told[-1].plugin_registered, "the second one")
        if killed == "driver":
            plugin.stop()
        with another(node, "x.sock", kind="Other") as later:
            await told(later)  # by now the first one's end was seen, and is nothing to the second one
        await node.registered()
        assert [driver.socket for driver in node.registry.drivers] == [second.socket]


async def test_an_agent_without_a_descriptor_takes_no_registrar_for_a_dead_one(
    node: Node, plugin: Plugin, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(_socket: Path) -> bool:
        raise OSError(errno.EMFILE, "Too many open files")

    await node.start_with(plugin)
    monkeypatch.setattr(registration_handler, "is_served", no_descriptor)
    with another(node, "w.sock", endpoint=vendor.socket) as two:
        assert await told(two) == (False, "[Errno 24] Too many open files")
        monkeypatch.undo()
        await until(lambda: len(two.told) > 1, "a second try")
        assert "registered already" in two.told[-1].error


async def test_an_agent_without_a_descriptor_takes_no_driver_for_a_dead_one(
    node: Node, plugin: Plugin, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    dial = loop.create_unix_connection

    async def no_descriptor(protocol: Callable[[], Any], path: str) -> Any:
        if path == str(vendor.socket):
            raise OSError(errno.EMFILE, "Too many open files")
        return await dial(protocol, path)

    await node.start_with(plugin)
    monkeypatch.setattr(loop, "create_unix_connection", no_descriptor)
    await asyncio.to_thread(vendor.restart)  # the agent has no connection to it any more
    with Vendor(vendor.socket.with_name("w.sock")) as second, another(node, "w.sock", endpoint=second.socket) as two:
        registered, error = await told(two)
        assert not registered
        assert "has no file descriptor or no memory left" in error
        monkeypatch.undo()
        await until(lambda: len(two.told) > 1, "a second try")
        assert "registered already" in two.told[-1].error


async def test_a_higher_version_takes_the_name(node: Node, plugin: Plugin, vendor: Vendor) -> None:
    await node.start_with(plugin)
    with another(node, "w.sock", endpoint=vendor.socket, versions=("1.0.0", "1.1.0")) as two:
        assert await told(two) == (True, "")
        registered, error = await told(plugin, 2)
        assert (registered, "registered already" in error) == (False, True)


# -------------------- drivers that an operator named --------------------


async def test_a_driver_that_an_operator_named_is_known_by_what_it_says(node: Node, vendor: Vendor) -> None:
    await node.start(vendor.socket)
    await node.registered()
    assert node.facts() == {"vendor.test": "node-id"}
    await until((node.state / "drivers.json").exists, "the file")
    await node.restart()
    assert node.registry.find("vendor.test") is None, "it is named no more"


async def test_a_named_driver_that_registers_too_is_one_driver(node: Node, plugin: Plugin, vendor: Vendor) -> None:
    link = vendor.socket.with_name("link")
    link.symlink_to(vendor.socket.parent)
    plugin.start()
    await node.start(link / vendor.socket.name)
    assert await told(plugin) == (True, "")
    assert len(node.registry.drivers) == 1
    plugin.stop()
    await until(lambda: not node.registry.is_registered("vendor.test", str(plugin.socket)), "left")
    await node.registered()
    assert len(node.registry.drivers) == 1


async def test_a_named_driver_without_a_node_part_mounts_nothing_and_can_be_called(node: Node, vendor: Vendor) -> None:
    vendor.lacks |= {"NodeGetInfo", "NodeGetCapabilities"}
    await node.start(vendor.socket)
    await until(lambda: node.registry.drivers[0].report is not None, "its report")
    assert node.registry.find("vendor.test") is None
    assert node.facts() == {}


# -------------------- a vendor with two processes --------------------


async def test_a_node_plugin_that_registered_and_is_just_being_asked_is_not_called_away(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    with split_off(vendor) as named:
        await node.start(named.socket)
        await until(lambda: node.socket_of(CREATE) == named.socket, "the named one")
        asked = vendor.hold("ControllerGetCapabilities")
        plugin.start()
        assert await told(plugin) == (True, "")
        await until(lambda: vendor.calls("ControllerGetCapabilities"), "the question")
        assert node.registry.problems == []
        asked.set()
        await until(lambda: node.socket_of(PUBLISH) == vendor.socket, "the node plugin")
        assert node.registry.problems == []


async def test_a_driver_that_registered_once_mounts_when_an_operator_names_its_own_socket(
    node: Node, plugin: Plugin, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    monkeypatch.setattr(drivers_store, "GRACE_S", 0.5)
    await node.start()
    await told(plugin)
    plugin.stop()
    await until(lambda: node.kept() == [], "forgotten on disk")
    link = vendor.socket.with_name("link")
    link.symlink_to(vendor.socket.parent)
    await node.restart(link / vendor.socket.name)
    await node.registered()
    assert node.facts() == {"vendor.test": "node-id"}


# -------------------- what lies about --------------------


async def test_what_is_no_plugin_is_named_and_keeps_nobody_waiting(
    node: Node, plugin: Plugin, vendor: Vendor, caplog: pytest.LogCaptureFixture
) -> None:
    sockets = node.sockets
    (sockets / "directory.sock").mkdir()
    os.mkfifo(sockets / "fifo.sock")
    (sockets / "file.sock").write_text("hello")
    (sockets / "link.sock").symlink_to("/nowhere")
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as silent:
        dead.bind(str(sockets / "dead.sock"))
        silent.bind(str(sockets / "silent.sock"))
        silent.listen()
        with (
            another(node, "hangs.sock") as hangs,
            another(node, "nonsense.sock") as nonsense,
            another(node, "angry.sock") as angry,
            another(node, "large.sock", versions=("1.0.0", "1." + "0" * 100_000)),
            another(node, "directory.sock/no-name.sock", name="") as no_name,
            WireVendor(sockets / "html.sock") as html,
            WireVendor(sockets / "noise.sock") as noise,
        ):
            hangs.info, nonsense.info, angry.refusal = None, b"\xff\xff\xff", "x" * 3_000_000
            html.on(f"{SERVICE}/GetInfo", lambda wire: wire.headers(content_type="text/html", end=True))
            noise.on(f"{SERVICE}/GetInfo", lambda wire: wire.raw(os.urandom(4096)))
            await node.start()
            plugin.start()
            assert await told(plugin) == (True, "")
            troubled = ("dead", "hangs", "nonsense", "angry", "large", "no-name", "html", "noise")
            await until(lambda: all(_trouble(caplog, name) for name in troubled), "all troubles in the log")
            assert (await told(no_name))[0] is False
    assert "connection refused" in _trouble(caplog, "dead")
    assert "does not answer GetInfo" in _trouble(caplog, "hangs")
    assert "does not parse" in _trouble(caplog, "nonsense")
    assert "content-type text/html" in _trouble(caplog, "html")
    assert "is larger than the limit of 65536 bytes" in _trouble(caplog, "large")
    assert max(map(len, caplog.messages)) < 2000
    assert node.facts() == {"vendor.test": "node-id"}


def _line(caplog: pytest.LogCaptureFixture, text: str) -> str:
    return next((line for line in caplog.messages if text in line), "")


def _trouble(caplog: pytest.LogCaptureFixture, name: str) -> str:
    return _line(caplog, f"/{name}.sock is not registered")


# -------------------- the node's segment --------------------


async def test_a_driver_without_a_topology_gets_the_nodes_segment_in_all_that_kubernetes_is_told_and_the_hub_its_bytes(
    node: Node, plugin: Plugin, vendor: Vendor
) -> None:
    info = node_info(node_id="id-1", topology={"zone": "a"})
    vendor.on("NodeGetInfo", info)
    await node.start_with(plugin)
    assert csi_node_drivers(node.registry.registrations) == [
        {"name": "vendor.test", "nodeID": "id-1", "topologyKeys": ["csi-bridge.io/node", "zone"]}
    ]
    assert node_labels(node.registry.registrations) == {"csi-bridge.io/node": "n1", "zone": "a"}
    assert node.registry.problems == []
    await until(lambda: node.registry.drivers[0].report is not None, "the report")
    assert _node_info_of(node.registry.drivers[0]) == info(None).SerializeToString()
    vendor.stop()
    await node.restart()
    assert node_labels(node.registry.registrations) == {"csi-bridge.io/node": "n1", "zone": "a"}


async def test_a_node_whose_name_can_be_no_label_has_no_segment_and_says_so(
    short_dir: Path, plugin: Plugin, vendor: Vendor
) -> None:
    node = Node(short_dir, name="n" * 64)
    plugin.start()
    await node.start()
    try:
        assert await told(plugin) == (True, "")
        assert topology_keys(node) == {"vendor.test": []}
        await until(lambda: node.registry.problems, "the problem")
        (problem,) = node.registry.problems
        assert problem.startswith("driver vendor.test has no topology of its own, and the node's name 'nnnn")
        vendor.on("GetPluginCapabilities", with_own_topology)
        vendor.restart()
        await until(lambda: not node.registry.problems, "the problem's end")
    finally:
        await node.stop()


# -------------------- the file --------------------


async def test_a_state_directory_that_takes_no_file_keeps_no_driver_from_registering(
    node: Node, plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    node.state.write_text("no directory")
    await node.start_with(plugin)
    assert "cannot be written" in caplog.text


# -------------------- observing --------------------


async def test_an_observer_finds_a_driver_by_its_registration_tells_it_nothing_and_forgets_it_a_while_after_it_left(
    node: Node, plugin: Plugin, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    monkeypatch.setattr(drivers_store, "GRACE_S", 0.5)
    await node.start(own=False)
    await until(lambda: [driver.name for driver in node.registry.drivers] == ["vendor.test"], "the driver")
    assert (await node.registry.drivers[0].unary("/csi.v1.Controller/GetCapacity", b"", timeout_s=5.0))[0].ok
    assert (plugin.asked, plugin.told) == (1, [])
    assert node.registry.find("vendor.test") is None
    assert (
        csi_node_drivers(node.registry.registrations),
        node_annotations(node.registry.registrations),
        node_labels(node.registry.registrations),
    ) == ([], {}, {})
    await until((node.state / "observed.json").exists, "where its node plugin is")
    assert not (node.state / "drivers.json").exists()
    plugin.stop()
    await until(lambda: not node.registry.drivers, "its end")


async def test_an_observer_finds_a_driver_by_its_socket_and_counts_it_once(node: Node) -> None:
    directory = node.root / "plugins" / "v"
    directory.mkdir(parents=True)
    with Vendor(directory / "csi.sock") as vendor:
        await node.start(own=False)
        await until(lambda: [driver.name for driver in node.registry.drivers] == ["vendor.test"], "the driver")
        with another(node, "v.sock", endpoint=vendor.socket) as plugin:
            await until(lambda: plugin.asked, "GetInfo")
            assert len(node.registry.drivers) == 1


@pytest.fixture
def plugins(node: Node) -> Path:
    """Where an observer looks for drivers, with a directory each for two of them."""
    plugins = node.root / "plugins"
    for name in "ab":
        (plugins / name).mkdir(parents=True)
    return plugins


def kill(vendor: Vendor) -> None:
    """Leave what SIGKILL leaves of a driver: a file at which nobody listens."""
    vendor.stop()
    vendor.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(vendor.socket))


@pytest.mark.slow
async def test_a_socket_that_a_killed_driver_left_is_no_driver_once_another_one_serves_the_same(
    node: Node, plugins: Path
) -> None:
    old, new = Vendor(plugins / "a" / "csi.sock"), Vendor(plugins / "b" / "csi.sock")
    old.start()
    await node.start(own=False)
    await until(lambda: node.socket_of(CREATE) == old.socket, "the old one")
    kill(old)
    with new:
        await until(lambda: node.socket_of(CREATE) == new.socket, "the new one")
        assert [driver.socket for driver in node.registry.drivers] == [new.socket]
        with old:
            await until(lambda: "has 2 drivers with the name" in str(node.socket_of(CREATE)), "both")


@pytest.mark.slow
async def test_a_driver_that_is_slow_or_serves_something_else_is_not_replaced(node: Node, plugins: Path) -> None:
    slow, controller = plugins / "a" / "csi.sock", Vendor(plugins / "b" / "csi.sock")
    controller.lacks |= methods_of("Node")
    with Vendor(slow):
        controller.start()
        await node.start(own=False)
        await until(lambda: len([driver for driver in node.registry.drivers if driver.report is not None]) == 2, "both")
    kill(controller)
    (node.root / "plugins" / "c").mkdir()
    with socket.socket(socket.AF_UNIX) as hanging, Vendor(node.root / "plugins" / "c" / "csi.sock") as third:
        slow.unlink(missing_ok=True)
        hanging.bind(str(slow))
        hanging.listen()
        third.lacks |= methods_of("Controller")
        await until(lambda: third.socket in [driver.socket for driver in node.registry.drivers if driver.report], "it")
        assert "has 2 drivers with the name" in str(node.socket_of(PUBLISH))
        assert controller.socket in [driver.socket for driver in node.registry.drivers]
