"""A real claim: the stock provisioner calls the proxy driver, and the volume is at the edge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from common.objects.offline_policy import FENCE, PARAMETER
from tests.kit.forms import slow_in_hub
from tests.kit.peers import manifests
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.peers.claims import Claims
    from tests.kit.peers.control_plane import ControlPlane
    from tests.kit.peers.sidecars import Sidecars
    from tests.kit.peers.testdriver import RunningDriver
    from tests.kit.peers.tunnel import Tunnel

pytestmark = slow_in_hub

_FLAGS = ("--retry-interval-start=500ms", "--retry-interval-max=1s", "--timeout=30s")
"""The provisioner's patience with a failure grows to 5 minutes by default; its patience with a call is 10 s, in which a
busy machine may not notice that a link is silent."""

_SLOW = "CreateVolume=delay:10s"
"""Longer than a busy machine stalls between the call's beginning and the blow to its link."""

_NODE = "edge-1"

_GONE_LIMIT_S = 60.0
"""The agent dials again at least every 30 s, and the retry waits for the slow work."""


@pytest.fixture
def vendor(testdriver: Callable[..., RunningDriver], claims: Claims) -> RunningDriver:
    return testdriver(name=claims.storage_class, node_id=_NODE, flags=("--no-topology",))


@pytest.fixture
def tunnel(vendor: RunningDriver, tunnel_to: Callable[[Path, str], Tunnel], sidecars: Sidecars) -> Tunnel:
    """The bridge in front of it, with a provisioner on the proxy driver's socket."""
    tunnel = tunnel_to(vendor.socket, vendor.name)
    sidecars.start("csi-provisioner", tunnel.socket, *_FLAGS)
    return tunnel


@pytest.mark.usefixtures("tunnel")
def test_a_claim_is_bound_to_a_directory_at_the_edge_which_goes_with_the_claim(
    vendor: RunningDriver, claims: Claims
) -> None:
    claims.ask("data")

    volume = claims.wait_bound("data")

    assert volume["spec"]["csi"]["driver"] == vendor.name
    assert [directory.name for directory in vendor.directories()] == [volume["spec"]["csi"]["volumeHandle"]]
    claims.let_go("data")
    assert vendor.directories() == []


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


@pytest.fixture
def placed(
    testdriver: Callable[..., RunningDriver],
    tunnel_to: Callable[[Path, str], Tunnel],
    control_plane: ControlPlane,
    claims: Claims,
    sidecars: Sidecars,
) -> RunningDriver:
    """A driver with topology behind a bridge with a provisioner, on a node that the cluster knows."""
    api, driver = control_plane.api, testdriver(name=claims.storage_class, node_id=_NODE)
    key, node = f"topology.{driver.name}/node", f"{_NODE}-{claims.namespace}"
    tunnel = tunnel_to(driver.socket, driver.name)
    # What the registration at the edge would write.
    api.create(manifests.node(node, labels={key: _NODE}))
    api.create(manifests.csi_node(node, drivers={driver.name: _NODE}, topology_keys=[key]))
    sidecars.start("csi-provisioner", tunnel.socket, *_FLAGS)
    return driver


def test_with_topology_a_claim_is_bound_to_a_volume_of_the_node_and_says_so(
    placed: RunningDriver, claims: Claims
) -> None:
    claims.ask("data")

    volume = claims.wait_bound("data")

    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": f"topology.{placed.name}/node", "operator": "In", "values": [_NODE]}]
    assert placed.volumes == [volume["spec"]["csi"]["volumeHandle"]]
    claims.let_go("data")


def test_with_topology_a_claim_that_waits_for_its_pod_goes_to_the_node_that_the_scheduler_chose(
    placed: RunningDriver, claims: Claims, control_plane: ControlPlane
) -> None:
    api, name = control_plane.api, f"{placed.name}-wait"
    api.create(manifests.storage_class(placed.name, name=name, wait_for_consumer=True))
    waiting = claims.of_class(name)

    waiting.ask("data", annotations={"volume.kubernetes.io/selected-node": f"{_NODE}-{claims.namespace}"})

    volume = waiting.wait_bound("data")
    assert placed.volumes == [volume["spec"]["csi"]["volumeHandle"]]
    waiting.let_go("data")
    api.delete("StorageClass", name)
