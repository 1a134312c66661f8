"""A real claim: the stock provisioner calls the proxy driver, and the volume is at the edge."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from common.objects.offline_policy import FENCE, PARAMETER
from tests.kit.forms import slow_in_hub
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.peers.tunnel import Tunnel
from tests.kit.waiting import wait_for

pytestmark = slow_in_hub

_FLAGS = ("--retry-interval-start=500ms", "--retry-interval-max=1s", "--timeout=30s")
"""The provisioner's patience with a failure grows to 5 minutes by default; its patience with a call is 10 s, in which a
busy machine may not notice that a link is silent."""

_SLOW = "CreateVolume=delay:10s"
"""Longer than a busy machine stalls between the call's beginning and the blow to its link."""

_NODE = "edge-1"

_GONE_LIMIT_S = 60.0  # the agent dials again at least every 30 s, and the retry waits for the slow work


@pytest.fixture
def vendor(testdriver: Callable[..., RunningDriver], claims: Claims) -> RunningDriver:
    return testdriver(name=claims.storage_class, node_id=_NODE, flags=("--no-topology",))


@pytest.fixture
def tunnel(vendor: RunningDriver, tunnel_to: Callable[[Path, str], Tunnel], sidecars: Sidecars) -> Tunnel:
    """The bridge in front of it, with a provisioner on the proxy driver's socket."""
    tunnel = tunnel_to(vendor.socket, vendor.name)
    sidecars.start("csi-provisioner", tunnel.socket, *_FLAGS)
    return tunnel


@pytest.mark.slow
@pytest.mark.usefixtures("tunnel")
def test_the_bridges_own_parameter_of_a_class_does_not_reach_the_driver_and_all_others_do(
    vendor: RunningDriver, claims: Claims, control_plane: ControlPlane
) -> None:
    name = f"{claims.storage_class}-fence"
    parameters = {"type": "ssd", PARAMETER: FENCE}
    control_plane.api.create(manifests.storage_class(vendor.name, name=name, parameters=parameters))
    fenced = claims.of_class(name)
    fenced.ask("data")

    fenced.wait_bound("data")

    (told,) = json.loads((vendor.state / "state.json").read_text())["volumes"].values()
    assert told["parameters"] == {"type": "ssd"}
    fenced.let_go("data")


@pytest.mark.slow
def test_while_the_link_is_cut_a_claim_waits_with_an_event_that_names_the_node_and_the_cause(
    vendor: RunningDriver, tunnel: Tunnel, claims: Claims
) -> None:
    tunnel.cut()
    claims.ask("data")

    failures = claims.wait_failed("data", times=3)

    # One event, counted: a message that changes from retry to retry would make a new one each time.
    assert len(failures) == 1
    assert f"edge node {_NODE} is offline since" in failures[0]["message"]
    assert claims.phase("data") == "Pending"
    assert vendor.calls("CreateVolume") == []

    tunnel.heal()
    volume = claims.wait_bound("data")
    assert vendor.volumes == [volume["spec"]["csi"]["volumeHandle"]]
    claims.let_go("data")
    assert vendor.volumes == []


@pytest.mark.parametrize("way", ["cut", pytest.param("silence", marks=pytest.mark.slow)])
def test_a_link_lost_under_a_call_leaves_one_volume(
    way: str, vendor: RunningDriver, tunnel: Tunnel, claims: Claims
) -> None:
    vendor.set_faults(_SLOW)
    claims.ask("data")
    wait_for(lambda: vendor.calls("CreateVolume"), what="CreateVolume at the edge", instead=tunnel.log_tails)

    (tunnel.cut if way == "cut" else tunnel.silence)()
    failures = claims.wait_failed("data")
    assert f"edge node {_NODE}" in failures[0]["message"]
    tunnel.heal()

    volume = claims.wait_bound("data")
    assert vendor.volumes == [volume["spec"]["csi"]["volumeHandle"]]
    # The retry joined the call that went on, or found its result kept.
    assert [call.code for call in vendor.calls("CreateVolume")] == ["OK"]
    claims.let_go("data")


@pytest.mark.slow
def test_a_claim_that_is_deleted_while_its_calls_end_is_unknown_leaves_no_volume(
    vendor: RunningDriver, tunnel: Tunnel, claims: Claims
) -> None:
    vendor.set_faults(_SLOW)
    claims.ask("data")
    wait_for(lambda: vendor.calls("CreateVolume"), what="CreateVolume at the edge", instead=tunnel.log_tails)
    tunnel.cut()
    claims.wait_failed("data")
    claims.withdraw("data")
    tunnel.heal()

    # With a final code the provisioner would have forgotten the claim with its volume (contract NF4).
    wait_for(
        lambda: vendor.calls("DeleteVolume"),
        what="DeleteVolume at the edge",
        timeout_s=_GONE_LIMIT_S,
        instead=tunnel.log_tails,
    )
    wait_for(lambda: vendor.volumes == [], what="end of the volume", instead=lambda: vendor.volumes)
    assert [call.code for call in vendor.calls("CreateVolume")] == ["OK"]
