"""The kubelet relay, end to end: a vendor's driver, an agent, and a gRPC client where a kubelet would be."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2 as csi
from common.csi.methods import METHODS
from common.status import Code
from tests.kit.answers import methods_of, path_of
from tests.kit.bridge import Agent, Bridge
from tests.kit.leftovers import clear
from tests.kit.needs import needs_mounts
from tests.kit.plugin import Plugin
from tests.kit.processes import listens_on
from tests.kit.running_driver import Running, mount
from tests.kit.sidecar import Sidecar, unavailable
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

NAME = "vendor.test"
NOBODY = "127.0.0.1:1"  # a hub that is not there: the relay does without

NODE_METHODS = sorted(path for path in METHODS if path.startswith("/csi.v1.Node/"))
MIB = 1 << 20


@dataclass
class Relayed:
    """A vendor, an agent that relays for it, and a client at the relay's socket."""

    bridge: Bridge
    vendor: Vendor
    agent: Agent
    directory: Path
    kubelet: Sidecar

    @property
    def socket(self) -> Path:
        return self.directory / f"{NAME}.sock"

    def wait_relayed(self) -> None:
        wait_for(
            lambda: self.kubelet.call("Probe", timeout_s=5.0).ok,
            what="an answer through the relay",
            timeout_s=60.0,
            instead=self.agent.process.log_tail,
        )

    def problems(self) -> list[str]:
        found: list[str] = self.agent.status()["problems"]
        return found

    def wait_problem(self, text: str) -> str:
        found = wait_for(
            lambda: [problem for problem in self.problems() if text in problem],
            what=f"the problem {text!r}",
            timeout_s=60.0,
            instead=lambda: f"{self.problems()}\n{self.agent.process.log_tail()}",
        )
        return found[0]


@contextlib.contextmanager
def relayed(vendor: Vendor, logs: Path, *, node: str = "n1") -> Iterator[Relayed]:
    directory = vendor.socket.parent
    with Bridge(directory, logs) as bridge, Sidecar(directory / "relay" / f"{NAME}.sock") as kubelet:
        flags = ("--registration=observe", f"--relay-dir={directory / 'relay'}")
        agent = bridge.start_agent(node, vendor.socket, flags=flags, through=NOBODY)
        world = Relayed(bridge, vendor, agent, directory / "relay", kubelet)
        world.wait_relayed()
        yield world


@pytest.fixture(scope="module")
def shared(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relayed]:
    with (
        Vendor(module_dir / "vendor.sock") as vendor,
        relayed(vendor, tmp_path_factory.mktemp("logs")) as world,
    ):
        yield world


@pytest.fixture
def mine(vendor: Vendor, tmp_path: Path) -> Iterator[Relayed]:
    with relayed(vendor, tmp_path) as world:
        yield world


def with_own_topology(_call: object) -> csi.GetPluginCapabilitiesResponse:
    service = csi.PluginCapability.Service(type="VOLUME_ACCESSIBILITY_CONSTRAINTS")
    return csi.GetPluginCapabilitiesResponse(capabilities=[csi.PluginCapability(service=service)])


# -------------------- calls --------------------


@pytest.mark.parametrize("path", NODE_METHODS)
def test_each_call_of_a_kubelet_reaches_the_driver_as_bytes_and_its_answer_comes_back(
    shared: Relayed, path: str
) -> None:
    known = METHODS[path]
    request = known.request()
    if "volume_id" in known.request.DESCRIPTOR.fields_by_name:
        request.volume_id = "v1"  # type: ignore[attr-defined]  # it has the field
    sent = request.SerializeToString() + b"\xf2\x3f\x03new"  # field 1022, which this contract does not know
    answer = b"" if path.endswith("/NodeGetInfo") else b"\xf2\x3f\x03too"
    shared.vendor.on(path, lambda _: answer or csi.NodeGetInfoResponse(node_id="id"))
    outcome = shared.kubelet.call(path, sent)
    shared.vendor.as_usual(path)
    assert outcome.ok
    assert shared.vendor.calls(path)[-1].data == sent
    if answer:
        assert outcome.answer.SerializeToString() == answer


