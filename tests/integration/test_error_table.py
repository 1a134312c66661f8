"""The error table (docs/architecture.md#what-the-caller-is-told), row by row, with code and message at the sidecar's
end.

Each call is made twice: its message must be the same (docs/csi-contract.md#an-error-message-stays-the-same).
"""

import re
from pathlib import Path

import pytest
from google.protobuf.message import Message

from cloud.records.records import RecordKind
from common.csi.csi_pb2 import (
    ControllerExpandVolumeRequest,
    CreateVolumeResponse,
    DeleteVolumeRequest,
    ListVolumesRequest,
    Volume,
)
from common.objects.topology import NODE_SEGMENT
from common.status import Code
from tests.integration.conftest import Routed, build
from tests.kit.answers import volume
from tests.kit.bridge import Bridge, Member
from tests.kit.forms import slow_in_hub
from tests.kit.local_bridge import LocalBridge
from tests.kit.operator import by_hand, hub_state
from tests.kit.requests import create, create_at, create_of_bytes
from tests.kit.sidecar import Sidecar, link_lost, refused, told_at_the_deadline, unavailable
from tests.kit.spoken_node import Site, report
from tests.kit.state_db import records_in
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

LIMIT = 4 << 20

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"

LINK_LOST = link_lost("edge node n1")


def refused_twice(sidecar: Sidecar, method: str, request: Message | bytes | None = None) -> tuple[Code, str]:
    """The refusal of a call and of its retry, which must be the same."""
    first, second = (sidecar.call(method, request).refusal for _ in range(2))
    assert first == second
    return first


# -------------------- the vendor --------------------


@slow_in_hub
@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK], ids=lambda code: code.name)
def test_a_vendors_status_passes_unchanged(shared: Routed, code: Code, name: str) -> None:
    shared.vendor.refuse("CreateVolume", code, "no: 100 % of größe is used\n(pool 7)")
    outcome = shared.sidecar.call("CreateVolume", create(name))
    shared.vendor.as_usual("CreateVolume")
    assert outcome.refusal == (code, "no: 100 % of größe is used\n(pool 7)")


@slow_in_hub
def test_a_vendor_that_is_not_there_is_unavailable_and_named(shared: Routed, name: str) -> None:
    shared.vendor.stop()
    assert refused_twice(shared.sidecar, "CreateVolume", create(name)) == unavailable(
        f"driver vendor.test on edge node n1: cannot connect to unix://{shared.vendor.socket}: no such socket "
        "(is the driver running?); look at the driver's log there",
    )
    shared.vendor.start()
    assert shared.sidecar.call("CreateVolume", create(name)).ok


@slow_in_hub
def test_a_method_that_csi_does_not_know_is_carried_as_bytes_and_the_vendors_unimplemented_comes_back(
    shared: Routed,
) -> None:
    unimplemented = (Code.UNIMPLEMENTED, "Method not found!")  # grpcio's own words for a method a server lacks
    assert refused_twice(shared.sidecar, "/csi.v1.Controller/Imagined", b"\x0a\x01x") == unimplemented
    shared.vendor.on("/csi.v1.Controller/Invented", lambda call: b"echo " + call.data)
    assert shared.sidecar.call("/csi.v1.Controller/Invented", b"\x0a\x01x").answer == b"echo \x0a\x01x"


