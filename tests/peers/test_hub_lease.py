"""Two hubs of one cluster: one works, the other waits for its Lease. Each has a state directory of its own."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.bridge import Agent, Hub
from tests.kit.operator import by_hand
from tests.kit.peers.cluster_node import DEPLOY, HUB
from tests.kit.ports import free_ports
from tests.kit.processes import listens_on
from tests.kit.waiting import let_pass, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.peers.control_plane import ControlPlane

pytestmark = pytest.mark.slow

LEASE_S = 6
TIMES = (
    f"--leader-election-lease-duration={LEASE_S}s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
)
WAITS = "waits for the Lease csi-bridge/csi-bridge-hub"


class Pair:
    """Two hubs. The first one works.

    Attributes:
        first, second: the hubs.
        http: the address of the second one's `--http`.
    """

    def __init__(self, directory: Path, logs: Path, plane: ControlPlane) -> None:
        self._plane, self._directory, self._logs = plane, directory, logs
        plane.apply(DEPLOY / "base/hub-rbac.yaml")
        kubeconfig = plane.service_account_kubeconfig("csi-bridge", HUB)
        (port,) = free_ports(1)
        self.http = f"127.0.0.1:{port}"
        self.first = self._hub("a", f"--kubeconfig={kubeconfig}", *TIMES)
        self.second = self._hub("b", f"--kubeconfig={kubeconfig}", *TIMES, f"--http={self.http}")
        self.agent = Agent("n1", self.first.address, [], directory, logs, ())
        self.first.start()
        self.second.start(wait=False)
        self.second.wait_logged(WAITS)

    def _hub(self, name: str, *flags: str) -> Hub:
        directory, logs = self._directory / name, self._logs / name
        directory.mkdir()
        logs.mkdir()
        return Hub(directory, logs, flags)

    def lease(self) -> dict[str, Any]:
        found = self._plane.api.get("Lease", HUB, namespace="csi-bridge")
        assert found is not None
        return found

    def epoch(self) -> int:
        return int(self.lease()["metadata"]["annotations"]["csi-bridge.io/epoch"])

    def readiness(self) -> str:
        try:
            with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=10.0) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()


@pytest.fixture
def pair(short_dir: Path, tmp_path: Path, control_plane: ControlPlane) -> Iterator[Pair]:
    pair = Pair(short_dir, tmp_path, control_plane)
    members = (pair.first, pair.second, pair.agent)
    yield pair
    for member in members:
        member.kill()
    assert [line for member in members for line in member.complaints()] == []


def test_the_second_hub_works_when_the_first_one_was_killed_or_has_stopped(pair: Pair) -> None:
    first, second = pair.first, pair.second
    epochs, holder = [pair.epoch()], pair.lease()["spec"]["holderIdentity"]
    assert pair.readiness() == f"this hub {WAITS}: {holder}\n"
    assert not listens_on(second.uds)

    killed = time.monotonic()
    first.kill()
    second.wait_ready()
    assert time.monotonic() - killed > LEASE_S - 2.0  # the last renewal, and the look at it, were up to a second before
    assert pair.readiness() == "ok\n"
    epochs.append(pair.epoch())

    first.start(wait=False)
    first.wait_logged(WAITS)
    stopped = time.monotonic()
    second.ask_to_stop()
    assert second.process.wait_exit() == 0
    first.wait_ready()
    assert time.monotonic() - stopped < LEASE_S - 2.0
    epochs.append(pair.epoch())

    first.kill()
    first.start()  # the same state directory: it knows that the killed process has ended
    assert len(first.logged(WAITS)) == 1
    epochs.append(pair.epoch())
    assert sorted(set(epochs)) == epochs


def test_a_hub_that_stood_still_for_longer_than_its_lease_ends_and_changes_nothing(
    pair: Pair, control_plane: ControlPlane
) -> None:
    pair.agent.start()
    pair.agent.wait_connected()
    wait_for(lambda: control_plane.api.get("EdgeNode", "n1"), what="record of the node", timeout_s=LEASE_S)
    pair.first.process.signal(signal.SIGSTOP)
    pair.second.wait_ready()
    known = by_hand("nodes", f"--hub=unix://{pair.second.uds}")
    assert ("n1" in known.stdout, known.returncode) == (True, 0), known.stdout  # by the records of the first one
    pair.agent.kill()
    before, epoch = len(control_plane.asked_by(HUB)), pair.epoch()
    pair.first.process.signal(signal.SIGCONT)
    assert pair.first.process.wait_exit() == 1
    (told,) = pair.first.logged("hub ends: ")
    assert "has lost the Lease csi-bridge/csi-bridge-hub" in told["msg"]
    let_pass(2.0)  # the second one renews meanwhile
    written = {it for it in control_plane.asked_by(HUB, since=before) if it.verb not in {"get", "list", "watch"}}
    others = {(it.verb, it.resource, it.name) for it in written if it.group != "csi-bridge.io"}  # the second one's
    assert others == {("patch", "leases", HUB)}
    assert pair.epoch() == epoch


def test_a_lease_that_somebody_deletes_is_made_anew_by_its_holder(pair: Pair, control_plane: ControlPlane) -> None:
    before = pair.lease()
    control_plane.api.delete("Lease", HUB, namespace="csi-bridge")
    made = wait_for(
        lambda: control_plane.api.get("Lease", HUB, namespace="csi-bridge"), what="Lease", timeout_s=LEASE_S
    )
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert (made["spec"]["holderIdentity"], pair.epoch()) == (
        before["spec"]["holderIdentity"],
        int(before["metadata"]["annotations"]["csi-bridge.io/epoch"]),
    )
    let_pass(LEASE_S + 1.0)
    assert pair.first.process.running
    assert not listens_on(pair.second.uds)
