"""A figure: what is made of the load generator's report, and that nothing is made of one that tells of trouble."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import figures
from bench.figures import Figure, NotMeasured

_CREATE, _DELETE = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/DeleteVolume"
_HERE = Path("/nowhere")

Measure = Callable[[Path, figures.Command], list[Figure]]

UNDER_LOAD: list[Measure] = [figures.calls, figures.identity, figures.agent_size, figures.round_trips]
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


@contextmanager
def _no_floor(chain: Any) -> Iterator[None]:
    chain.sockets["floor"] = _HERE
    yield


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what every run of the load generator says of each socket; no process is started."""

    @contextmanager
    def chain(_directory: Path, command: figures.Command, *_: str, **__: str) -> Iterator[Any]:
        yield figures._Chain(command, _HERE, _HERE, {})

    monkeypatch.setattr(figures, "_chain", chain)
    monkeypatch.setattr(figures, "_floor", _no_floor)

    def says(status: int = 0, stderr: str = "", **targets: dict[str, Any]) -> None:
        def run(command: list[str], *, check: bool = False, **_: object) -> subprocess.CompletedProcess[str]:
            names = [word.split("=")[1] for word in command if word.startswith("--socket=")]
            report = {"targets": {name: targets.get(name, _target()) for name in names}}
            done = subprocess.CompletedProcess(command, status, "" if status else json.dumps(report), stderr)
            if check:
                done.check_returncode()
            return done

        monkeypatch.setattr("subprocess.run", run)

    return says


@pytest.mark.parametrize("measure", UNDER_LOAD)
def test_one_call_that_failed_leaves_no_figure(generator: Callable[..., None], measure: Measure) -> None:
    generator(bridge=_failed("UNAVAILABLE", "edge node n1 is offline"))

    with pytest.raises(NotMeasured, match=r"bridge.*UNAVAILABLE.*edge node n1 is offline"):
        measure(_HERE, ("loadgen",))


def test_a_call_that_failed_at_the_drivers_own_socket_leaves_no_figure_either(generator: Callable[..., None]) -> None:
    generator(direct=_failed("INTERNAL", "out of memory"))

    with pytest.raises(NotMeasured, match=r"direct.*INTERNAL.*out of memory"):
        figures.calls(_HERE, ("loadgen",))


@pytest.mark.parametrize("measure", UNDER_LOAD)
def test_no_calls_at_all_are_no_figure(generator: Callable[..., None], measure: Measure) -> None:
    generator(bridge=_target(operations=0))

    with pytest.raises(NotMeasured, match="bridge: 0 operations"):
        measure(_HERE, ("loadgen",))


def test_calls_whose_operations_came_to_no_end_are_no_figure(generator: Callable[..., None]) -> None:
    generator(bridge=_target(deletes=9))

    with pytest.raises(NotMeasured, match=r"bridge: 10 operations.*DeleteVolume': 9"):
        figures.calls(_HERE, ("loadgen",))


@pytest.mark.parametrize("measure", UNDER_LOAD)
def test_a_load_generator_that_fails_is_quoted(generator: Callable[..., None], measure: Measure) -> None:
    generator(status=1, stderr="loadgen: bridge: the volume to validate: the driver is gone\n")

    with pytest.raises(NotMeasured, match=r"exit status 1.*the volume to validate: the driver is gone"):
        measure(_HERE, ("loadgen",))


def test_what_the_bridge_adds_is_the_difference_and_each_target_is_judged(generator: Callable[..., None]) -> None:
    generator(direct=_target(us=100), floor=_target(us=230), bridge=_target(us=700))

    rows = {figure.name: (figure.measured, figure.verdict) for figure in figures.calls(_HERE, ("loadgen",))}

    assert rows["added p50, one caller"] == ("0.60 ms (direct 0.10, bridge 0.70)", "ok")
    assert rows["added p99, one caller"] == ("1.20 ms (direct 0.20, bridge 1.40)", "ok")
    assert rows["the same through three relays that only copy bytes, p50"] == ("0.13 ms", "")
    assert rows["Create + Delete, one caller, 0.35 ms driver"][1] == "missed"
    assert rows["Create + Delete, 16 callers, 0.35 ms driver"][1] == "missed"


@pytest.mark.parametrize(("us", "verdict"), [(205_000, "ok"), (400_000, "missed"), (1_000, "missed")])
def test_a_call_takes_one_round_trip_and_less_means_that_the_link_did_not_delay(
    generator: Callable[..., None], us: float, verdict: str
) -> None:
    generator(bridge=_target(us=us))

    (figure,) = figures.round_trips(_HERE, ("loadgen",))

    assert figure.verdict == verdict


# ---- many edges ----------------------------------------------------------------------------------------------------


class _Hub:
    """A hub that has a size and a time, and notes what is done to it."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def cpu_s(self) -> float:
        return 1.0

    def rss_bytes(self) -> int:
        return 20_000_000

    def kill(self) -> None:
        self._log.append("kill")

    def start(self) -> None:
        self._log.append("start")


class _Edges(figures._Edges):
    """Edges that say one number after the other; no process is started."""

    def __init__(self, log: list[str], *up: int) -> None:
        super().__init__("ws://hub", None)
        self._log = log
        self._up = list(up)

    def _start(self, _count: int, *_flags: str) -> dict[str, Any]:
        return self._ask()

    def _ask(self) -> dict[str, Any]:
        up = self._up.pop(0)
        self._log.append(f"{up} up")
        return {"up": up, "seconds": 1.0, "retries": 0}


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Sets how many edges say they are up, each time they are asked; returns what happened. Time stands still."""

    def say(**up: tuple[int, ...]) -> list[str]:
        log: list[str] = []

        @contextmanager
        def hub(_directory: Path, name: str) -> Iterator[Any]:
            yield _Hub(log), _Edges(log, *up[name])

        monkeypatch.setattr(figures, "_hub", hub)
        monkeypatch.setattr("time.sleep", lambda _s: None)
        return log

    return say


def test_memory_is_divided_by_the_edges_that_are_there(edges: Callable[..., list[str]]) -> None:
    edges(plain=(2000, 2000), mTLS=(2000, 2000))

    plain, mtls = figures.idle_edges(_HERE, ())

    assert (plain.measured, plain.verdict) == (mtls.measured, mtls.verdict) == ("0.0 KB", "ok")


@pytest.mark.parametrize("up", [(1999,), (2000, 1999)], ids=["at first", "while the memory was read"])
def test_one_edge_that_is_away_leaves_no_figure_of_memory(edges: Callable[..., list[str]], up: tuple[int, ...]) -> None:
    edges(plain=up)

    with pytest.raises(NotMeasured, match="1999 of 2000 edges are up"):
        figures.idle_edges(_HERE, ())


def test_one_edge_that_never_came_leaves_no_figure_of_the_herd(edges: Callable[..., list[str]]) -> None:
    edges(plain=(9999,))

    with pytest.raises(NotMeasured, match="9999 of 10000 edges are up"):
        figures.herd(_HERE, ())


def test_agents_are_back_only_after_all_of_them_were_gone(edges: Callable[..., list[str]]) -> None:
    log = edges(plain=(10_000,), mTLS=(10_000,), restart=(0, 10_000, 10_000, 0, 7, 10_000))

    figures.herd(_HERE, ())

    assert log[2:] == ["0 up", "10000 up", "kill", "10000 up", "0 up", "start", "7 up", "10000 up"]
