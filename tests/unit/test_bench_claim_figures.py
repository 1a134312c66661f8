"""The figures of claims: what is made of times and log lines, and rows that a machine cannot measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import claim_figures
from bench.claim_cluster import Batch
from bench.run import COARSE
from tests.peers import build

GO = ("/cache/loadgen",)


def _line(call: str, method: str, ms: float) -> dict[str, Any]:
    """A hop's line of a finished call."""
    return {"call_id": call, "method": f"/csi.v1.Controller/{method}", "duration_ms": ms}


def _batches(**seconds: float) -> dict[str, list[Batch]]:
    """Two rounds of each way; in the second one claim and one pod take twice as long."""
    return {
        way: [Batch([each, each, each], [each, each, each]), Batch([each, each, 2 * each], [each, each, 2 * each])]
        for way, each in seconds.items()
    }


# ---- rows that are left out


@pytest.mark.parametrize("measure", [claim_figures.claims, claim_figures.stock_claims])
def test_without_a_sidecar_the_rows_are_left_out_and_say_what_to_run(
    monkeypatch: pytest.MonkeyPatch, measure: Any
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(build, "find", lambda name: None if name == "csi-attacher" else Path("/cache") / name)

    (figure,) = measure(Path("/nowhere"), GO)

    assert (figure.measured, figure.verdict) == ("left out: csi-attacher is not built (make peers)", "")


def test_a_driver_in_python_would_be_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)

    (figure,) = claim_figures.claims(Path("/nowhere"), COARSE)

    assert figure.measured == "left out: its driver is the load generator's, which needs Go"


# ---- beside the driver's own socket


def test_each_way_is_judged_by_the_driver_s_own_socket_of_the_same_run() -> None:
    found = claim_figures.beside(_batches(direct=1.0, relayed=1.04, alone=1.3))

    assert [(figure.measured, figure.verdict) for figure in found] == [
        ("1.04 x direct, 1.04 to 1.04 (1000 -> 1040 ms)", "ok"),
        ("1.04 x direct, 1.04 to 1.04 (1500 -> 1560 ms)", "ok"),
        ("1.04 x direct, 1.04 to 1.04 (1000 -> 1040 ms)", "ok"),
        ("1.04 x direct, 1.04 to 1.04 (1500 -> 1560 ms)", "ok"),
        ("1.30 x direct, 1.30 to 1.30 (1000 -> 1300 ms)", "missed"),
        ("1.30 x direct, 1.30 to 1.30 (1500 -> 1950 ms)", "missed"),
    ]


def test_each_round_is_a_sample_of_its_own_ratio() -> None:
    direct, slower = _batches(direct=1.0)["direct"], _batches(direct=2.0)["direct"]

    first, last, *_ = claim_figures.beside({"direct": direct, "relayed": [direct[0], slower[1]], "alone": direct})

    assert (first.samples, last.samples) == ([1.0, 2.0], [1.0, 2.0])


def test_a_note_stands_in_every_name() -> None:
    found = claim_figures.beside(_batches(direct=1.0, relayed=1.0, alone=1.0), ", stock limits")

    assert all(", stock limits, " in figure.name for figure in found)


def test_the_bridge_s_share_of_the_cpu_time_is_without_what_the_hub_does_anyway() -> None:
    direct = Batch(bound_cpu_us={"all": 4e6, "hub": 1e5}, published_cpu_us={"all": 4e6, "hub": 1e5})
    ours = {"all": 5e6, "hub": 1.5e5, "proxy driver": 5e4, "agent": 1e5}
    relayed = Batch(bound_cpu_us=ours, published_cpu_us={**ours, "agent": 3e5})

    bound, published = claim_figures.shares({"direct": [direct], "relayed": [relayed]})

    assert bound.measured == "4.0 % (proxy driver 1.0, hub 1.0, agent 2.0 of 100 ms a claim)"
    assert published.measured == "8.0 % (proxy driver 1.0, hub 1.0, agent 6.0 of 100 ms a pod)"


# ---- round trips


def test_a_call_s_round_trips_are_what_it_was_on_its_way_between_proxy_driver_and_agent() -> None:
    proxy = [_line("a", "CreateVolume", 230.0), _line("b", "ControllerPublishVolume", 410.0)]
    agent = [_line("b", "ControllerPublishVolume", 10.0), _line("a", "CreateVolume", 30.0)]

    assert claim_figures.trips_of(proxy, agent) == {"CreateVolume": [1.0], "ControllerPublishVolume": [2.0]}


def test_a_call_that_the_proxy_driver_answered_itself_was_on_no_link() -> None:
    assert claim_figures.trips_of([_line("a", "Probe", 0.1)], []) == {}


@pytest.mark.parametrize(("worst", "verdict"), [(1.04, "ok"), (1.6, "missed"), (0.01, "missed")])
def test_one_call_with_a_second_round_trip_is_one_too_many_and_none_means_that_there_was_no_link(
    worst: float, verdict: str
) -> None:
    figure = claim_figures.round_trips({"CreateVolume": [worst]})

    assert (figure.measured, figure.verdict) == (
        f"at most {worst:.2f} (p50 of 1 calls: CreateVolume {worst:.2f})",
        verdict,
    )


def test_in_a_crowd_round_trips_are_told_and_not_judged() -> None:
    crowd = {"CreateVolume": [1.0, 1.5, 2.5], "DeleteVolume": [1.25]}

    figure = claim_figures.round_trips(crowd, "50 at once")

    assert figure.measured == "at most 2.50 (p50 of 4 calls: CreateVolume 1.50, DeleteVolume 1.25)"
    assert figure.verdict == ""


def test_on_a_slow_link_claims_and_pods_stand_beside_those_without_link_and_bridge() -> None:
    near, far = _batches(direct=1.0), _batches(relayed=1.2, alone=0.5)

    found = claim_figures.slow_link(near, far)

    assert [figure.measured for figure in found] == ["1200 ms, no kubelet 500 (direct, without the link: 1000)"] * 2
