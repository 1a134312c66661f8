"""The doctor's checks of an election: who serves, who could take over, patterns without a node, clock and lease."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cli.doctor.elections import check_election
from cli.doctor.finding import Level
from common.pages.hub import ElectionStatus

NOW = 1_700_000_000.0


def election(**changes: Any) -> ElectionStatus:
    usual: dict[str, Any] = {
        "driver": "d.example",
        "node": "n1",
        "epoch": int(NOW) - 60,
        "since": datetime(2023, 11, 14, tzinfo=UTC),
        "why": "first election",
        "trouble": "",
        "lease_s": 60,
        "standby": ["n2"],
    }
    return ElectionStatus(**usual | changes)


def found(**changes: Any) -> list[tuple[Level, str]]:
    return [(it.level, it.what) for it in check_election(election(**changes), now=NOW)]


def test_an_election_with_a_node_that_could_take_over_is_well() -> None:
    assert found() == [(Level.OK, "edge node n1 serves driver d.example, and n2 can take over")]


def test_without_an_elected_node_the_reason_is_told() -> None:
    trouble = "edge node n1 is not among --candidates"
    assert found(node="", epoch=0, since=None, trouble=trouble, standby=[]) == [
        (Level.WRONG, f"no node serves driver d.example: {trouble}")
    ]


def test_a_single_node_is_a_warning_with_the_reasons_of_the_others() -> None:
    what = "edge node n1 serves driver d.example, and no other node can take over"
    old = "announces no usable --controller-lease"
    assert found(standby=[], unfit={"n2": old, "n3": "is away"}) == [
        (
            Level.WARNING,
            f"{what}: edge node n2 {old}; edge node n3 is away",
        )
    ]


def test_an_elected_node_that_does_not_serve_is_wrong_only_if_no_other_one_can_take_over() -> None:
    what = "edge node n1 is elected to serve driver d.example, and is away"
    assert found(trouble="is away") == [(Level.WARNING, f"{what}; calls wait")]
    assert found(trouble="is away", standby=[], unfit={"n2": "drains"}) == [
        (Level.WRONG, f"{what}; no other node can take over: edge node n2 drains")
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unmatched": ["label:zone=b", "gw-*"]}, "no node that runs driver d.example fits label:zone=b, gw-*"),
        ({"lease_s": 3600}, "a controller lease of 3600 s"),
        ({"epoch": int(NOW) + 500}, "500 s ahead of the hub's clock: the clock was set back"),
    ],
)
def test_patterns_without_a_node_long_leases_and_a_clock_that_was_set_back_are_warnings(
    changes: dict[str, Any], words: str
) -> None:
    _, (level, what) = found(**changes)
    assert level == Level.WARNING
    assert words in what
