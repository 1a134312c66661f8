"""A run of the bench: which load generator it takes, and that a table says when it was a coarse one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import run
from bench.chain import Command
from bench.figure import Figure, NotMeasured
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
    monkeypatch.setattr("psutil.cpu_percent", lambda _seconds: 3.0)
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
    assert "0.9 ms  <= 0.8 ms\n" in said.out, "a coarse time is judged by nobody"
    assert "30 MB   <= 45 MB   ok\n" in said.out
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


@pytest.mark.usefixtures("loadgen")
def test_a_busy_machine_is_told_and_stored_because_it_distorts_ratios_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _measures(monkeypatch, [])
    monkeypatch.setattr("psutil.cpu_percent", lambda _seconds: 60.0)

    assert run.main() == 0

    assert "other work takes 60 % of this machine" in capsys.readouterr().err
    assert json.loads((tmp_path / "results" / "latest.json").read_text())["busy_percent"] == 60.0


@pytest.mark.usefixtures("loadgen")
def test_a_run_against_an_earlier_result_says_what_became_better_and_may_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [55.0, 40.0]
    monkeypatch.setattr(run, "GROUPS", {"size": lambda *_: [Figure("agent", "MB", samples=[sizes.pop(0)])]})
    monkeypatch.setattr("sys.argv", ["run.py"])
    assert run.main() == 0
    latest = tmp_path / "results" / "latest.json"
    monkeypatch.setattr("sys.argv", ["run.py", "--against", str(latest)])

    assert run.main() == 0

    assert "better  agent: 55 (49.5 to 60.5) -> 40 (36 to 44)\n" in capsys.readouterr().out
    assert json.loads(latest.read_text())["figures"][0]["samples"] == [40.0]


@pytest.mark.usefixtures("loadgen")
def test_the_tables_go_into_the_page_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _measures(monkeypatch, [])
    page = tmp_path / "performance.md"
    empty = "<!-- bench: call -->\n<!-- end -->\n<!-- bench: size -->\n<!-- end -->\n"
    page.write_text(empty)
    monkeypatch.setattr(run, "PAGE", page)

    assert run.main() == 0
    assert page.read_text() == empty

    monkeypatch.setattr("sys.argv", ["run.py", "--write"])
    assert run.main() == 0
    assert "| edge agent | ≤ 45 MB | - | 30 MB |\n<!-- end -->" in page.read_text()