@slow_in_hub
def test_a_driver_past_the_operation_limit_is_cancelled_and_its_name_is_free_again(
    bridge: Bridge, vendor: Vendor, name: str
) -> None:
    routed = build(bridge, vendor, agent_flags=("--operation-limit=4s",))  # the last create must not reach it
    gates = [vendor.hold(method) for method in ("CreateVolume", "ListVolumes")]
    past_the_limit = refused(
        Code.DEADLINE_EXCEEDED,
        "driver vendor.test on edge node n1 did not finish within --operation-limit (4 s) and the call to it was "
        "cancelled; look at the driver's log",
    )
    held = [routed.sidecar.start("ListVolumes") for _ in range(2)]
    held.append(routed.sidecar.start("CreateVolume", create(name)))
    assert [call.outcome().refusal for call in held] == [past_the_limit] * 3
    at_vendor = [*vendor.calls("CreateVolume"), *vendor.calls("ListVolumes")]
    assert len(at_vendor) == 3
    wait_for(lambda: all(call.cancelled for call in at_vendor), what="cancel of each call at the vendor")
    for gate in gates:
        gate.set()
    assert routed.sidecar.call("CreateVolume", create(name)).ok
    assert len(vendor.calls("CreateVolume")) == 2


# -------------------- the caller --------------------


@slow_in_hub
def test_a_callers_deadline_is_deadline_exceeded_in_the_bridges_words(shared: Routed, name: str) -> None:
    gate = shared.vendor.hold("CreateVolume")
    told = [told_at_the_deadline(shared.sidecar.socket, "CreateVolume", create(name), timeout_s=2.0) for _ in range(2)]
    gate.set()
    shared.vendor.as_usual("CreateVolume")
    words = "driver vendor.test on edge node n1 did not answer before the caller's deadline (1."
    assert [(each.code, each.message.startswith(words)) for each in told] == [(Code.DEADLINE_EXCEEDED, True)] * 2
    assert shared.sidecar.call("CreateVolume", create(name)).answer == volume(name)


@slow_in_hub
def test_the_same_name_with_other_arguments_is_aborted_while_the_first_runs(shared: Routed, name: str) -> None:
    gate = shared.vendor.hold("CreateVolume")
    before = len(shared.vendor.calls("CreateVolume"))
    first = shared.sidecar.start("CreateVolume", create(name))
    shared.vendor.wait_for_call("CreateVolume", before + 1)
    refusal = refused_twice(shared.sidecar, "CreateVolume", create(name, parameters={"size": "other"}))
    gate.set()
    shared.vendor.as_usual("CreateVolume")
    assert refusal == refused(
        Code.ABORTED,
        f"CreateVolume {name} is already under way with other arguments at driver vendor.test on edge node n1; retry "
        "when it has ended",
    )
    assert first.outcome().ok


@slow_in_hub
@pytest.mark.parametrize(
    "path", ["/csi.v1.Node/NodePublishVolume", "/csi.v1.Node/Imagined", "/grpc.health.v1.Health/Check"]
)
def test_neither_the_node_service_nor_what_is_not_csi_is_served_in_the_cloud(shared: Routed, path: str) -> None:
    assert refused_twice(shared.sidecar, path, b"") == refused(
        Code.UNIMPLEMENTED,
        f"{path} is not served here: this socket serves the controller side of CSI; the Node service is at the edge "
        f"node",
    )


# -------------------- the node and its link --------------------


def test_a_killed_agent_makes_the_node_offline_since_a_time_that_does_not_change(routed: Routed, name: str) -> None:
    routed.agent.kill()
    routed.bridge.hub.wait_logged("edge n1 is gone")
    code, message = refused_twice(routed.sidecar, "CreateVolume", create(name))
    assert code is Code.UNAVAILABLE
    assert re.fullmatch(
        r"edge node n1 is offline since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ; look at the log of its csi-bridge edge agent "
        r"and at the network between it and the hub",
        message,
    )
    state = routed.bridge.hub.uds.parent / "hub"
    wait_for(lambda: not records_in(state, RecordKind.NODE)[("n1",)]["connected"], what="node that left in state.db")
    routed.bridge.hub.kill()
    routed.bridge.wait_linked(routed.proxy, linked=False)
    routed.bridge.hub.start()
    routed.bridge.wait_linked(routed.proxy)
    assert routed.sidecar.call("CreateVolume", create(name)).refusal == (code, message)


