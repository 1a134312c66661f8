"""The figures of the edge: what is made of times and calls, and rows that a machine cannot measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import edge_figures, kubelet_figures
from bench.figure import at_share
from bench.kubelet_figures import _Way
from bench.load_node import pods_with_a_volume, pods_without_volumes
from bench.run import COARSE
from tests.peers import build


@pytest.mark.parametrize("measure", [edge_figures.many_volumes, edge_figures.idle_volumes])
def test_without_the_go_driver_the_rows_are_left_out_and_say_why(monkeypatch: pytest.MonkeyPatch, measure) -> None:  # type: ignore[no-untyped-def]  # a function of the bench
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (figure,) = measure(Path("/nowhere"), COARSE)
    assert figure.measured == "left out: its driver is the load generator's, which needs Go"
    assert figure.verdict == ""


def test_nobody_but_root_measures_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert edge_figures.missing(("/cache/loadgen",)) == "only root can mount"


def test_without_the_real_kubelet_its_rows_are_left_out_and_say_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(build, "find", lambda name: None if name == "kubelet" else Path("/cache") / name)

    (figure,) = kubelet_figures.beside_kubelet(Path("/nowhere"), ("/cache/loadgen",))

    assert (figure.measured, figure.verdict) == ("left out: kubelet is not built (make peers)", "")


def test_the_agent_is_judged_by_the_kubelet_of_the_same_run_and_its_time_is_split() -> None:
    agent = [_Way(total_s=0.080, driver_s=0.020, hub_s=0.040)] * 3
    kubelet = [_Way(total_s=0.320, driver_s=0.020)] * 3

    quicker = kubelet_figures._beside("p50", agent, kubelet, 0.5)
    slower = kubelet_figures._beside("p50", kubelet, agent, 0.5)
    parts = kubelet_figures._parts(agent, kubelet)

    assert (quicker.measured, quicker.verdict) == ("0.25 x the kubelet's (80 ms)", "ok")
    assert (slower.measured, slower.verdict) == ("4.00 x the kubelet's (320 ms)", "missed")
    assert quicker.peers == {"kubelet": "320 ms"}
    assert parts.measured == "40 / 20 / 20 ms"
    assert parts.peers == {"kubelet": "kubelet / driver: 300 / 20 ms"}


def test_the_slowest_of_fifty_is_their_p99() -> None:
    assert at_share([float(number) for number in range(50)], 0.99) == 49.0
    assert at_share([1.0], 0.5) == 1.0


def test_a_pod_comes_with_its_claim_volume_and_secrets() -> None:
    kinds = [each["kind"] for each in pods_with_a_volume(1, secrets="first")]
    assert sorted(kinds) == ["PersistentVolume", "PersistentVolumeClaim", "Pod", "Secret", "Secret", "Secret"]
    assert [each["kind"] for each in pods_without_volumes(2)] == ["Pod", "Pod"]
