"""Two hubs of one cluster: one leads, the other waits for its Lease. Each has a state directory of its own."""

import asyncio
import contextlib
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.links.dial import dial
from common.net.endpoint import hub_endpoint
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link
from common.status import Code
from common.store.fault_points import VARIABLE
from tests.kit.bridge import REDIAL_LIMIT_S, Agent, Hub, Proxy
from tests.kit.deployed import hub_roles
from tests.kit.fault_points import LEAD
from tests.kit.linked import Peer
from tests.kit.operator import by_hand, hub_state
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.ports import free_ports
from tests.kit.requests import create
from tests.kit.sidecar import Sidecar, link_lost
from tests.kit.vendor import Vendor
from tests.kit.waiting import let_pass, wait_for

pytestmark = pytest.mark.slow

LEASE_S = 6
TIMES = (
    f"--leader-election-lease-duration={LEASE_S}s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
)
DRIVER = "vendor.test"
WAITS = "waits for the Lease csi-bridge/csi-bridge-hub"


class Pair:
    """Two hubs that serve a driver. The first one leads.

    Attributes:
        first, second: the hubs.
    """

    def __init__(self, directory: Path, logs: Path, plane: ControlPlane) -> None:
        self._plane, self._directory, self._logs = plane, directory, logs
        plane.apply(hub_roles())
        self._kubeconfig = plane.service_account_kubeconfig("csi-bridge", HUB)
        self._http: dict[Hub, str] = {}
        self.first, self.second = hubs = self._hub("a"), self._hub("b")
        for hub in hubs:
            hub.process.command += [f"--hub-endpoint=ws://{it.address}" for it in hubs]
        self.agent = Agent("n1", self.first.address, [], directory, logs, ())
        self.first.start(wait=False)
        self.wait_leads(self.first)
        self.second.start()

    def _hub(self, name: str) -> Hub:
        directory, logs = self._directory / name, self._logs / name
        directory.mkdir()
        logs.mkdir()
        (port,) = free_ports(1)
        http = f"127.0.0.1:{port}"
        flags = f"--serve={DRIVER}=unix://{directory / 'csi.sock'}", f"--kubeconfig={self._kubeconfig}"
        hub = Hub(directory, logs, (*flags, *TIMES, f"--http={http}"))
        self._http[hub] = http
        return hub

    def lease(self) -> dict[str, Any]:
        found = self._plane.api.get("Lease", HUB, namespace="csi-bridge")
        assert found is not None
        return found

    def holder(self) -> str:
        return str(self.lease()["spec"]["holderIdentity"])

    def readiness(self, hub: Hub, path: str = "/readyz") -> str:
        try:
            with urllib.request.urlopen(f"http://{self._http[hub]}{path}", timeout=10.0) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError as error:
            return str(error)

    def wait_leads(self, hub: Hub) -> None:
        hub.process.wait_until(lambda: self.readiness(hub, "/readyz/active") == "ok\n", what="leading")


@pytest.fixture
def pair(short_dir: Path, tmp_path: Path, control_plane: ControlPlane) -> Iterator[Pair]:
    pair = Pair(short_dir, tmp_path, control_plane)
    members = (pair.first, pair.second, pair.agent)
    yield pair
    for member in members:
        member.kill()
    assert [line for member in members for line in member.complaints()] == []


class Epochs(Peer):
    """A peer of a hub that notes the epochs of its hellos."""

    def __init__(self) -> None:
        super().__init__(accepts=False)
        self.heard: asyncio.Queue[int] = asyncio.Queue()
        self.link: Link

    def greeted(self, link: Link) -> None:
        self.heard.put_nowait(link.peer.epoch)


async def dialled(hub: Hub) -> Epochs:
    """Dial a hub, as an agent that answers its pings."""
    peer, hello = Epochs(), introduce("edge", "n2", instance="i", boot=1)
    peer.link = await dial(hub_endpoint(f"ws://{hub.address}"), hello, peer, limits=Limits())
    return peer