@pytest.mark.parametrize("method", ["NodePublishVolume", "NodeGetInfo", "GetPluginInfo"])
@pytest.mark.parametrize(
    "code", [Code.UNAVAILABLE, Code.FAILED_PRECONDITION, Code.INTERNAL], ids=lambda code: code.name
)
def test_a_drivers_status_passes_unchanged(shared: Relayed, code: Code, method: str) -> None:
    shared.vendor.refuse(method, code, "no: 100 % of größe is used\n(pool 7)")
    outcome = shared.kubelet.call(method)
    shared.vendor.as_usual(method)
    if method == "GetPluginInfo":
        shared.wait_relayed()  # a driver that does not say who it is gets no calls until it does
    assert outcome.refusal == (code, "no: 100 % of größe is used\n(pool 7)")


@pytest.mark.parametrize("why", ["its time is up", "the kubelet gives it up"])
def test_a_call_whose_time_is_up_names_the_driver_and_is_cancelled_there_as_one_that_the_kubelet_gives_up(
    shared: Relayed, why: str
) -> None:
    number = len(shared.vendor.calls("NodeStageVolume")) + 1
    gate = shared.vendor.hold("NodeStageVolume")
    if why == "its time is up":
        # A kubelet's own client: it would say "context deadline exceeded" if it heard nothing before.
        outcome = shared.kubelet.call("NodeStageVolume", csi.NodeStageVolumeRequest(), timeout_s=3.0)
        why = f"driver {NAME} on edge node n1: it did not answer /csi.v1.Node/NodeStageVolume within 2.8"
        assert outcome.refusal[0] == Code.UNAVAILABLE
        assert outcome.refusal[1].startswith(why)
        call = shared.vendor.wait_for_call("NodeStageVolume", number)
        assert call.timeout_s is not None
        assert 1.0 < call.timeout_s < 4.0  # the client rounds it up
    else:
        pending = shared.kubelet.start("NodeStageVolume")
        call = shared.vendor.wait_for_call("NodeStageVolume", number)
        pending.cancel()
    wait_for(call.over.is_set, what="the cancel at the driver")
    assert call.cancelled
    gate.set()
    shared.vendor.as_usual("NodeStageVolume")


def test_a_request_above_the_limit_is_refused_by_name_and_never_begun(shared: Relayed) -> None:
    number = len(shared.vendor.calls("NodePublishVolume"))
    filler = {"filler": "x" * 4 * MIB}
    request = csi.NodePublishVolumeRequest(volume_id="v", target_path="/t", publish_context=filler)
    assert shared.kubelet.call("NodePublishVolume", request).refusal == unavailable(
        f"a request of {request.ByteSize()} bytes is larger than the limit of {4 * MIB} bytes; raise --max-message on "
        "hub, driver and agent"
    )
    assert len(shared.vendor.calls("NodePublishVolume")) == number


# -------------------- what is not the driver's word --------------------


def test_a_driver_that_dies_amid_a_call_is_unavailable_and_named_and_served_again_when_it_is_back(
    mine: Relayed,
) -> None:
    gone = unavailable(
        f"driver {NAME} on edge node n1: cannot connect to unix://{mine.vendor.socket}: no such socket (is the driver "
        "running?); look at the driver's log there"
    )
    mine.vendor.hold("NodeStageVolume")
    pending = mine.kubelet.start("NodeStageVolume")
    mine.vendor.wait_for_call("NodeStageVolume")
    mine.vendor.stop()
    assert pending.outcome().code is Code.UNAVAILABLE
    # Until the agent has read the end of the old connection, a call may still go there, and ends with it.
    wait_for(lambda: mine.kubelet.call("NodePublishVolume").refusal == gone, what="refusal that names the socket")
    mine.vendor.start()
    assert mine.kubelet.call("NodePublishVolume").ok


