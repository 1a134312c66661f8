"""kill -9 of the proxy driver with calls under way: nothing is lost. `tests.chaos` kills all the others.

A hub that serves the driver itself is the proxy driver, too.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.forms import in_each_form
from tests.kit.peers.claims import Claims
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.peers.tunnel import Tunnel
from tests.kit.processes import Process
from tests.kit.waiting import wait_for

_SOON = ("--retry-interval-start=500ms", "--retry-interval-max=1s")
"""The provisioner's patience with a failure: its default grows to 5 minutes."""

_SLOW = "CreateVolume=delay:2s"

_NAMES = [f"data-{number}" for number in range(5)]


@pytest.fixture
def vendor(testdriver: Callable[..., RunningDriver], claims: Claims) -> RunningDriver:
    return testdriver(claims.storage_class, flags=("--no-topology", f"--fault={_SLOW}"))


@pytest.fixture
def tunnel(vendor: RunningDriver, tunnel_to: Callable[[Path, str], Tunnel]) -> Tunnel:
    return tunnel_to(vendor.socket, vendor.name)


@pytest.fixture
def under_way(vendor: RunningDriver, tunnel: Tunnel, claims: Claims, sidecars: Sidecars) -> Process:
    """A stock provisioner with several CreateVolumes under way at the edge."""
    provisioner = sidecars.start("csi-provisioner", tunnel.socket, *_SOON)
    for name in _NAMES:
        claims.ask(name)
    wait_for(lambda: vendor.calls("CreateVolume"), what="CreateVolume at the edge", instead=tunnel.log_tails)
    return provisioner


@in_each_form
@pytest.mark.slow
def test_after_a_killed_proxy_driver_the_sidecars_are_started_again_and_every_claim_is_bound(
    under_way: Process, vendor: RunningDriver, tunnel: Tunnel, claims: Claims
) -> None:
    tunnel.proxy.kill()
    assert tunnel.socket.exists(), "a killed process leaves its socket: the next one must get over it"
    tunnel.proxy.start()
    _start_again(under_way)

    _assert_one_volume_each(claims, vendor)
    assert under_way.running, under_way.log_tail()
    _assert_quiet_and_clean(tunnel)


def _start_again(sidecar: Process) -> None:
    """Do as the kubelet: docs/csi-contract.md#a-sidecar-exits-when-its-connection-ends."""
    assert sidecar.wait_exit() == 1
    assert "Lost connection to CSI driver" in sidecar.output()
    sidecar.start()


def _assert_one_volume_each(claims: Claims, vendor: RunningDriver) -> None:
    """Every claim is bound, and its volume is one of as many at the edge; with the claims they go."""
    handles = [claims.wait_bound(name)["spec"]["csi"]["volumeHandle"] for name in _NAMES]
    assert vendor.volumes == sorted(handles)
    for name in _NAMES:
        claims.let_go(name)
    assert vendor.volumes == []


def _assert_quiet_and_clean(tunnel: Tunnel) -> None:
    """No call and no operation is left anywhere; each process ends when it is asked to, and takes its sockets along."""
    wait_for(
        lambda: set(tunnel.calls_in_flight().values()) == {0} and tunnel.agent.status()["operations"] == [],
        what="end of every call at every hop",
        instead=tunnel.log_tails,
    )
    assert set(tunnel.stop().values()) == {0}
    assert tunnel.leftovers() == []