async def test_links_of_a_standby_lead_to_the_next_hub_when_the_leader_was_killed_or_has_stopped(pair: Pair) -> None:
    """Nobody dials. Every hub says its epoch, and each leader's is above those before."""
    first, second, holder = pair.first, pair.second, pair.holder()
    assert pair.readiness(second) == "ok\n"
    assert pair.readiness(second, "/readyz/active") == f"this hub {WAITS}: {holder}\n"
    standby, leader = hub_state(second.uds), hub_state(first.uds)
    assert (standby["leads"], standby["leader"], standby["epoch"]) == (False, holder, 0)
    shown = by_hand("status", f"--hub=unix://{second.uds}")
    assert f" connected: {holder} leads since {standby['since'][:19]}Z" in shown.stdout
    for command in (("forget", "n1"), ("nodes",), ("denials",)):
        refused = by_hand(*command, f"--hub=unix://{second.uds}")
        assert (refused.returncode, "hub that leads" in refused.stderr, holder in refused.stderr) == (1, True, True)
    at_first, at_second = await dialled(first), await dialled(second)
    epochs = [leader["epoch"]]
    assert (await at_first.heard.get(), await at_second.heard.get()) == (epochs[-1], 0)

    killed = time.monotonic()
    first.kill()
    epochs.append(await at_second.heard.get())
    took_s = time.monotonic() - killed
    assert LEASE_S - 2.0 < took_s < LEASE_S + 1.5  # the last renewal, and the look at it, were up to a second before
    assert pair.readiness(second, "/readyz/active") == "ok\n"

    await asyncio.to_thread(first.start)
    at_first = await dialled(first)
    assert await at_first.heard.get() == 0
    stopped = time.monotonic()
    second.ask_to_stop()
    epochs.append(await at_first.heard.get())
    assert time.monotonic() - stopped < 1.5
    assert await at_second.link.wait_closed() == ("stopped", "this hub stops, and another one may lead")
    assert await asyncio.to_thread(second.process.wait_exit) == 0

    first.kill()
    await asyncio.to_thread(first.start)  # the same state directory: it knows that the killed process has ended
    at_first = await dialled(first)
    epochs.append(await at_first.heard.get())
    assert sorted(set(epochs)) == epochs
    first.kill()
    await at_first.link.wait_closed()


def test_a_hub_that_stood_still_for_longer_than_its_lease_ends_and_changes_nothing(
    pair: Pair, control_plane: ControlPlane
) -> None:
    pair.agent.start()
    pair.agent.wait_connected()
    wait_for(lambda: "status" in (control_plane.api.get("EdgeNode", "n1") or {}), what="record", timeout_s=LEASE_S)
    pair.first.process.signal(signal.SIGSTOP)
    pair.wait_leads(pair.second)
    known = by_hand("nodes", f"--hub=unix://{pair.second.uds}")
    assert ("n1" in known.stdout, known.returncode) == (True, 0), known.stdout  # by the records of the first one
    pair.agent.kill()
    before, epoch = len(control_plane.asked_by(HUB)), hub_state(pair.second.uds)["epoch"]
    pair.first.process.signal(signal.SIGCONT)
    assert pair.first.process.wait_exit() == 1
    (told,) = pair.first.logged("hub ends: ")
    assert "has lost the Lease csi-bridge/csi-bridge-hub" in told["msg"]
    let_pass(2.0)  # the second one renews meanwhile
    written = {it for it in control_plane.asked_by(HUB, since=before) if it.verb not in {"get", "list", "watch"}}
    others = {(it.verb, it.resource, it.name) for it in written if it.group != "csi-bridge.io"}  # the second one's
    assert others == {("patch", "leases", HUB)}
    assert hub_state(pair.second.uds)["epoch"] == epoch


@contextlib.contextmanager
def vendor_behind(
    pair: Pair, directory: Path, logs: Path, *flags: str, socket: Path | None = None
) -> Iterator[tuple[Vendor, Proxy, Sidecar]]:
    """A vendor's driver at the agent, and its proxy driver: both dial both hubs. `flags` are the proxy driver's.

    The sidecar calls `socket` in place of the proxy driver's, if it is given.
    """
    pair.agent.process.command += [f"--hub=ws://{pair.second.address}", f"--driver=unix://{directory / 'v.sock'}"]
    dialled = [f"--hub-endpoint=unix://{hub.uds}" for hub in (pair.first, pair.second)]
    proxy = Proxy(DRIVER, "", None, directory / "p", logs, [*dialled, *flags])
    with Vendor(directory / "v.sock") as vendor, Sidecar(socket or proxy.socket) as sidecar:
        pair.agent.start()
        proxy.start()
        try:
            wait_for(lambda: sidecar.call("GetCapacity").ok, what="way to the vendor")
            yield vendor, proxy, sidecar
            assert proxy.complaints() == []
        finally:
            proxy.kill()


