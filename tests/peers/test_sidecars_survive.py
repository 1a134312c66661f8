"""Stock sidecars on the proxy driver's socket: they start without a link, and never notice what happens behind it."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.forms import in_each_form, slow_in_hub
from tests.kit.peers import csi_client
from tests.kit.peers.claims import Claims
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.peers.tunnel import Tunnel
from tests.kit.processes import Process
from tests.kit.waiting import wait_for

_STORM_S = 60.0  # how long the link and the processes behind the proxy driver are tormented

_CHECK_INTERVAL_S = 0.2  # how often the tests' own livenessprobe and health-monitor ask: far oftener than the real ones

_SOON = ("--retry-interval-start=500ms", "--retry-interval-max=2s")
"""The sidecars' patience with a failure: their default grows to 5 minutes."""


@pytest.fixture
def vendor(testdriver: Callable[..., RunningDriver], claims: Claims) -> RunningDriver:
    return testdriver(claims.storage_class, flags=("--no-topology",))


@pytest.fixture
def cached(vendor: RunningDriver, tunnel_to: Callable[[Path, str], Tunnel]) -> Tunnel:
    """A bridge of which only the proxy driver runs, started again since: all it knows is on its disk."""
    tunnel = tunnel_to(vendor.socket, vendor.name)
    if not tunnel.in_hub:  # whose records have it
        wait_for(tunnel.proxy.cache.exists, what="file of the proxy driver's")
    for process in (tunnel.agent, tunnel.hub, tunnel.proxy):
        process.kill()
    tunnel.proxy.start()
    tunnel.wait_until_known()
    return tunnel


@slow_in_hub
def test_without_a_link_livenessprobe_and_health_monitor_get_their_answers(
    cached: Tunnel, vendor: RunningDriver
) -> None:
    with _checked(cached.socket, rounds=20):
        probed, _, info, *_ = csi_client.check(cached.socket)
    assert csi_client.is_ready(probed)
    assert info.answer.name == vendor.name


@in_each_form
@pytest.mark.slow
def test_stock_sidecars_start_without_a_link_and_outlive_cuts_and_killed_hubs_and_agents(
    cached: Tunnel, sidecars: Sidecars, claims: Claims
) -> None:
    sidecars.install_snapshot_kinds()
    names = ["csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"]
    stock = [sidecars.start(name, cached.socket, *_SOON) for name in names]
    sidecars.start_snapshot_controller()

    if not cached.in_hub:
        cached.hub.start()
    cached.agent.start()
    cached.wait_until_up()
    with _checked(cached.socket):
        _storm(cached, stock, claims)

    _assert_running(stock)
    cached.wait_until_up()


def _storm(tunnel: Tunnel, stock: list[Process], claims: Claims) -> None:
    """A cut, a killed agent, a silent link, a killed hub, and again; each time a claim is asked for meanwhile.

    A hub that serves the sidecars itself is spared.
    """
    strikes = [
        (tunnel.cut, tunnel.heal),
        (tunnel.agent.kill, tunnel.agent.start),
        (tunnel.silence, tunnel.heal),
    ]
    if not tunnel.in_hub:
        strikes.append((tunnel.hub.kill, tunnel.hub.start))
    end = time.monotonic() + _STORM_S
    for number, (strike, repair) in enumerate(itertools.cycle(strikes)):
        name = f"storm-{number}"
        strike()
        claims.ask(name)
        claims.wait_tried(name)
        _assert_running(stock)
        repair()
        claims.wait_bound(name)
        claims.let_go(name)
        if time.monotonic() > end:
            return


def _assert_running(stock: list[Process]) -> None:
    ended = [sidecar for sidecar in stock if not sidecar.running]
    assert not ended, "\n".join(sidecar.log_tail() for sidecar in ended)


@contextmanager
def _checked(socket: Path, *, rounds: int = 0) -> Iterator[None]:
    """Ask as livenessprobe and health-monitor do, all the while, and at least so often; every answer must be right."""
    over = threading.Event()
    wrong: list[object] = []

    def check() -> None:
        for number in itertools.count(1):
            wrong.extend(outcome.refusal for outcome in csi_client.check(socket) if not outcome.ok)
            if number >= rounds and over.wait(_CHECK_INTERVAL_S):
                return

    checker = threading.Thread(target=check, name="livenessprobe and health-monitor")
    checker.start()
    try:
        yield
    finally:
        over.set()
        checker.join()
    assert wrong == []
