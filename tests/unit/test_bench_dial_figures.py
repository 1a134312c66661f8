"""Figures of links: nothing is made of edges that did not come, and the herd restarts in the right order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import dial_figures
from bench.figure import NotMeasured

_HERE = Path("/nowhere")


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


class _Edges(dial_figures._Edges):
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

        monkeypatch.setattr(dial_figures, "_hub", hub)
        monkeypatch.setattr("time.sleep", lambda _s: None)
        return log

    return say


def test_memory_is_divided_by_the_edges_that_are_there(edges: Callable[..., list[str]]) -> None:
    edges(plain=(2000, 2000), mTLS=(2000, 2000))

    plain, mtls = dial_figures.idle_edges(_HERE, ())

    assert (plain.measured, plain.verdict) == (mtls.measured, mtls.verdict) == ("0.0 KB", "ok")


@pytest.mark.parametrize("up", [(1999,), (2000, 1999)], ids=["at first", "while the memory was read"])
def test_one_edge_that_is_away_leaves_no_figure_of_memory(edges: Callable[..., list[str]], up: tuple[int, ...]) -> None:
    edges(plain=up)

    with pytest.raises(NotMeasured, match="1999 of 2000 edges are up"):
        dial_figures.idle_edges(_HERE, ())


def test_one_edge_that_never_came_leaves_no_figure_of_the_herd(edges: Callable[..., list[str]]) -> None:
    edges(plain=(9999,))

    with pytest.raises(NotMeasured, match="9999 of 10000 edges are up"):
        dial_figures.herd(_HERE, ())


def test_agents_are_back_only_after_all_of_them_were_gone(edges: Callable[..., list[str]]) -> None:
    log = edges(plain=(10_000,), mTLS=(10_000,), restart=(0, 10_000, 10_000, 0, 7, 10_000))

    dial_figures.herd(_HERE, ())

    assert log[2:] == ["0 up", "10000 up", "kill", "10000 up", "0 up", "start", "7 up", "10000 up"]


def test_the_hub_s_work_for_dials_with_tls_is_judged_and_their_time_is_told(edges: Callable[..., list[str]]) -> None:
    edges(plain=(10_000,), mTLS=(10_000,), restart=(0, 10_000, 10_000, 0, 10_000))

    rows = {figure.name: figure.verdict for figure in dial_figures.herd(_HERE, ())}

    assert rows["10,000 edges dial, 1,000 at once, mTLS"] == ""
    assert rows["10,000 edges dial, 1,000 at once, mTLS: hub CPU"] == "ok"
