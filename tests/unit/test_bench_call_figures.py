"""Figures of calls: what is made of the load generator's report; nothing, if it tells of trouble."""

import itertools
import json
import math
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench import call_figures
from bench.call_figures import sample
from bench.chain import Chain, Command, Form
from bench.figure import Figure, NotMeasured

if TYPE_CHECKING:
    from tests.kit.bridge import Member

_CREATE, _DELETE = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/DeleteVolume"

Measure = Callable[[Path, Command], list[Figure]]

UNDER_LOAD: list[Measure] = [call_figures.calls, call_figures.identity, call_figures.round_trips]
"""The figures that are made with the load generator."""


def _target(*, us: float = 100, operations: int = 10, deletes: int | None = None) -> dict[str, Any]:
    """The report of one socket, as the load generator prints it."""
    deletes = operations if deletes is None else deletes
    spread = {"p50": us, "p99": 2 * us}
    return {
        "calls": operations + deletes,
        "calls_per_second": 1e6 / us,
        "errors": {},
        "latency_us": spread,
        "operations": {"count": operations, "per_second": 1e6 / us, "latency_us": spread},
        "methods": {_CREATE: {"calls": operations}, _DELETE: {"calls": deletes}} if operations else {},
    }


def _failed(code: str, message: str) -> dict[str, Any]:
    return {**_target(), "errors": {code: 1}, "error_messages": {code: message}}


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what every run of the load generator says of each socket. No process is started."""

    @contextmanager
    def chain(directory: Path, *_: object, **__: object) -> Iterator[Chain]:
        members = {hop: SimpleNamespace(process=SimpleNamespace(pid=1)) for hop in ("proxy", "hub", "agent")}
        yield Chain(directory / "csi.sock", cast("dict[str, Member]", members))

    @contextmanager
    def driver(directory: Path, *_: object) -> Iterator[Path]:
        yield directory / "v.sock"

    @contextmanager
    def relays(directory: Path, _vendor: Path) -> Iterator[tuple[Path, list[int]]]:
        yield directory / "floor.sock", [1, 2, 3]

    @contextmanager
    def tunnels(directory: Path, _vendor: Path) -> Iterator[dict[str, Path | str]]:
        yield {"ssh -L": directory / "ssh.sock", "chisel": "chisel is not on the PATH"}

    for name, made in {"chain": chain, "driver": driver, "relays": relays, "tunnels": tunnels}.items():
        monkeypatch.setattr(call_figures, name, made)
    used_us = itertools.count()
    monkeypatch.setattr(call_figures, "cpu_us", lambda _pid: float(next(used_us)))
    monkeypatch.setattr(call_figures, "lacks", lambda form: "" if form is Form.SPLIT else "the hub has no --serve")

    def says(status: int = 0, stderr: str = "", **targets: dict[str, Any]) -> None:
        def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            names = [word.split("=")[1] for word in command if word.startswith("--socket=")]
            usual = {"floor": _target(us=150), "bridge": _target(us=400)}
            report = {"targets": {name: targets.get(name, usual.get(name, _target())) for name in names}}
            return subprocess.CompletedProcess(command, status, "" if status else json.dumps(report), stderr)

        monkeypatch.setattr("subprocess.run", run)

    return says


@pytest.mark.parametrize("measure", UNDER_LOAD)
def test_one_call_that_failed_leaves_no_figure(
    generator: Callable[..., None], measure: Measure, tmp_path: Path
) -> None:
    generator(bridge=_failed("UNAVAILABLE", "edge node n1 is offline"))

    with pytest.raises(NotMeasured, match=r"bridge.*UNAVAILABLE.*edge node n1 is offline"):
        measure(tmp_path, ("loadgen",))


def test_a_call_that_failed_at_the_drivers_own_socket_leaves_no_figure_either(
    generator: Callable[..., None], tmp_path: Path
) -> None:
    generator(direct=_failed("INTERNAL", "out of memory"))

    with pytest.raises(NotMeasured, match=r"direct.*INTERNAL.*out of memory"):
        call_figures.calls(tmp_path, ("loadgen",))


@pytest.mark.parametrize("measure", UNDER_LOAD)
def test_no_calls_at_all_are_no_figure(generator: Callable[..., None], measure: Measure, tmp_path: Path) -> None:
    generator(bridge=_target(operations=0))

    with pytest.raises(NotMeasured, match="bridge: 0 operations"):
        measure(tmp_path, ("loadgen",))


def test_calls_whose_operations_came_to_no_end_are_no_figure(generator: Callable[..., None], tmp_path: Path) -> None:
    generator(bridge=_target(deletes=9))

    with pytest.raises(NotMeasured, match=r"bridge: 10 operations.*DeleteVolume': 9"):
        call_figures.calls(tmp_path, ("loadgen",))


@pytest.mark.parametrize("measure", UNDER_LOAD)
def test_a_load_generator_that_fails_is_quoted(
    generator: Callable[..., None], measure: Measure, tmp_path: Path
) -> None:
    generator(status=1, stderr="loadgen: bridge: the volume to validate: the driver is gone\n")

    with pytest.raises(NotMeasured, match=r"exit status 1.*the volume to validate: the driver is gone"):
        measure(tmp_path, ("loadgen",))


def test_the_added_time_is_a_multiple_of_what_three_relays_add(generator: Callable[..., None], tmp_path: Path) -> None:
    generator(direct=_target(us=100), floor=_target(us=230), bridge=_target(us=750))

    rows = {figure.name: figure for figure in call_figures.calls(tmp_path, ("loadgen",))}

    added = rows["bridge: added p50 by the floor's, one caller"]
    assert added.measured == "5.00 x, 5.00 to 5.00 (of 0.65 ms by 0.13)"
    assert added.verdict == "ok"
    assert rows["bridge: added p99, one caller"].verdict == "ok"
    slower = rows["bridge: Create + Delete, one caller, driver of 0.35 ms a call"]
    assert (slower.samples, slower.verdict) == ([7.5] * 5, "missed")
    assert slower.peers == {"floor": "2.30 x", "ssh -L": "1.00 x"}


def test_a_form_or_tunnel_that_is_not_there_is_left_out_with_its_reason(
    generator: Callable[..., None], tmp_path: Path
) -> None:
    generator()

    rows = {figure.name: figure.measured for figure in call_figures.calls(tmp_path, ("loadgen",))}

    assert rows["one process: all rows"] == "left out: the hub has no --serve"
    assert rows["chisel"] == "left out: chisel is not on the PATH"


def test_a_machine_on_which_relays_cost_nothing_is_too_busy_to_measure(
    generator: Callable[..., None], tmp_path: Path
) -> None:
    generator(direct=_target(us=100), floor=_target(us=90))

    with pytest.raises(NotMeasured, match="too busy"):
        call_figures.calls(tmp_path, ("loadgen",))


def test_a_round_s_cpu_times_are_multiples_of_one_relay_s() -> None:
    floor = {**_target(us=150), "cpu_us": {"0": 20.0, "1": 30.0, "2": 40.0}}
    bridge = {**_target(us=400), "cpu_us": {"proxy": 300.0, "hub": 150.0, "agent": 330.0}}
    quiet = {**_target(us=400), "cpu_us": {"proxy": 280.0, "hub": 120.0, "agent": 302.0}}

    found = sample({"direct": _target(), "floor": floor, "bridge": bridge, call_figures._QUIET: quiet})

    assert found["bridge: cpu of hub"] == 150.0
    assert found["bridge: cpu of hub by floor"] == 5.0
    assert found["bridge: cpu of all hops"] == 780.0
    assert (found["log us"], found["log share"]) == (78.0, 10.0)


def test_a_floor_of_nothing_has_no_multiples() -> None:
    floor = {**_target(us=100), "cpu_us": {"0": 20.0}}

    assert sample({"direct": _target(us=100), "floor": floor})["floor: added by floor"] == math.inf


@pytest.mark.parametrize(("us", "verdict"), [(205_000, "ok"), (400_000, "missed"), (1_000, "missed")])
def test_a_call_takes_one_round_trip_and_less_means_that_the_link_did_not_delay(
    generator: Callable[..., None], us: float, verdict: str, tmp_path: Path
) -> None:
    generator(bridge=_target(us=us))

    (figure,) = call_figures.round_trips(tmp_path, ("loadgen",))

    assert figure.verdict == verdict