@slow_in_hub
def test_an_agent_killed_with_the_call_under_way_is_a_lost_link(mended: Routed, name: str) -> None:
    _, call = mended.held_create(name)
    mended.agent.kill()
    assert call.outcome().refusal == LINK_LOST


@slow_in_hub
@pytest.mark.parametrize("fault", ["cut", "stall", "rebind"])
def test_a_link_lost_with_the_call_under_way_is_unavailable_and_the_retry_joins(
    bridge: Bridge, vendor: Vendor, name: str, fault: str
) -> None:
    hub = bridge.start_hub("--keepalive=500ms")
    link = bridge.start_link()
    agent = bridge.start_agent("n1", vendor.socket, through=link.address, flags=["--keepalive=500ms"])
    sidecar = bridge.start_proxy("vendor.test").sidecar()
    bridge.wait_routed(sidecar)
    gate = vendor.hold("CreateVolume")
    call = sidecar.start("CreateVolume", create(name))
    vendor.wait_for_call("CreateVolume")
    ups = len(hub.logged("edge n1 is connected"))
    link.command(fault)
    assert call.outcome().refusal == LINK_LOST
    link.command("heal")
    hub.wait_logged("edge n1 is connected", times=ups + 1)
    retry = sidecar.start("CreateVolume", create(name))
    wait_for(lambda: agent.status()["operations"] == [f"CreateVolume {name}"], what="operation")
    gate.set()
    assert retry.outcome().answer == volume(name)
    assert len(vendor.calls("CreateVolume")) == 1


# -------------------- the route --------------------


@slow_in_hub
def test_without_any_node_there_is_no_route(bridge: Bridge, name: str) -> None:
    bridge.start_hub()
    proxy = bridge.start_proxy("vendor.test")
    bridge.wait_linked(proxy)
    assert refused_twice(proxy.sidecar(), "CreateVolume", create(name)) == unavailable(
        "no edge node has reported driver vendor.test to the hub yet; check that an agent is connected and that its "
        "--driver names the driver's socket",
    )


@slow_in_hub
def test_two_nodes_with_the_driver_are_named_and_a_pinned_proxy_chooses(
    routed: Routed, short_dir: Path, name: str
) -> None:
    with Vendor(short_dir / "second.sock") as second:
        routed.bridge.start_agent("n2", second.socket)
        expected = unavailable(
            "driver vendor.test runs on several edge nodes (n1; n2) and the call names none; set --placement=local or "
            "shared, or --nodeid, on the proxy driver, or, if a node is gone or no longer runs the driver, run "
            "csi-bridge forget NODE [DRIVER] on the hub's host",
        )
        wait_for(lambda: routed.sidecar.call("CreateVolume", create(name)).refusal == expected, what="second candidate")
        assert refused_twice(routed.sidecar, "CreateVolume", create(name)) == expected

        pinned = routed.bridge.start_proxy("vendor.test", node="n2").sidecar()
        routed.bridge.wait_routed(pinned)
        before = len(routed.vendor.calls("CreateVolume"))
        assert pinned.call("CreateVolume", create(name)).ok
        assert len(second.calls("CreateVolume")) == 1
        assert len(routed.vendor.calls("CreateVolume")) == before


