"""A table: the same figures for the terminal and for the page, and the places of the page that they replace."""

import pytest

from bench.figure import Figure, of_samples
from bench.run import GROUPS, PAGE
from bench.tables import as_markdown, as_text, replaced

TIMES = "\N{MULTIPLICATION SIGN}"
FIGURES = [
    of_samples("added p50 by the floor's", [7.0, 8.0, 8.1, 8.2, 9.0], "x", at_most=4, peers={"ssh -L": "1.25 x"}),
    of_samples("CPU a call, hub", [120.0], "us", at_most=130, note="1.10 -> 1.20 ms", digits=0),
    Figure("edge agent", "left out: only root can mount"),
]


def test_the_terminal_s_table_has_the_verdict_and_the_peers() -> None:
    lines = as_text(FIGURES).splitlines()

    assert lines[3].startswith("added p50 by the floor's  8.10 x, 7.00 to 9.00")
    assert lines[3].endswith("<= 4 x     missed  ssh -L: 1.25 x")
    assert lines[4].endswith("<= 130 us  ok")
    assert lines[5].endswith("left out: only root can mount")


def test_the_page_s_table_marks_a_missed_limit_and_uses_the_page_s_signs() -> None:
    assert as_markdown(FIGURES).splitlines() == [
        "| figure | limit | peers | ours |",
        "|---|---|---|---|",
        f"| added p50 by the floor's | ≤ 4 {TIMES} | ssh -L: 1.25 {TIMES} | 8.10 {TIMES}, 7.00 to 9.00 **missed** |",
        "| CPU a call, hub | ≤ 130 µs | - | 120 µs (1.10 → 1.20 ms) |",
        "| edge agent | - | - | left out: only root can mount |",
    ]


def test_only_the_measured_groups_are_replaced() -> None:
    page = "# Page\n<!-- bench: call -->\nold\n<!-- end -->\nwords\n<!-- bench: link -->\nkept\n<!-- end -->\n"

    assert replaced(page, {"call": "new\n"}) == page.replace("old", "new")
    assert replaced(page.replace("old\n", ""), {"call": "new\n"}) == page.replace("old", "new")


def test_a_group_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for link"):
        replaced("<!-- bench: call -->\n<!-- end -->\n", {"link": ""})


def test_the_real_page_has_a_place_for_every_group() -> None:
    replaced(PAGE.read_text(), dict.fromkeys(GROUPS, ""))
