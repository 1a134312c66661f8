"""Elections with the stock provisioner and attacher, over three nodes with one storage.

The serving node fails with claims under way: no volume is lost, none is made twice, and no two nodes work on one volume
at the same time. The full form of the trial is an endurance test: 20 rounds with 50 claims for each fault.
`CSI_BRIDGE_TRIAL_ROUNDS` and `CSI_BRIDGE_TRIAL_CLAIMS` in the environment make it shorter or longer.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.bridge import Bridge
from tests.kit.deployed import hub_roles
from tests.kit.operator import by_hand, hub_state
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.election_trial import FAULTS, TAKEOVER_S, Figures, Trial
from tests.kit.peers.sidecars import Sidecars
from tests.kit.processes import Supervisor
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

_ROUNDS = int(os.environ.get("CSI_BRIDGE_TRIAL_ROUNDS", "20"))
_CLAIMS = int(os.environ.get("CSI_BRIDGE_TRIAL_CLAIMS", "50"))

_LATE_S = 2.0  # a call that no node has under way waits for the takeover and this time at most


@pytest.fixture
def trial(short_dir: Path, supervisor: Supervisor, claims: Claims, sidecars: Sidecars) -> Iterator[Trial]:
    with Bridge(short_dir, supervisor.directory) as bridge:
        yield Trial(bridge, supervisor, claims, sidecars, short_dir)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_serving_node_loses_no_volume_and_makes_none_twice(fault: str, trial: Trial) -> None:
    trial.round(fault, claims=20)
    judge(trial.finish())


@pytest.mark.endurance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", FAULTS)
def test_many_faults_of_the_serving_nodes_lose_no_volume_and_make_none_twice(
    fault: str, trial: Trial, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = pytestconfig.get_terminal_writer()
    for _ in range(_ROUNDS):
        trial.round(fault, claims=_CLAIMS)
        row = f"| {fault} {trial.finish()}"
        with capsys.disabled():
            terminal.line(row, flush=True)
    judge(trial.figures)


def judge(figures: Figures) -> None:
    assert figures.lost == []
    assert figures.doubled == []
    assert figures.wrong_codes == set()
    assert max(figures.waits_s) <= TAKEOVER_S + _LATE_S


@pytest.mark.slow
def test_an_election_is_an_event_of_the_csidriver_and_of_the_node_and_goes_by_the_labels_of_the_cluster(
    short_dir: Path, supervisor: Supervisor, namespace: str, control_plane: ControlPlane
) -> None:
    api, name, label = control_plane.api, f"{namespace}.csi", "node-restriction.kubernetes.io/storage"
    control_plane.apply(hub_roles())
    api.create(manifests.csi_driver(name, attachRequired=False))
    kubeconfig = control_plane.service_account_kubeconfig("csi-bridge", HUB)
    with Bridge(short_dir, supervisor.directory) as bridge, Vendor(short_dir / "v.sock", name=name) as vendor:
        hub = bridge.start_hub(f"--kubeconfig={kubeconfig}", f"--candidates={name}=label:{label}=nfs")
        for node in ("n1", "n2"):
            bridge.start_agent(node, vendor.socket)
        proxy = bridge.start_proxy(name, "--placement=shared")

        def election() -> dict[str, Any]:
            (found,) = hub_state(hub.uds)["elections"] or [{}]
            return dict(found)

        def give(node: str, value: str | None) -> None:
            api.wait_until("Node", node, bool, what="made by the hub")
            api.patch("Node", node, {"metadata": {"labels": {label: value}}})

        wait_for(lambda: election().get("unmatched"), what="election without a candidate", instead=election)
        assert f"nobody serves driver {name}" in by_hand("doctor", f"--hub=unix://{hub.uds}").stdout
        give("n2", "nfs")
        wait_for(lambda: election()["node"] == "n2", what="election of n2", instead=election)
        bridge.wait_routed(proxy.sidecar())
        give("n1", "nfs")
        wait_for(lambda: election()["standby"] == ["n1"], what="standby node", instead=election)
        give("n2", None)
        wait_for(lambda: election()["node"] == "n1", what="election of n1", instead=election)
        told = "NodeTookOver: edge node n1 serves driver"
        for about in (name, "n1"):
            wait_for(
                lambda about=about: [it for it in api.events(about, namespace="default") if it.startswith(told)],
                what=f"event of {about}",
                instead=lambda about=about: api.events(about, namespace="default"),
            )
        assert [it for it in api.events("n2", namespace="default") if it.startswith("NodeElected")]
        assert hub.logged("forbidden") == []