def another(directory: Path, folder: str, *lacks: str) -> Vendor:
    """A second driver of the same name, without some services, where the agent looks for drivers."""
    plugins = directory / "n1-kubelet" / "plugins" / folder
    plugins.mkdir(parents=True)
    vendor = Vendor(plugins / "csi.sock", name=NAME)
    for service in lacks:
        vendor.lacks |= methods_of(service)
    return vendor


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [(), ("Node",)], ids=["which-serves-node-too", "alone"])
def test_beside_the_controller_that_an_operator_named_a_kubelet_calls_the_node_plugin(
    short_dir: Path, mine: Relayed, lacks: tuple[str, ...]
) -> None:
    for service in lacks:
        mine.vendor.lacks |= methods_of(service)
    mine.vendor.restart()
    with another(short_dir, "b", "Controller") as second:
        wait_for(
            lambda: mine.kubelet.call("NodePublishVolume").ok and second.calls("NodePublishVolume"),
            what="a call at the node plugin",
            timeout_s=30.0,
        )
        told = {path: len(mine.vendor.calls(path)) for path in NODE_METHODS}
        assert mine.kubelet.call("NodeGetInfo").ok
        assert mine.kubelet.call("NodeStageVolume").ok
        mounts = ("NodeStageVolume", "NodePublishVolume")
        assert len(second.calls("NodeStageVolume")) == 1
        assert [told[path_of(method)] for method in mounts] == [len(mine.vendor.calls(method)) for method in mounts]
        assert mine.problems() == []


# -------------------- NodeGetInfo --------------------


def test_nodegetinfo_of_a_driver_without_a_topology_names_the_node_and_otherwise_is_the_drivers(
    shared: Relayed,
) -> None:
    answer = csi.NodeGetInfoResponse(node_id="id-7", accessible_topology={"segments": {"zone": "a"}})
    shared.vendor.on("NodeGetInfo", lambda _: answer)
    completed = shared.kubelet.call("NodeGetInfo").answer
    shared.vendor.on("GetPluginCapabilities", with_own_topology)
    own = shared.kubelet.call("NodeGetInfo").answer
    shared.vendor.refuse("GetPluginCapabilities", Code.INTERNAL, "not yet")
    unknown = shared.kubelet.call("NodeGetInfo").refusal
    shared.vendor.as_usual("NodeGetInfo")
    shared.vendor.as_usual("GetPluginCapabilities")
    assert own == answer
    answer.accessible_topology.segments["csi-bridge.io/node"] = "n1"
    assert completed == answer
    assert unknown == unavailable(
        f"driver {NAME} on edge node n1: it answered GetPluginCapabilities with INTERNAL: not yet; look at the "
        "driver's log there"
    )


@pytest.mark.slow
def test_nodegetinfo_of_a_node_plugin_whose_controller_announces_a_topology_is_the_drivers(
    short_dir: Path, mine: Relayed
) -> None:
    mine.vendor.lacks |= methods_of("Node")
    mine.vendor.on("GetPluginCapabilities", with_own_topology)
    mine.vendor.restart()
    answer = csi.NodeGetInfoResponse(node_id="of the node plugin")
    with another(short_dir, "b", "Controller") as second:
        second.on("NodeGetInfo", lambda _: answer)
        wait_for(
            lambda: mine.kubelet.call("NodeGetInfo").ok and second.calls("NodeGetInfo"),
            what="NodeGetInfo at the node plugin",
            timeout_s=30.0,
        )
        wait_for(lambda: mine.kubelet.call("NodeGetInfo").answer == answer, what="the driver's own words")


@pytest.mark.slow
def test_a_topology_that_is_announced_after_the_kubelet_has_asked_is_a_problem_until_it_asks_again(
    short_dir: Path, mine: Relayed
) -> None:
    mine.vendor.stop()
    mine.vendor.lacks |= methods_of("Node")
    mine.vendor.on("GetPluginCapabilities", with_own_topology)
    with another(short_dir, "b", "Controller") as second:
        second.on("NodeGetInfo", lambda _: csi.NodeGetInfoResponse(node_id="of the node plugin"))
        wait_for(lambda: mine.kubelet.call("NodeGetInfo").ok, what="NodeGetInfo at the node plugin")
        assert not [it for it in mine.problems() if "topology" in it]
        mine.vendor.start()
        mine.wait_problem(f"driver {NAME} has a topology of its own, but reported it only after the kubelet had asked")
        assert mine.kubelet.call("NodeGetInfo").ok
        wait_for(lambda: mine.problems() == [], what="end of the problem")