def test_a_hub_that_lost_what_it_knew_guesses_no_node_until_an_operator_says_that_all_are_back(
    routed: Routed, short_dir: Path, name: str
) -> None:
    hub, state = routed.bridge.hub, short_dir / "hub"
    with Vendor(short_dir / "second.sock") as second:
        n2 = routed.bridge.start_agent("n2", second.socket)
        wait_for(lambda: not routed.sidecar.call("GetCapacity").ok, what="second candidate")
        n2.kill()
        hub.stop()
        (state / "state.db").unlink()
        told = set()
        for _ in range(2):  # the loss outlives a restart
            routed.bridge.wait_linked(routed.proxy, linked=False)
            hub.start()
            routed.bridge.wait_linked(routed.proxy)
            wait_for(lambda: [node["drivers"] for node in hub_state(hub.uds)["nodes"]] == [["vendor.test"]], what="n1")
            told |= {refused_twice(routed.sidecar, method, create(name)) for method in ("CreateVolume", "DeleteVolume")}
            hub.stop()
        ((code, message),) = told
        assert code is Code.UNAVAILABLE
        assert re.fullmatch(
            rf"the call for driver vendor.test names no edge node, and the hub has lost records \({TIME} edge node n1 "
            rf"knows other records of this hub \(\w+ of {TIME}\) than these \(\w+\)\); set --nodeid on the proxy "
            r"driver, or, once csi-bridge status shows every node and its drivers again, run csi-bridge trust on the "
            r"hub's host",
            message,
        )
        assert not routed.vendor.calls("CreateVolume")

        hub.start()
        pinned = routed.bridge.start_proxy("vendor.test", node="n1").sidecar()
        routed.bridge.wait_routed(pinned)  # who names a node is served as ever
        assert by_hand("trust", f"--hub=unix://{hub.uds}").returncode == 0
        routed.bridge.wait_routed(routed.sidecar)
        assert not hub_state(hub.uds)["lost"]


def test_what_an_operator_may_not_let_the_hub_forget_is_refused_and_the_rest_is_forgotten(routed: Routed) -> None:
    hub = f"--hub=unix://{routed.bridge.hub.uds}"
    refused_node = by_hand("forget", "n1", hub)
    assert (refused_node.returncode, refused_node.stderr) == (
        1,
        "csi-bridge: edge node n1 is not forgotten: it is connected; stop its agent first\n",
    )
    refused_driver = by_hand("forget", "n1", "vendor.test", hub)
    assert (refused_driver.returncode, refused_driver.stderr) == (
        1,
        (
            "csi-bridge: driver vendor.test of edge node n1 is not forgotten: its agent still reports it; first stop "
            "the vendor's node plugin with its node-driver-registrar on that node, and take its socket from the "
            "agent's --driver if it is named there\n"
        ),
    )
    routed.agent.kill()
    routed.bridge.hub.wait_logged("edge n1 is gone")
    forgotten = by_hand("forget", "n1", hub)
    assert (forgotten.returncode, forgotten.stdout) == (0, "the hub has forgotten edge node n1\n")
    routed.bridge.hub.stop()
    routed.bridge.hub.start()
    assert hub_state(routed.bridge.hub.uds)["nodes"] == []


@slow_in_hub
def test_a_node_that_nobody_has_heard_of_is_named(shared: Routed, name: str) -> None:
    proxy = shared.bridge.start_proxy("vendor.test", node="n9")
    shared.bridge.wait_linked(proxy)
    assert refused_twice(proxy.sidecar(), "CreateVolume", create(name)) == unavailable(
        "edge node n9 has never connected to this hub; compare --nodeid of the proxy driver with --node of the edge "
        "agent, and look at the agent's log",
    )


@slow_in_hub
def test_a_node_without_the_driver_is_named(shared: Routed, name: str) -> None:
    proxy = shared.bridge.start_proxy("absent.test", node="n1")
    shared.bridge.wait_linked(proxy)
    assert refused_twice(proxy.sidecar(), "CreateVolume", create(name)) == unavailable(
        "edge node n1 is connected but has no driver absent.test; check that the driver runs there and that the "
        "agent's --driver names its socket, and look at the agent's log",
    )


def test_a_node_whose_report_is_refused_gets_no_call(short_dir: Path, tmp_path: Path, name: str) -> None:
    with Site(short_dir, tmp_path) as site:
        site.told(site.node("n1"), report("vendor.test", "n1", name="other.test"))
        sidecar = site.bridge.start_proxy("vendor.test", node="n1").sidecar()
        wait_for(lambda: "has no link" not in sidecar.call("CreateVolume", create(name)).refusal[1], what="link")
        assert refused_twice(sidecar, "CreateVolume", create(name)) == unavailable(
            "edge node n1 gets no call of driver vendor.test, because the hub refuses its report: the plugin there "
            "calls itself 'other.test'; look at the agent's log"
        )


