"""The figures of the hub in a cluster: what is made of what was seen, and rows that a machine cannot measure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench import sync_figures
from bench.figure import NotMeasured
from bench.sync_figures import Level
from tests.peers import build

if TYPE_CHECKING:
    from collections.abc import Callable


def _level(nodes: int, *, told_s: float = 0.1, fanned_s: float = 0.5) -> Level:
    return Level(
        nodes=nodes,
        told_s=[told_s / 2] * 98 + [told_s] * 2,
        fanned_s=[fanned_s] * nodes,
        idle_share=nodes / 5_000,
        api_share=0.5,
        change_ms=0.75,
        rss_bytes=nodes * 102_400,
    )


@pytest.mark.parametrize("measure", [sync_figures.changes, sync_figures.many_objects])
def test_without_the_api_server_the_rows_are_left_out_and_say_what_to_run(
    monkeypatch: pytest.MonkeyPatch, measure: Any
) -> None:
    monkeypatch.setattr(build, "find", lambda _name: None)

    (figure,) = measure(Path("/nowhere"), ("loadgen",))

    assert (figure.measured, figure.verdict) == ("left out: etcd is not built (make peers)", "")


def test_the_highest_level_is_judged_and_every_level_told() -> None:
    found = sync_figures.figures_of([_level(500, told_s=5.0), _level(2_000)])

    assert [(figure.measured, figure.verdict) for figure in found] == [
        ("100 ms (p50 50)", "ok"),
        ("500 ms (p50 500)", "ok"),
        ("200 us/s (10% of a core, API server 50%)", ""),
        ("100 KB", ""),
        ("200 us/s (40% of a core, API server 50%)", "missed"),
        ("100 KB", ""),
        ("p99 5000 / 100 ms; 0.8 / 0.8 ms of the hub's CPU", ""),
    ]


def test_a_change_that_takes_longer_than_a_second_is_missed() -> None:
    one, of_all, *_ = sync_figures.figures_of([_level(2_000, told_s=1.2, fanned_s=1.1)])

    assert (one.verdict, of_all.verdict) == ("missed", "missed")


class _Process:
    """A process that says these lines."""

    def __init__(self, *lines: str) -> None:
        self.stdin, self.stdout = io.StringIO(), io.StringIO("".join(f"{line}\n" for line in lines))


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> Callable[..., sync_figures._ToldEdges]:
    """Makes edges that say these lines, one after each command; no process is started."""

    def make(*lines: str) -> sync_figures._ToldEdges:
        monkeypatch.setattr("subprocess.Popen", lambda *_, **__: _Process(*lines))
        return sync_figures._ToldEdges("127.0.0.1:1")

    return make


def test_edges_are_up_when_all_of_them_hold_what_concerns_them(
    monkeypatch: pytest.MonkeyPatch, edges: Callable[..., sync_figures._ToldEdges]
) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)
    made = edges('{"up": 0, "in_step": 0}', '{"up": 2, "in_step": 1}', '{"up": 2, "in_step": 2}')

    made.up(2)

    assert isinstance(made._process.stdin, io.StringIO)
    assert made._process.stdin.getvalue() == "up 2\nstate\nstate\n"


def test_edges_whose_process_has_ended_leave_no_figure(edges: Callable[..., sync_figures._ToldEdges]) -> None:
    with pytest.raises(NotMeasured, match="simulated edges ended"):
        edges().ask("state")
