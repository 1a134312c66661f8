"""What a hop notes of a call: a metric and one line, however it ended."""

import asyncio
import io
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import CallTimeout, shutting_down, status_of
from common.observe import logs
from common.observe.accounting import Account, Accounts
from common.observe.exposition import registry_of
from common.observe.metrics import Metrics
from common.status import Code, Origin, Status

Lines = Callable[[], list[dict[str, Any]]]

log = logging.getLogger("csi_bridge.test")

CREATE = "/csi.v1.Controller/CreateVolume"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def lines() -> Lines:
    stream = io.StringIO()
    handler = logs.configure(log_format="json", level="info", stream=stream)

    def written() -> list[dict[str, Any]]:
        handler.flush()
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    return written


def begin(metrics: Metrics, timeout_s: float | None = None) -> Account:
    return Account(Accounts(metrics, log, origin=Origin.HUB), "d", CREATE, "c-1", "", timeout_s=timeout_s)


def counted(metrics: Metrics, code: str) -> float | None:
    labels = {"driver_name": "d", "method_name": CREATE, "grpc_status_code": code}
    return registry_of(metrics).get_sample_value("csi_plugin_operations_seconds_count", labels)


def in_flight(metrics: Metrics) -> float | None:
    return registry_of(metrics).get_sample_value("csi_bridge_calls_in_flight")


def test_a_call_needs_no_task_and_no_block_to_be_counted_and_logged(metrics: Metrics, lines: Lines) -> None:
    account = begin(metrics)
    account.node, account.request_bytes, account.response_bytes = "n1", 3, 4
    assert (in_flight(metrics), counted(metrics, "OK")) == (1, None)
    account.end(Status(Code.OK))
    assert (in_flight(metrics), counted(metrics, "OK")) == (0, 1)
    (line,) = lines()
    del line["ts"], line["duration_ms"]
    assert line == {
        "level": "info",
        "logger": "csi_bridge.test",
        "msg": "call finished",
        "node": "n1",
        "driver": "d",
        "method": CREATE,
        "call_id": "c-1",
        "code": "OK",
        "request_bytes": 3,
        "response_bytes": 4,
    }


def test_a_line_that_waits_keeps_no_long_method_and_no_long_message(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(logs, "calls", SimpleNamespace(add=waiting.append))
    account = Account(
        Accounts(metrics, log, origin=Origin.HUB), "d", "/csi.v1.X/" + "y" * 250_000, "c-1", "", timeout_s=None
    )
    account.end(Status(Code.INTERNAL, "z" * 250_000))
    assert len(str(waiting)) < 3 * logs.LONGEST_MESSAGE_CHARS


def test_only_the_first_end_of_a_call_counts(metrics: Metrics, lines: Lines) -> None:
    account = begin(metrics)
    account.end(Status(Code.OK))
    account.end(Status(Code.INTERNAL))
    account.leave()
    account.fail(None)
    assert (in_flight(metrics), counted(metrics, "OK"), counted(metrics, "Internal")) == (0, 1, None)
    assert len(lines()) == 1


def leave(account: Account, after_s: float) -> None:
    """The task of a call is cancelled after so long: its caller does not wait any more."""
    account.began -= after_s
    account.fail(asyncio.CancelledError())


@pytest.mark.parametrize("timeout_s", [None, 10.0])
def test_a_caller_that_did_not_wait_is_counted_as_cancelled(metrics: Metrics, timeout_s: float | None) -> None:
    leave(begin(metrics, timeout_s), after_s=8.9)
    assert counted(metrics, "Canceled") == 1
    assert in_flight(metrics) == 0


@pytest.mark.parametrize("after_s", [9.1, 10.0, 11.0], ids=["the cancel was quicker than the open", "now", "long ago"])
def test_a_caller_whose_time_was_up_is_counted_as_such_not_as_cancelled(
    metrics: Metrics, lines: Lines, after_s: float
) -> None:
    leave(begin(metrics, timeout_s=10.0), after_s)
    assert counted(metrics, "DeadlineExceeded") == 1
    assert (lines()[0]["origin"], lines()[0]["status"]) == ("hub", "the caller's time was up")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ZeroDivisionError(), "Unavailable"), (shutting_down("hub"), "Unavailable"), (CallTimeout(), "DeadlineExceeded")],
)
def test_an_error_that_nobody_caught_is_counted_as_what_its_caller_is_told(
    metrics: Metrics, lines: Lines, error: Exception, code: str
) -> None:
    begin(metrics, timeout_s=10.0).fail(error)
    assert counted(metrics, code) == 1
    assert lines()[0]["status"] == status_of(error, Origin.HUB).message
