"""A driver that the hub serves itself (`--serve`): sidecars see no difference, and the hub treats it as any other."""

import contextlib
import json
import stat
from pathlib import Path

import pytest

from common.status import Code
from tests.integration.conftest import DRIVER, Routed
from tests.kit.answers import volume
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.operator import hub_state
from tests.kit.requests import create
from tests.kit.sidecar import Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


@pytest.fixture(scope="module")
def in_hub() -> bool:
    return True


def test_a_call_goes_to_the_vendor_and_back_and_the_hub_shows_the_proxy_driver_by_its_name(
    routed: Routed, name: str
) -> None:
    assert routed.sidecar.call("CreateVolume", create(name)).answer == volume(name)
    assert routed.sidecar.call("NodeGetInfo").code is Code.UNIMPLEMENTED
    routed.vendor.refuse("DeleteVolume", Code.RESOURCE_EXHAUSTED, "the vendor's own words")
    assert routed.sidecar.call("DeleteVolume").refusal == (Code.RESOURCE_EXHAUSTED, "the vendor's own words")
    assert stat.S_IMODE(routed.proxy.socket.stat().st_mode) == 0o660
    (shown,) = hub_state(routed.bridge.hub.uds)["drivers"]
    assert (shown["driver"], shown["placement"]) == (DRIVER, "auto")
    assert shown["address"].startswith("this process, pid ")


def test_after_kill_9_sidecars_have_the_identity_from_the_records_and_calls_work_again(
    routed: Routed, name: str
) -> None:
    info = routed.sidecar.call("GetPluginInfo").answer
    _, call = routed.held_create(name)
    routed.bridge.hub.kill()
    assert call.outcome().code is Code.UNAVAILABLE
    routed.agent.kill()
    routed.bridge.hub.start()
    wait_for(lambda: routed.sidecar.call("Probe").answer.ready.value, what="identity")
    assert routed.sidecar.call("GetPluginInfo").answer == info
    assert routed.sidecar.call("GetCapacity").code is Code.UNAVAILABLE
    routed.vendor.as_usual("CreateVolume")
    routed.agent.start()
    routed.bridge.wait_routed(routed.sidecar)
    assert routed.sidecar.call("CreateVolume", create(name)).answer == volume(name)


def test_a_drain_lets_the_call_under_way_finish_and_removes_the_socket(routed: Routed, name: str) -> None:
    gate, call = routed.held_create(name)
    hub = routed.bridge.hub
    hub.ask_to_stop()
    hub.wait_logged("stopping: calls under way")
    assert routed.sidecar.call("GetCapacity").code is Code.UNAVAILABLE
    assert not call.done
    gate.set()
    assert call.outcome().answer == volume(name)
    assert hub.process.wait_exit() == 0
    assert not routed.proxy.socket.exists()
    assert hub.logged("no link to the hub") == []


def test_another_hub_that_serves_the_same_socket_does_not_start_and_the_first_goes_on(
    routed: Routed, short_dir: Path, tmp_path: Path, name: str
) -> None:
    (short_dir / "second").mkdir()
    second = Bridge(short_dir / "second", tmp_path)
    with contextlib.suppress(AssertionError):  # it may look ready before it comes to this socket
        second.start_hub(f"--serve={DRIVER}=unix://{routed.proxy.socket}")
    assert second.hub.process.wait_exit() == 2
    said = f"placement=auto: cannot listen on {routed.proxy.socket}: another process is serving there"
    assert said in second.hub.process.output()
    assert routed.sidecar.call("CreateVolume", create(name)).answer == volume(name)


def test_beside_a_standby_it_calls_the_hub_that_leads_by_the_hubs_certificate_and_drains_as_a_proxy_driver(
    short_dir: Path, tmp_path: Path, vendor: Vendor, name: str
) -> None:
    """The standby waits for the Lease of a cluster that does not answer. Both hubs have one list of addresses."""
    authority = Authority(tmp_path)
    tls = authority.hub(serves=[DRIVER, "served.too"]).flags
    config = tmp_path / "kubeconfig"
    cluster = {"name": "gone", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "gone", "context": {"cluster": "gone", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config.write_text(
        json.dumps({"current-context": "gone", "clusters": [cluster], "contexts": [context], "users": [user]})
    )
    (beside := short_dir / "b").mkdir()
    (logs := tmp_path / "b").mkdir()
    drivers = {driver: beside / f"{driver}.sock" for driver in (DRIVER, "other.test")}
    serve = [f"--serve={driver}=unix://{path}" for driver, path in drivers.items()]
    standby = Hub(beside, logs, [*tls, *serve, f"--kubeconfig={config}"], sockets=list(drivers.values()))
    with (
        Bridge(short_dir, tmp_path) as bridge,
        Sidecar(drivers[DRIVER]) as sidecar,
        Sidecar(drivers["other.test"]) as other,
    ):
        leader = bridge.start_hub(*tls)
        bridge.start_agent(
            "n1", vendor.socket, flags=[f"--hub=wss://{leader.address}", *authority.edge("n1").flags], wait=False
        )
        standby.process.command += [f"--hub-endpoint=wss://{hub.address}" for hub in (leader, standby)]
        bridge.members.append(standby)
        standby.start()
        wait_for(lambda: sidecar.call("Probe").answer.ready.value, what="identity")
        bridge.wait_routed(sidecar)
        assert sidecar.call("CreateVolume", create(name)).answer == volume(name)
        (shown,) = hub_state(leader.uds)["drivers"]
        assert (shown["driver"], shown["address"].rpartition(":")[0]) == (DRIVER, "127.0.0.1")

        refused = other.call("CreateVolume", create(name))
        assert refused.code is Code.UNAVAILABLE
        assert f"its certificate is for csi-bridge:driver:{DRIVER}, csi-bridge:driver:served.too" in refused.message
        wait_for(lambda: hub_state(standby.uds)["links"] == len(drivers), what="one link of each to its own hub")
        assert standby.logged("lead to one hub") == []

        gate, call = vendor.hold("CreateVolume"), sidecar.start("CreateVolume", create("held"))
        vendor.wait_for_call("CreateVolume", 2)
        standby.ask_to_stop()
        wait_for(lambda: "shutting down" in sidecar.call("GetCapacity").message, what="drain")
        gate.set()
        assert call.outcome().answer == volume("held")
        assert standby.process.wait_exit() == 0
