"""An earlier result: a figure is better or worse only if the two spreads do not touch, and what may spoil that."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench.earlier import compare, read_result
from bench.figure import Figure, of_samples


def _verdict(before: list[float], now: list[float], *, more_is_better: bool = False, blur: float = 0.1) -> str:
    both = [Figure("ratio", "", samples=each, more_is_better=more_is_better, blur=blur) for each in (before, now)]
    (row,) = compare({"ratio": both[0]}, [both[1]])
    return row.verdict


STEADY = [4.0, 4.1, 4.2, 4.1, 4.0]


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ([3.0, 3.1, 3.2, 3.1, 3.0], "better"),
        ([5.0, 5.1, 5.2, 5.1, 5.0], "worse"),
        ([3.0, 3.1, 4.0, 3.1, 3.0], "noise"),
        (STEADY, "noise"),
    ],
)
def test_the_spreads_decide(now: list[float], verdict: str) -> None:
    assert _verdict(STEADY, now) == verdict


def test_of_a_rate_more_is_better() -> None:
    assert _verdict([0.1] * 5, [0.2] * 5, more_is_better=True) == "better"
    assert _verdict([0.2] * 5, [0.1] * 5, more_is_better=True) == "worse"


def test_single_samples_differ_only_beyond_what_two_runs_of_the_same_code_differ() -> None:
    assert _verdict([50.0], [46.0]) == "noise"
    assert _verdict([50.0], [40.0]) == "better"


def test_two_runs_of_the_same_code_whose_rounds_each_agree_do_not_differ() -> None:
    assert _verdict([29.4, 28.3, 30.5, 29.5, 29.3], [27.2, 26.9, 27.7, 27.2, 27.3]) == "noise"


def test_a_count_is_nearly_exact_so_a_small_change_of_it_tells() -> None:
    assert _verdict([420.0], [400.0], blur=0.02) == "better"


def test_a_figure_that_one_run_does_not_have_is_not_compared() -> None:
    assert compare({}, [Figure("new", "1", samples=[1.0])]) == []
    assert compare({"words": Figure("words", "2 / 3")}, [Figure("words", "2 / 4")]) == []


def test_a_stored_result_is_read_back(tmp_path: Path) -> None:
    figure = of_samples("ratio", STEADY, "x", at_most=4, peers={"floor": "1 x"})
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps({"figures": [dataclasses.asdict(figure)]}))

    assert read_result(path).figures == {"ratio": figure}


def test_a_result_from_before_there_were_spreads_is_read_and_compared_with_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    row = {"name": "ratio", "measured": "4.0 x", "target": "", "met": None, "details": {}}
    path.write_text(json.dumps({"figures": [row]}))

    assert compare(read_result(path).figures, [of_samples("ratio", STEADY, "x")]) == []


@pytest.mark.parametrize("text", ["", "{}", '{"figures": [{"colour": "red"}]}', "[]"])
def test_a_file_that_is_no_result_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)

    with pytest.raises(ValueError, match="no result of the bench"):
        read_result(path)


def test_a_row_for_people_has_both_intervals() -> None:
    before = Figure("ratio", "", samples=[5.0] * 5)

    (row,) = compare({"ratio": before}, [Figure("ratio", "", samples=[4.0] * 5)])

    assert str(row) == "better  ratio: 5 (4.8 to 5.2) -> 4 (3.84 to 4.16)"


def test_what_spoils_a_comparison_is_told(tmp_path: Path) -> None:
    now = {"machine": {"cores": 2}, "coarse": False, "busy_percent": 3.0}
    path = tmp_path / "earlier.json"

    def told(**earlier: object) -> list[str]:
        path.write_text(json.dumps({**now, "figures": [], **earlier}))
        return read_result(path).doubts(now)

    assert told() == []
    assert told(machine={"cores": 8}) == ["the earlier result is of another machine: {'cores': 8}"]
    assert told(coarse=True) == ["the earlier result has another load generator, so times of a call do not compare"]
    assert told(busy_percent=60.0) == ["other work took 60 % of the machine in the earlier run"]