def test_a_node_that_lacks_a_capability_of_most_nodes_is_not_asked_for_it(short_dir: Path, tmp_path: Path) -> None:
    with Site(short_dir, tmp_path) as site:
        for node in ("n1", "n2"):
            site.told(site.node(node), report("vendor.test", node))
        old = site.told(site.node("n3"), report("vendor.test", "n3", capabilities=("CREATE_DELETE_VOLUME",)))
        old.answers["CreateVolume"] = CreateVolumeResponse(volume=Volume(volume_id="v-1"))
        proxy = site.bridge.start_proxy("vendor.test", "--placement=local")
        site.bridge.wait_linked(proxy)
        sidecar = proxy.sidecar()
        assert site.call(sidecar, "CreateVolume", create_at("pvc-1", {NODE_SEGMENT: "n3"})).ok
        expand = ControllerExpandVolumeRequest(volume_id="v-1")
        assert refused_twice(sidecar, "ControllerExpandVolume", expand) == unavailable(
            "ControllerExpandVolume needs the capability EXPAND_VOLUME, which driver vendor.test has on most of its "
            "edge nodes and lacks on n3; run the same version of the driver there"
        )
        assert site.call(sidecar, "DeleteVolume", DeleteVolumeRequest(volume_id="v-1")).ok
        assert [asked.method for asked in old.asked] == ["CreateVolume", "DeleteVolume"]


@slow_in_hub
def test_two_drivers_of_one_name_on_a_node_are_named_and_neither_is_called(
    bridge: Bridge, vendor: Vendor, short_dir: Path, name: str
) -> None:
    routed = build(bridge, vendor, short_dir / "second.sock")
    with Vendor(short_dir / "second.sock") as second:
        wait_for(
            lambda: not any(driver["trouble"] for driver in routed.agent.status()["drivers"]), what="second driver"
        )
        assert refused_twice(routed.sidecar, "CreateVolume", create(name)) == unavailable(
            f"edge node n1 has 2 drivers with the name vendor.test: {vendor.socket}, {second.socket}; if one of them "
            f"is the controller, name only its socket with the agent's --driver; otherwise stop one of them",
        )
    assert (
        "; otherwise stop one of them" in routed.sidecar.call("CreateVolume", create(name)).refusal[1]
    )  # with one of them away
    assert not vendor.calls("CreateVolume")
    assert not second.calls("CreateVolume")


@slow_in_hub
def test_a_method_with_an_absurd_name_is_refused_and_the_link_lives(shared: Routed, name: str) -> None:
    code, message = shared.sidecar.call(f"/csi.v1.Controller/{'x' * 5_000}", b"").refusal
    assert code is Code.UNAVAILABLE
    assert message.startswith(
        "the name of a method, driver or node of 5019 characters is larger than the limit of 1024"
    )
    assert shared.sidecar.call("CreateVolume", create(name)).ok


@slow_in_hub
def test_a_driver_that_took_anothers_socket_gets_none_of_its_calls(routed: Routed, short_dir: Path, name: str) -> None:
    routed.vendor.stop()
    with Vendor(routed.vendor.socket, name="other.test") as other:
        code, message = routed.sidecar.call("CreateVolume", create(name)).refusal
        assert code is Code.UNAVAILABLE
        assert "vendor.test" in message
        assert not other.calls("CreateVolume")
    routed.vendor.start()


# -------------------- the hub --------------------