def test_a_node_whose_name_can_be_no_label_is_named_as_a_problem_and_its_drivers_answer_is_passed_on(
    vendor: Vendor, tmp_path: Path
) -> None:
    name = f"{'n' * 40}.{'n' * 40}"
    with relayed(vendor, tmp_path, node=name) as world:
        outcome = world.kubelet.call("NodeGetInfo")
        assert outcome.answer == csi.NodeGetInfoResponse(node_id="node-id")
        assert world.problems() == [
            (
                f"driver {NAME} has no topology of its own, and the node's name {name!r} cannot be the value of the "
                f"label csi-bridge.io/node: a label's value has at most 63 characters, letters and digits with dashes, "
                f"dots and underscores between them"
            )
        ]


# -------------------- its sockets --------------------


def test_an_agent_that_stops_ends_no_call_and_takes_no_new_one(mine: Relayed) -> None:
    gate = mine.vendor.hold("NodeStageVolume")
    pending = mine.kubelet.start("NodeStageVolume")
    mine.vendor.wait_for_call("NodeStageVolume")
    mine.agent.ask_to_stop()
    wait_for(lambda: not mine.socket.exists(), what="the end of the socket")
    assert mine.kubelet.call("NodePublishVolume").refusal == unavailable(
        "the edge agent is shutting down and takes no new calls; a retry reaches the process that replaces it"
    )
    with Sidecar(mine.socket) as kubelet:  # one that dials anew, as a kubelet does
        assert kubelet.call("NodePublishVolume").code is Code.UNAVAILABLE
    gate.set()
    assert pending.outcome().ok
    mine.agent.stop()
    mine.agent.start()
    mine.wait_relayed()


def test_an_agent_that_was_killed_leaves_calls_unavailable_and_its_successor_takes_the_socket(mine: Relayed) -> None:
    mine.vendor.hold("NodeStageVolume")
    pending = mine.kubelet.start("NodeStageVolume")
    mine.vendor.wait_for_call("NodeStageVolume")
    mine.agent.kill()
    assert pending.outcome().code is Code.UNAVAILABLE
    assert mine.socket.exists()
    assert mine.kubelet.call("NodePublishVolume").code is Code.UNAVAILABLE
    mine.agent.start()
    mine.wait_relayed()


@pytest.mark.slow
def test_a_socket_that_somebody_removed_is_made_anew_and_one_that_cannot_be_made_is_a_problem(mine: Relayed) -> None:
    mine.socket.unlink()
    wait_for(lambda: listens_on(mine.socket), what="a new socket")
    with Sidecar(mine.socket) as kubelet:
        assert kubelet.call("Probe").ok
    mine.agent.stop()
    mine.socket.mkdir()
    mine.agent.start()
    assert mine.wait_problem("has no relay socket") == (
        f"driver {NAME} has no relay socket: cannot listen on {mine.socket}: it exists and is not a socket (remove it "
        "first)"
    )
    mine.socket.rmdir()
    mine.wait_relayed()
    assert mine.problems() == []


# -------------------- what the kubelet is told --------------------


@contextlib.contextmanager
def registers(world: Relayed, endpoint: Path, *, name: str = NAME) -> Iterator[Plugin]:
    """A node-driver-registrar that tells the kubelet of an endpoint."""
    registry = world.directory.parent / "n1-kubelet" / "plugins_registry"
    wait_for(registry.is_dir, what="the registry directory")
    with Plugin(registry / f"{name}-reg.sock", name=name, endpoint=endpoint) as plugin:
        yield plugin


