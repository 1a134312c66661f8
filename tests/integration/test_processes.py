"""Processes that die, come back, meet their doubles, and stop in order."""

import json
import shutil
import stat
import time
from pathlib import Path

import pytest

from common.status import Code
from tests.integration.conftest import Routed
from tests.kit.answers import volume
from tests.kit.bridge import Bridge, Member
from tests.kit.forms import slow_in_hub
from tests.kit.operator import hub_state, node_state
from tests.kit.requests import create
from tests.kit.sidecar import link_lost
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


def member(routed: Routed, which: str) -> Member:
    return {"hub": routed.bridge.hub, "agent": routed.agent, "proxy": routed.proxy}[which]


# -------------------- kill -9 --------------------


def test_after_kill_9_of_any_process_and_its_restart_calls_work_again(routed: Routed, name: str) -> None:
    for which in ("agent", "hub", "proxy"):
        killed = member(routed, which)
        killed.kill()
        killed.start()
        routed.bridge.wait_routed(routed.sidecar)
        assert routed.sidecar.call("CreateVolume", create(f"{name}-{which}")).ok


def test_a_killed_proxys_socket_is_taken_over_and_a_serving_ones_is_not(routed: Routed) -> None:
    with pytest.raises(AssertionError, match="another process is serving there"):
        routed.bridge.start_double(routed.proxy)
    assert routed.sidecar.call("GetCapacity").ok
    routed.proxy.kill()
    assert routed.proxy.socket.exists()
    routed.bridge.start_double(routed.proxy)
    routed.bridge.wait_routed(routed.sidecar)


# -------------------- doubles --------------------


def test_an_agent_that_comes_back_replaces_its_own_half_dead_link(bridge: Bridge, vendor: Vendor, name: str) -> None:
    hub = bridge.start_hub("--keepalive=5m")  # the hub itself does not find out during the test
    link = bridge.start_link()
    agent = bridge.start_agent("n1", vendor.socket, through=link.address)
    sidecar = bridge.start_proxy("vendor.test").sidecar()
    bridge.wait_routed(sidecar)
    vendor.hold("CreateVolume")
    call = sidecar.start("CreateVolume", create(name))
    vendor.wait_for_call("CreateVolume")
    before = node_state(hub.uds, "n1")
    link.command("rebind")
    agent.kill()
    vendor.as_usual("CreateVolume")
    agent.start()
    assert call.outcome().refusal == link_lost("edge node n1")
    bridge.wait_routed(sidecar)
    after = node_state(hub.uds, "n1")
    assert (after["instance"], after["boot"]) == (before["instance"], before["boot"] + 1)
    assert [line["msg"] for line in hub.logged("edge n1 is gone")] == ["edge n1 is gone: n1 has connected again"]
    assert sidecar.call("CreateVolume", create(name)).answer == volume(name)


def test_another_machine_of_the_same_name_is_refused_and_visible_while_the_first_lives(
    routed: Routed, vendor: Vendor, name: str
) -> None:
    hub = routed.bridge.hub
    mine = node_state(hub.uds, "n1")
    rival = routed.bridge.start_rival("n1", vendor.socket)
    rival.wait_logged("no link to the hub: another machine is connected as n1")
    why = rival.status()["hubs"][0]["why"]
    assert mine["instance"] not in why  # it is half of what a thief needs
    assert "give each --node a name of its own" in why
    assert hub.logged("two machines use the node name n1")
    state = node_state(hub.uds, "n1")
    assert state["conflict"].startswith(f"two machines use the node name n1: instance {mine['instance']} at 127.0.0.1:")
    assert (state["connected"], state["instance"], state["boot"]) == (True, mine["instance"], mine["boot"])
    assert routed.sidecar.call("CreateVolume", create(name)).ok

    routed.agent.kill()
    rival.wait_connected()
    routed.bridge.wait_routed(routed.sidecar)
    state = node_state(hub.uds, "n1")
    assert state["instance"] != mine["instance"]
    assert state["conflict"] == ""


def test_a_copy_of_an_earlier_start_is_refused_while_the_later_one_lives(
    routed: Routed, vendor: Vendor, short_dir: Path
) -> None:
    copy = short_dir / "rival" / "n1"
    shutil.copytree(short_dir / "n1", copy, ignore=shutil.ignore_patterns("*.new"))  # which comes and goes
    (copy / "home.json").unlink()  # on a machine of its own the root directory would have the same path
    for _ in range(2):
        routed.agent.kill()
        routed.agent.start()
    routed.bridge.wait_routed(routed.sidecar)
    rival = routed.bridge.start_rival("n1", vendor.socket)
    rival.wait_logged("no link to the hub: a later start of this machine is connected as n1")
    assert routed.sidecar.call("GetCapacity").ok


