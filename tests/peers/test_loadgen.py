"""The load generators of the bench, each on its own driver: they count what they did, and say what went wrong."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from bench.run import COARSE
from tests.kit.processes import listens_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.chain import Command
    from tests.kit.processes import Supervisor

_CREATE, _DELETE = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/DeleteVolume"


@pytest.fixture
def go_loadgen(peer: Callable[[str], Path]) -> Command:
    return (str(peer("loadgen")),)


@pytest.fixture(params=["go", "coarse"])
def loadgen(request: pytest.FixtureRequest) -> Command:
    """Either of the two; the coarse one needs no Go."""
    command: Command = COARSE if request.param == "coarse" else request.getfixturevalue("go_loadgen")
    return command


@pytest.fixture
def serve(loadgen: Command, supervisor: Supervisor) -> Callable[..., None]:
    def start(socket: Path, *flags: str) -> None:
        command = [*loadgen, "serve", f"--endpoint=unix://{socket}", *flags]
        supervisor.start(socket.stem, command, ready=lambda: listens_on(socket))

    return start


def _run(loadgen: Command, *flags: str) -> dict[str, Any]:
    done = subprocess.run([*loadgen, "run", "--warm-up=10ms", *flags], capture_output=True, check=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_two_sockets_take_turns_and_each_gets_its_count_of_operations(
    short_dir: Path, loadgen: Command, serve: Callable[..., None]
) -> None:
    quick, slow = short_dir / "quick.sock", short_dir / "slow.sock"
    serve(quick)
    serve(slow, "--delay=350us")

    sockets = [f"--socket=quick=unix://{quick}", f"--socket=slow=unix://{slow}"]
    report = _run(loadgen, "--callers=4", "--count=100", "--slice=5ms", *sockets)

    for name in ("quick", "slow"):
        target = report["targets"][name]
        assert target["operations"]["count"] == 100
        assert target["calls"] == 200
        assert {method: of["calls"] for method, of in target["methods"].items()} == {_CREATE: 100, _DELETE: 100}
        assert target["errors"] == {}
        assert 0 < target["latency_us"]["p50"] <= target["latency_us"]["p99"] <= target["latency_us"]["max"]
    assert report["targets"]["slow"]["latency_us"]["p50"] >= 350


@pytest.mark.parametrize("scenario", ["identity", "validate"])
def test_the_scenarios_of_one_call_make_one_call_an_operation(
    short_dir: Path, loadgen: Command, serve: Callable[..., None], scenario: str
) -> None:
    serve(short_dir / "d.sock")

    report = _run(loadgen, f"--scenario={scenario}", "--count=50", f"--socket=d=unix://{short_dir}/d.sock")

    target = report["targets"]["d"]
    assert (target["calls"], target["operations"]["count"], target["errors"]) == (50, 50, {})


def test_calls_that_fail_are_counted_by_code_and_not_among_the_latencies(short_dir: Path, loadgen: Command) -> None:
    report = _run(loadgen, "--scenario=identity", "--count=3", f"--socket=d=unix://{short_dir}/nobody.sock")

    target = report["targets"]["d"]
    assert target["errors"] == {"UNAVAILABLE": 3}
    assert target["calls"] == 0
    assert "no such " in target["error_messages"]["UNAVAILABLE"]


@pytest.mark.parametrize("loadgen", ["go"], indirect=True)
def test_a_message_of_three_megabytes_can_be_asked_for(
    short_dir: Path, loadgen: Command, serve: Callable[..., None]
) -> None:
    serve(short_dir / "d.sock")

    report = _run(loadgen, "--count=2", "--padding=3000000", f"--socket=d=unix://{short_dir}/d.sock")

    assert report["targets"]["d"]["errors"] == {}
    assert report["targets"]["d"]["calls"] == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no --socket NAME=unix:///path given"),
        (["--socket=/d.sock"], "is not NAME=unix:///path"),
        (["--socket=d=unix:///d.sock", "--scenario=sing"], 'no scenario is called "sing"'),
        (["--socket=d=unix:///d.sock", "--callers=0"], "--callers, --slice and --duration are above zero"),
    ],
)
def test_a_wrong_flag_is_refused_with_its_reason(go_loadgen: Command, flags: list[str], message: str) -> None:
    done = subprocess.run([*go_loadgen, "run", *flags], capture_output=True, check=False, text=True)

    assert done.returncode != 0
    assert message in done.stderr
