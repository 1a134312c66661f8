"""A run of the bench: its load generator, its groups, and where their figures go."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bench import run
from bench.chain import Command
from bench.figure import Figure, NotMeasured
from bench.tables import replaced
from tests.kit.waiting import NeverCameError
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

    monkeypatch.setattr(run, "GROUPS", {"call": run.Group(call, 4), "size": run.Group(size, 0.2)})


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
@pytest.mark.parametrize(
    "error", [NotMeasured("no answer\nlog"), NeverCameError("no answer\nlog"), OSError("no answer")]
)
def test_a_group_that_fails_says_why_in_its_row_and_costs_no_other_group_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fails(_here: Path, _command: Command) -> list[Figure]:
        raise error

    _measures(monkeypatch, [])
    monkeypatch.setitem(run.GROUPS, "call", run.Group(fails, 4))

    assert run.main() == 1

    said = capsys.readouterr()
    assert "call: all rows  not measured: no answer\n" in said.out
    assert "30 MB                    <= 45 MB  ok\n" in said.out
    stored = json.loads((tmp_path / "results" / "latest.json").read_text())["figures"]
    assert [(row["name"], row["samples"]) for row in stored] == [("call: all rows", []), ("edge agent", [])]


@pytest.mark.usefixtures("loadgen")
def test_a_run_says_at_the_start_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _measures(monkeypatch, [])

    assert run.main() == 0

    said = capsys.readouterr().err
    assert "groups of figures: 2; this takes about 4 minutes\n" in said
    assert "1 of 2: call, about 4 minutes\n" in said
    assert "2 of 2: size, about 12 seconds\n" in said


@pytest.mark.usefixtures("loadgen")
def test_a_stopped_run_stores_nothing_and_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places: list[Path] = []

    def stopped(here: Path, _command: Command) -> list[Figure]:
        places.append(here)
        run._stop(signal.SIGINT, None)

    _measures(monkeypatch, [])
    monkeypatch.setitem(run.GROUPS, "call", run.Group(stopped, 4))
    ignored: dict[int, object] = {}
    monkeypatch.setattr("signal.signal", ignored.__setitem__)

    assert run.main() == 130

    assert "stopped: nothing is stored or written" in capsys.readouterr().err
    assert ignored == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}, "a second Ctrl-C changes nothing"
    assert not places[0].parent.exists()
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
    size = run.Group(lambda *_: [Figure("agent", "MB", samples=[sizes.pop(0)])], 0.2)
    monkeypatch.setattr(run, "GROUPS", {"size": size})
    monkeypatch.setattr("sys.argv", ["run.py"])
    assert run.main() == 0
    latest = tmp_path / "results" / "latest.json"
    monkeypatch.setattr("sys.argv", ["run.py", "--against", str(latest)])

    assert run.main() == 0

    assert "better  agent: 55 (49.5 to 60.5) -> 40 (36 to 44)\n" in capsys.readouterr().out
    assert json.loads(latest.read_text())["figures"][0]["samples"] == [40.0]


@pytest.mark.usefixtures("loadgen")
@pytest.mark.parametrize("text", [None, "", "[]", '{"figures": [{"nom": 1}]}'])
def test_an_earlier_result_that_is_none_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    used: list[Command] = []
    _measures(monkeypatch, used)
    earlier = tmp_path / "earlier.json"
    if text is not None:
        earlier.write_text(text)
    monkeypatch.setattr("sys.argv", ["run.py", "--against", str(earlier)])

    with pytest.raises(SystemExit):
        run.main()

    assert f"argument --against: {'[Errno 2]' if text is None else earlier}" in capsys.readouterr().err
    assert not used


def test_the_page_has_a_place_for_each_group() -> None:
    assert replaced(run.PAGE.read_text(), dict.fromkeys(run.GROUPS, "row\n")).count("row\n") == len(run.GROUPS)


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


@pytest.mark.usefixtures("loadgen")
def test_a_group_that_fails_keeps_its_table_in_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_here: Path, _command: Command) -> list[Figure]:
        raise NotMeasured("no answer")

    _measures(monkeypatch, [])
    monkeypatch.setitem(run.GROUPS, "call", run.Group(fails, 4))
    page = tmp_path / "performance.md"
    page.write_text("<!-- bench: call -->\nold\n<!-- end -->\n<!-- bench: size -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(run, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["run.py", "--write"])

    assert run.main() == 1

    assert "(except for call, which failed)" in capsys.readouterr().out
    assert page.read_text().startswith("<!-- bench: call -->\nold\n<!-- end -->\n")
    assert "30 MB" in page.read_text()