def test_a_hub_killed_with_the_call_under_way_is_a_lost_link_then_a_missing_hub_and_at_last_the_retry_joins(
    routed: Routed, name: str
) -> None:
    gate, call = routed.held_create(name)
    routed.bridge.hub.kill()
    assert call.outcome().refusal == link_lost("the hub")
    routed.bridge.wait_linked(routed.proxy, linked=False)
    code, message = refused_twice(routed.sidecar, "CreateVolume", create(name))
    assert code is Code.UNAVAILABLE
    where = re.escape(f"unix://{routed.bridge.hub.uds}")
    assert re.fullmatch(
        rf"the proxy driver has no link to the hub since {TIME}: .*{where}: .*; look at the "
        r"hub's log, and at the proxy driver's",
        message,
    )
    routed.bridge.hub.start()
    gate.set()
    routed.bridge.wait_routed(routed.sidecar)
    assert routed.sidecar.call("CreateVolume", create(name)).answer == volume(name)
    assert len(routed.vendor.calls("CreateVolume")) == 1


def test_a_hub_that_drains_takes_no_new_call_and_finishes_the_old(routed: Routed, name: str) -> None:
    gate, call = routed.held_create(name)
    routed.bridge.hub.ask_to_stop()
    routed.proxy.wait_logged("the hub is draining")
    assert refused_twice(routed.sidecar, "CreateVolume", create(f"{name}-2")) == unavailable(
        "the hub is shutting down and takes no new calls; a retry reaches the process that replaces it",
    )
    gate.set()
    assert call.outcome().answer == volume(name)
    assert routed.bridge.hub.process.wait_exit() == 0


@slow_in_hub
@pytest.mark.parametrize(
    ("which", "whose"), [("agent", "agent of edge node n1"), ("proxy", "proxy driver")], ids=["agent", "proxy"]
)
def test_an_agent_or_proxy_that_drains_takes_no_new_call_and_finishes_the_old(
    mended: Routed, name: str, which: str, whose: str
) -> None:
    gate, call = mended.held_create(name)
    stopped: Member = {"agent": mended.agent, "proxy": mended.proxy}[which]
    stopped.ask_to_stop()
    if which == "agent":
        mended.bridge.hub.wait_logged("edge n1 is draining")
    else:
        stopped.wait_logged("stopping: calls under way")
    assert refused_twice(mended.sidecar, "CreateVolume", create(f"{name}-2")) == unavailable(
        f"the {whose} is shutting down and takes no new calls; a retry reaches the process that replaces it",
    )
    gate.set()
    assert call.outcome().answer == volume(name)
    assert stopped.process.wait_exit() == 0


# -------------------- too much --------------------


@slow_in_hub
@pytest.mark.parametrize("hop", ["hub", "agent"])
def test_too_many_calls_at_once_are_unavailable_with_the_limit_and_its_flag(
    bridge: Bridge, vendor: Vendor, name: str, hop: str
) -> None:
    few = "--max-calls=4"
    bridge.start_hub(*([few] if hop == "hub" else []))
    bridge.start_agent("n1", vendor.socket, flags=[few] if hop == "agent" else [])
    sidecar = bridge.start_proxy("vendor.test").sidecar()
    bridge.wait_routed(sidecar)
    gate = vendor.hold("CreateVolume")
    calls = [sidecar.start("CreateVolume", create(f"{name}-{number}")) for number in range(6)]
    whose = {"hub": "hub", "agent": "agent of edge node n1"}[hop]
    too_many = unavailable(
        f"the {whose} has 4 calls under way, which is its limit (--max-calls); retry later or raise it"
    )
    wait_for(lambda: any(call.done for call in calls), what="refusal")
    assert refused_twice(sidecar, "ListVolumes") == too_many
    gate.set()
    outcomes = [call.outcome() for call in calls]
    assert {outcome.refusal for outcome in outcomes} == {(Code.OK, ""), too_many}
    assert len(vendor.calls("CreateVolume")) == sum(outcome.ok for outcome in outcomes)


