"""The load generators of the bench, each on its own driver: they count what they did, and say what went wrong."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.chain import Command, relays, shortest
from bench.run import COARSE
from tests.kit.certificates import Authority
from tests.kit.processes import Supervisor, listens_on

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


@pytest.mark.slow
def test_the_floor_and_the_shortest_bridge_carry_calls_with_tls_and_without(
    short_dir: Path, loadgen: Command, serve: Callable[..., None]
) -> None:
    vendor = short_dir / "v.sock"
    serve(vendor)

    for number, authority in enumerate((None, Authority(short_dir))):
        for way in (relays, shortest):
            with way(short_dir / f"{way.__name__}{number}", vendor, authority) as (socket, _):
                report = _run(loadgen, "--callers=16", "--count=200", f"--socket=it=unix://{socket}")
            assert report["targets"]["it"]["errors"] == {}
            assert report["targets"]["it"]["operations"]["count"] == 200
