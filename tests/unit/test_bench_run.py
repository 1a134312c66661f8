"""A run of the bench: which load generator it takes, and that a table says when it was a coarse one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import run
from bench.figures import Command, Figure, NotMeasured
from tests.peers.build import Module, module_of


@pytest.fixture
def loadgen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """The Go generator's module, on a machine without Go and with an empty cache; results go to `tmp_path`."""
    module = replace(module_of("loadgen"))  # another one, which does not know yet where the cache is
    monkeypatch.setattr(run, "module_of", lambda _name: module)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["run.py", "--only", "call", "--only", "size"])
    return module


def _measures(monkeypatch: pytest.MonkeyPatch, used: list[Command]) -> None:
    def call(_here: Path, command: Command) -> list[Figure]:
        used.append(command)
        return [Figure("added p50", "0.9 ms", "<= 0.8 ms", met=False)]

    def size(_here: Path, _command: Command) -> list[Figure]:
        return [Figure("edge agent", "30 MB", "<= 45 MB", met=True)]

    monkeypatch.setattr(run, "GROUPS", {"call": call, "size": size})


@pytest.mark.usefixtures("loadgen")
def test_without_go_the_load_comes_from_python_and_the_table_says_what_that_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[Command] = []
    _measures(monkeypatch, used)

    assert run.main() == 0

    said = capsys.readouterr()
    assert used == [run.COARSE]
    assert "go is not on PATH" in said.err
    assert "coarse: the load generator costs more than what it measures" in said.out
    assert "0.9 ms    <= 0.8 ms\n" in said.out, "a coarse time is judged by nobody"
    assert "30 MB     <= 45 MB   ok\n" in said.out
    assert json.loads((tmp_path / "results" / "latest.json").read_text())["coarse"] is True


def test_with_the_go_generator_in_the_cache_every_target_is_judged(
    loadgen: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[Command] = []
    _measures(monkeypatch, used)
    loadgen.directory.mkdir(parents=True)  # there, so complete

    assert run.main() == 0

    said = capsys.readouterr()
    assert used == [(str(loadgen.directory / "loadgen"),)]
    assert "coarse" not in said.out
    assert "<= 0.8 ms  missed\n" in said.out
    assert json.loads((tmp_path / "results" / "latest.json").read_text())["coarse"] is False


@pytest.mark.usefixtures("loadgen")
def test_a_figure_that_cannot_be_measured_ends_the_run_with_its_reason_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_here: Path, _command: Command) -> list[Figure]:
        raise NotMeasured("calls to bridge failed: UNAVAILABLE")

    _measures(monkeypatch, [])
    monkeypatch.setitem(run.GROUPS, "size", fails)

    assert run.main() == 1

    said = capsys.readouterr()
    assert "size: not measured: calls to bridge failed: UNAVAILABLE" in said.err
    assert "figure" not in said.out
    assert not (tmp_path / "results").exists()