def test_a_driver_that_registers_past_the_relay_is_a_problem_until_it_registers_through_it(mine: Relayed) -> None:
    with registers(mine, mine.vendor.socket):
        assert mine.wait_problem("not through the relay") == (
            f"driver {NAME} has no topology of its own and registers with the kubelet as {mine.vendor.socket}, not "
            f"through the relay: no topology key ties its volumes to this node; give its node-driver-registrar "
            f"--kubelet-registration-path={mine.socket}"
        )
    with registers(mine, mine.socket) as plugin:
        wait_for(lambda: plugin.asked, what="GetInfo")
        wait_for(lambda: not mine.problems(), what="the problem's end", instead=mine.agent.process.log_tail)
        assert len(mine.agent.status()["drivers"]) == 1


def test_a_driver_with_a_topology_of_its_own_may_register_past_the_relay(mine: Relayed) -> None:
    mine.vendor.on("GetPluginCapabilities", with_own_topology)
    mine.vendor.restart()
    with registers(mine, mine.vendor.socket) as plugin, registers(mine, mine.vendor.socket, name="other") as other:
        wait_for(lambda: plugin.asked and other.asked, what="GetInfo")
        wait_for(lambda: not mine.problems(), what="no problem", instead=mine.agent.process.log_tail)


def test_a_driver_that_registers_through_the_relay_and_is_not_found_or_with_anothers_socket_is_a_problem(
    mine: Relayed,
) -> None:
    with registers(mine, mine.directory / "lost.test.sock", name="lost.test"):
        problem = mine.wait_problem("lost.test")
    assert problem.startswith("driver lost.test registers with the kubelet through the relay, but it was not found")
    with registers(mine, mine.socket, name="other.test"):
        problem = mine.wait_problem("other.test")
    assert problem == (
        f"driver other.test registers with the kubelet as {mine.socket}, which is another driver's; give its "
        f"node-driver-registrar --kubelet-registration-path={mine.directory / 'other.test.sock'}"
    )


# -------------------- a driver that mounts --------------------


@needs_mounts
def test_a_volume_is_staged_published_grown_and_taken_down_through_the_relay(short_dir: Path, tmp_path: Path) -> None:
    driver = Running(short_dir, "--no-topology", "--drivername", NAME).start()
    relay = short_dir / "relay"
    try:
        with Bridge(short_dir, tmp_path) as bridge, Sidecar(relay / f"{NAME}.sock") as kubelet:
            flags = ("--registration=observe", f"--relay-dir={relay}")
            agent = bridge.start_agent("n1-x", driver.socket, flags=flags, through=NOBODY)
            wait_for(lambda: listens_on(relay / f"{NAME}.sock"), what="the relay", instead=agent.process.log_tail)
            volume = driver.attached("v")
            staged, target = short_dir / "staged", short_dir / "target"
            staged.mkdir()
            named: dict[str, Any] = {"volume_id": volume.volume_id}
            at: dict[str, Any] = {"staging_target_path": str(staged), "volume_capability": mount()}

            assert kubelet.call("NodeStageVolume", csi.NodeStageVolumeRequest(**named, **at)).ok
            there = csi.NodePublishVolumeRequest(**named, **at, target_path=str(target))
            assert kubelet.call("NodePublishVolume", there).ok
            (target / "file").write_text("hello")
            usage = kubelet.call("NodeGetVolumeStats", csi.NodeGetVolumeStatsRequest(**named, volume_path=str(target)))
            assert usage.answer.usage
            larger = csi.CapacityRange(required_bytes=2 * MIB)
            driver.call("ControllerExpandVolume", **named, capacity_range=larger)
            grown = csi.NodeExpandVolumeRequest(**named, volume_path=str(target), capacity_range=larger)
            assert kubelet.call("NodeExpandVolume", grown).answer.capacity_bytes == 2 * MIB
            gone = csi.NodeUnpublishVolumeRequest(**named, target_path=str(target))
            assert kubelet.call("NodeUnpublishVolume", gone).ok
            down = csi.NodeUnstageVolumeRequest(**named, staging_target_path=str(staged))
            assert kubelet.call("NodeUnstageVolume", down).ok
            unknown = csi.NodeStageVolumeRequest(volume_id="no-such", **at)
            assert kubelet.call("NodeStageVolume", unknown).code is Code.NOT_FOUND
    finally:
        driver.stop()
        clear(short_dir)