@slow_in_hub
def test_a_request_above_the_limit_is_refused_with_the_limit_and_its_flag(shared: Routed, name: str) -> None:
    before = len(shared.vendor.calls("CreateVolume"))
    assert refused_twice(shared.sidecar, "CreateVolume", create_of_bytes(name, LIMIT + 1)) == unavailable(
        "a request of 4194305 bytes is larger than the limit of 4194304 bytes; raise --max-message on hub, driver and "
        "agent",
    )
    assert len(shared.vendor.calls("CreateVolume")) == before
    assert shared.sidecar.call("CreateVolume", create_of_bytes(name, LIMIT)).answer == volume(name)


@slow_in_hub
def test_an_answer_above_the_limit_is_refused_with_the_limit_and_its_flag(shared: Routed, name: str) -> None:
    shared.vendor.on("CreateVolume", lambda _: create_of_bytes(name, LIMIT + 1).SerializeToString())
    refusal = refused_twice(shared.sidecar, "CreateVolume", create(name))
    shared.vendor.as_usual("CreateVolume")
    assert refusal == unavailable(
        "driver vendor.test on edge node n1: an answer of 4194305 bytes is larger than the limit of 4194304 bytes; "
        "raise --max-message on hub, driver and agent",
    )


# -------------------- our own mistakes --------------------


@slow_in_hub
async def test_an_exception_that_nobody_foresaw_is_unavailable_and_its_traceback_is_in_the_log(
    short_dir: Path, vendor: Vendor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, in_hub: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the password is swordfish")

    async with LocalBridge(short_dir, vendor.socket, in_hub=in_hub) as bridge:
        for number, (where, method, hop) in enumerate(
            [
                ("cloud.csi_proxy_driver.CsiProxyDriver._link_for", "CreateVolume", "proxy driver"),
                ("cloud.proxy.identity_cache.IdentityCache.answer", "GetPluginInfo", "proxy driver"),
                ("cloud.nodes.edge_nodes.Nodes.reach", "CreateVolume", "hub"),
                ("cloud.placement.placement.route", "CreateVolume", "hub"),
                ("edge.hub_call.HubCall.send", "ListVolumes", "edge agent"),
                ("edge.hub_call.parsed", "CreateVolume", "edge agent"),
                ("edge.hub_call.identify", "CreateVolume", "edge agent"),
            ]
        ):
            request = create(f"v-{number}").SerializeToString()
            caplog.clear()
            with monkeypatch.context() as patch:
                patch.setattr(where, fail)
                told = [await bridge.call(method, request) for _ in range(2)]
            assert (await bridge.call(method, request)).ok
            expected = (Code.UNAVAILABLE, f"an internal error in the {hop}; its log has the details")
            assert [(status.code, status.message) for status in told] == [expected] * 2, where
            assert "RuntimeError: the password is swordfish" in caplog.text


def test_a_list_of_all_nodes_is_whole_or_refused_and_a_token_that_no_list_has_is_aborted(
    short_dir: Path, tmp_path: Path
) -> None:
    with Site(short_dir, tmp_path) as site:
        for node in ("n1", "n2"):
            site.told(site.node(node), report("vendor.test", node, capabilities=("CREATE_DELETE_VOLUME",)))
        proxy = site.bridge.start_proxy("vendor.test", "--placement=local")
        site.bridge.wait_linked(proxy)
        sidecar = proxy.sidecar()
        assert refused_twice(sidecar, "ListVolumes") == unavailable(
            "ListVolumes of driver vendor.test would lack the entries of edge node n1: its driver lacks the capability "
            "LIST_VOLUMES; csi-bridge call --node NODE asks one node, and csi-bridge forget NODE is "
            "for a node that is gone for good"
        )
        assert refused_twice(sidecar, "ListVolumes", ListVolumesRequest(starting_token="1")) == (
            Code.ABORTED,
            "this starting_token of ListVolumes is for no list of the hub; begin again without one",
        )