@pytest.mark.parametrize("served", ["", "b/csi.sock"], ids=["by a proxy driver", "beside the standby"])
def test_a_call_that_a_silent_leader_holds_ends_when_the_next_hub_leads_and_its_retry_joins_there(
    pair: Pair, short_dir: Path, tmp_path: Path, served: str
) -> None:
    """Nobody dials, and nobody waits for the keepalive of the link."""
    for member in (pair.agent, pair.second):
        member.process.command.append("--keepalive=60s")
    pair.second.kill()
    pair.second.start()
    at = short_dir / served if served else None
    with vendor_behind(pair, short_dir, tmp_path, "--keepalive=60s", socket=at) as (vendor, proxy, sidecar):
        for member in (pair.agent, proxy):
            member.wait_logged(" is a standby ")
        gate, call = vendor.hold("CreateVolume"), sidecar.start("CreateVolume", create("pvc-1"))
        vendor.wait_for_call("CreateVolume")
        pair.first.process.signal(signal.SIGSTOP)
        began = time.monotonic()
        assert call.outcome().refusal == link_lost("the hub")
        assert time.monotonic() - began < LEASE_S + 1.5
        assert sidecar.call("Probe").answer.ready.value
        gate.set()
        assert sidecar.call("CreateVolume", create("pvc-1")).ok
        assert len(vendor.calls("CreateVolume")) == 1
        pair.first.process.signal(signal.SIGCONT)
        assert pair.first.process.wait_exit() == 1
        for member in (pair.agent, proxy):
            assert len(member.logged(" is a standby ")) == 1


@pytest.mark.parametrize("point", LEAD)
def test_a_hub_that_dies_while_it_takes_over_leaves_a_create_with_its_node(
    pair: Pair, short_dir: Path, tmp_path: Path, point: str
) -> None:
    pair.second.kill()
    pair.second.process.environment = {**os.environ, VARIABLE: point}
    pair.second.start()
    with vendor_behind(pair, short_dir, tmp_path, "--placement=local") as (vendor, _, sidecar):
        gate, call = vendor.hold("CreateVolume"), sidecar.start("CreateVolume", create("pvc-1"))
        vendor.wait_for_call("CreateVolume")
        pair.first.kill()
        assert call.outcome().refusal == link_lost("the hub")
        assert pair.second.process.wait_exit() == -signal.SIGKILL
        pair.second.process.environment = None
        pair.second.start()
        pair.wait_leads(pair.second)
        gate.set()
        made = wait_for(lambda: it if (it := sidecar.call("CreateVolume", create("pvc-1"))).ok else None, what="volume")
        assert made.answer.volume.volume_id
        assert len(vendor.calls("CreateVolume")) == 1


@pytest.mark.parametrize("name", ["csi-attacher", "csi-snapshotter"])
def test_a_sidecar_beside_a_standby_starts_when_the_leader_knows_the_driver_and_stays_when_the_leader_dies(
    pair: Pair, sidecars: Sidecars, testdriver: Callable[..., RunningDriver], short_dir: Path, name: str
) -> None:
    """Until then it waits: it would end after 30 s without a socket."""
    sidecars.install_snapshot_kinds()
    started = sidecars.start(name, short_dir / "b/csi.sock", ready=False)
    wait_for(lambda: "CSI driver is not ready" in started.output(), what="wait")
    pair.agent.process.command += [
        f"--hub=ws://{pair.second.address}", f"--driver=unix://{testdriver(DRIVER).socket}"
    ]  # fmt: skip
    pair.agent.start()
    wait_for(lambda: "ControllerGetCapabilities" in started.output(), what="start", timeout_s=REDIAL_LIMIT_S)
    assert not hub_state(pair.second.uds)["leads"]
    pair.first.kill()
    with Sidecar(short_dir / "b/csi.sock") as sidecar:
        refused = sidecar.call("GetCapacity")
        assert (refused.code, sidecar.call("Probe").answer.ready.value) == (Code.UNAVAILABLE, True)
        wait_for(lambda: sidecar.call("GetCapacity").ok, what="answer by the next leader", timeout_s=4 * LEASE_S)
    assert started.running


def test_a_lease_that_somebody_deletes_is_made_anew_by_its_holder(pair: Pair, control_plane: ControlPlane) -> None:
    before = pair.lease()
    control_plane.api.delete("Lease", HUB, namespace="csi-bridge")
    made = wait_for(
        lambda: control_plane.api.get("Lease", HUB, namespace="csi-bridge"), what="Lease", timeout_s=LEASE_S
    )
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert made["spec"]["holderIdentity"] == before["spec"]["holderIdentity"]
    let_pass(LEASE_S + 1.0)
    assert pair.first.process.running
    assert [hub_state(hub.uds)["leads"] for hub in (pair.first, pair.second)] == [True, False]
