"""The bench runs: a group's figures are printed and stored, and a group that fails costs no other group its figures."""

import json
from pathlib import Path

import pytest

from bench import call_path, run
from bench.chain import Command
from bench.figure import Figure, NotMeasured
from bench.session_pair import Pair, function_calls


def test_a_group_that_fails_says_why_in_its_row_and_the_others_are_measured_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(_here: Path, _command: Command) -> list[Figure]:
        raise NotMeasured("no answer\nlog")

    def size(_here: Path, _command: Command) -> list[Figure]:
        return [Figure("edge agent", "30 MB", "<= 45 MB", met=True)]

    monkeypatch.setattr(run, "GROUPS", {"call": run.Group(call, 4), "size": run.Group(size, 0.2)})
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["run.py"])
    monkeypatch.setattr("psutil.cpu_percent", lambda _seconds: 3.0)
    monkeypatch.setenv("PATH", "/nonexistent")  # without Go the load comes from Python
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert run.main() == 1

    said = capsys.readouterr().out
    assert "call: all rows  not measured: no answer\n" in said
    assert "30 MB                    <= 45 MB  ok\n" in said
    stored = json.loads((tmp_path / "results" / "latest.json").read_text())["figures"]
    assert [row["name"] for row in stored] == ["call: all rows", "edge agent"]


def test_each_file_of_the_call_path_exists() -> None:
    assert [str(path) for path in call_path.paths() if not path.exists()] == []


def test_the_pair_of_sessions_carries_calls() -> None:
    assert function_calls(Pair(), calls=3) > 0
