"""The audit log: a line for each event, with a line limit for what peers cause."""

import io
import json
from typing import Any

import pytest

from cloud.trust import audit
from cloud.trust.audit import Event
from common.observe import logs
from common.observe.line_limit import BURST

Lines = "Callable[[], list[dict[str, Any]]]"


@pytest.fixture
def lines() -> Lines:
    stream = io.StringIO()
    handler = logs.configure(log_format="json", level="info", stream=stream)

    def read() -> list[dict[str, Any]]:
        handler.close()
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    return read


def test_a_line_says_when_what_who_from_where_and_its_details(lines: Lines) -> None:
    audit.add(Event.JOIN, who="n1", address="192.0.2.1:999", generation=1, drivers=["a.example", "b.example"], why="")
    (line,) = lines()
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "csi_bridge.audit",
        "msg": "join",
        "event": "join",
        "who": "n1",
        "address": "192.0.2.1:999",
        "generation": 1,
        "drivers": "a.example, b.example",
    }


def test_a_peers_long_text_is_cut(lines: Lines) -> None:
    audit.add(Event.REFUSAL, who="n" * 10_000)
    (line,) = lines()
    assert len(line["who"]) == 2_001


def test_a_peer_that_repeats_itself_leaves_the_other_lines_alone(lines: Lines) -> None:
    for _ in range(5_000):
        audit.add(Event.ADMISSION, who="n1")
    audit.add(Event.ADMISSION, who="n2")
    found = lines()
    assert [line["who"] for line in found] == ["n1"] * BURST + ["n2", "n1"]
    assert found[-1]["msg"] == f"admission … and {5_000 - BURST - 1:,} more"


def test_no_order_of_an_operator_is_left_out(lines: Lines) -> None:
    for _ in range(2 * BURST):
        audit.add(Event.ORDER, who="operator")
    assert len(lines()) == 2 * BURST