def test_of_two_machines_with_one_copied_state_directory_one_serves_and_the_other_is_refused(
    routed: Routed, vendor: Vendor, short_dir: Path
) -> None:
    hub = routed.bridge.hub
    mine = node_state(hub.uds, "n1")
    copy = short_dir / "rival" / "n1"
    copy.mkdir(parents=True)
    (copy / "instance.json").write_text(json.dumps({"version": 1, "id": mine["instance"], "boot": mine["boot"] - 1}))
    rival = routed.bridge.start_rival("n1", vendor.socket)
    hub.wait_logged("two machines use the node name n1")
    state = node_state(hub.uds, "n1")
    assert state["conflict"].count(f"instance {mine['instance']} at 127.0.0.1:") == 2
    wait_for(lambda: sum(agent.status()["connected"] for agent in (routed.agent, rival)) == 1, what="one that serves")
    (refused,) = (agent for agent in (routed.agent, rival) if not agent.status()["connected"])
    refused.wait_logged("another machine is connected as n1 with this one's identity")
    assert routed.sidecar.call("GetCapacity").ok
    assert node_state(hub.uds, "n1")["connected"]


def test_several_proxies_of_one_driver_serve_side_by_side(routed: Routed, name: str) -> None:
    second = routed.bridge.start_proxy("vendor.test").sidecar()
    routed.bridge.wait_routed(second)
    assert [proxy["driver"] for proxy in hub_state(routed.bridge.hub.uds)["drivers"]] == ["vendor.test", "vendor.test"]
    gate = routed.vendor.hold("CreateVolume")
    calls = [sidecar.start("CreateVolume", create(name)) for sidecar in (routed.sidecar, second)]
    routed.vendor.wait_for_call("CreateVolume")
    gate.set()
    assert [call.outcome().answer for call in calls] == [volume(name)] * 2


# -------------------- SIGTERM --------------------


@pytest.mark.parametrize("which", ["hub", "agent", "proxy"])
def test_a_second_sigterm_stops_at_once_and_calls_under_way_are_unavailable(
    routed: Routed, which: str, name: str
) -> None:
    gate, call = routed.held_create(name)
    stopped = member(routed, which)
    stopped.ask_to_stop()
    stopped.wait_logged("stopping: calls under way")
    assert not call.done
    stopped.ask_to_stop()
    assert stopped.process.wait_exit() == 1, stopped.process.log_tail()
    assert stopped.lines()[-1]["msg"].endswith("was stopped before it had drained")
    assert not {"hub": routed.bridge.hub.uds, "agent": routed.agent.socket, "proxy": routed.proxy.socket}[
        which
    ].exists()
    assert call.outcome().code is Code.UNAVAILABLE
    gate.set()


@slow_in_hub
def test_a_proxy_driver_makes_its_deleted_socket_again_and_its_connections_stay(routed: Routed, name: str) -> None:
    gate, call = routed.held_create(name)
    routed.proxy.socket.unlink()
    routed.proxy.socket.mkdir()
    routed.proxy.wait_logged("cannot be made again")
    routed.proxy.socket.rmdir()
    routed.proxy.wait_logged("is there again")
    assert routed.proxy.sidecar().call("GetCapacity").ok
    assert stat.S_IMODE(routed.proxy.socket.stat().st_mode) == 0o660
    gate.set()
    assert call.outcome().answer == volume(name)
    routed.proxy.stop()
    assert not routed.proxy.socket.exists()


@pytest.mark.parametrize("which", ["hub", "agent", "proxy"])
def test_a_drain_that_takes_too_long_ends_the_process_all_the_same(
    bridge: Bridge, vendor: Vendor, which: str, name: str
) -> None:
    impatient = "--drain-timeout=200ms"
    bridge.start_hub(impatient)
    agent = bridge.start_agent("n1", vendor.socket, flags=[impatient])
    proxy = bridge.start_proxy("vendor.test", impatient)
    routed = Routed(bridge, vendor, agent, proxy, proxy.sidecar())
    bridge.wait_routed(routed.sidecar)
    _, call = routed.held_create(name)
    stopped = member(routed, which)
    stopped.ask_to_stop()
    assert stopped.process.wait_exit() == 0, stopped.process.log_tail()
    assert call.outcome().code is Code.UNAVAILABLE


def test_an_agent_that_drains_finishes_an_operation_whose_caller_has_gone_and_dials_no_more(
    routed: Routed, name: str
) -> None:
    gate, call = routed.held_create(name)
    at_vendor = routed.vendor.calls("CreateVolume")[0]
    call.cancel()
    routed.bridge.hub.wait_logged("the caller did not wait")
    routed.agent.ask_to_stop()
    routed.bridge.hub.wait_logged("edge n1 is gone")
    time.sleep(1.5)  # a dial would come within a second
    assert len(routed.bridge.hub.logged("edge n1 is connected")) == 1
    gate.set()
    assert routed.agent.process.wait_exit() == 0
    assert not at_vendor.cancelled


def test_sigterm_of_everything_at_once_finishes_the_call_under_way_and_leaves_no_socket(
    routed: Routed, short_dir: Path, name: str
) -> None:
    gate, call = routed.held_create(name)
    members = [member(routed, which) for which in ("hub", "agent", "proxy")]
    for stopped in members:
        stopped.ask_to_stop()
    for stopped in members:
        stopped.wait_logged("stopping: calls under way")
    gate.set()
    assert call.outcome().answer == volume(name)
    assert [stopped.process.wait_exit() for stopped in members] == [0, 0, 0]
    assert all(stopped.lines()[-1]["msg"].endswith("has stopped") for stopped in members)
    assert [path for path in short_dir.rglob("*.sock") if path != routed.vendor.socket] == []
