"""What a hop notes of a call: a metric and one line, however it ended."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from common import logs
from common.accounting import Account, Accounts
from common.errors import CallTimeout, Draining, status_of
from common.exposition import registry_of
from common.metrics import Metrics
from common.status import Code, Origin, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@pytest.fixture(autouse=True)
def _no_call_afterwards() -> Iterator[None]:
    """A block without a task binds its call to the test run."""
    yield
    logs._about.set(None)


def begin(metrics: Metrics, timeout_s: float | None = None) -> Account:
    return Accounts(metrics, log, origin=Origin.HUB).begin("d", CREATE, "c-1", timeout_s=timeout_s)


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


def test_only_the_first_end_of_a_call_counts(metrics: Metrics, lines: Lines) -> None:
    account = begin(metrics)
    account.end(Status(Code.OK))
    account.end(Status(Code.INTERNAL))
    account.leave()
    account.fail(None)
    assert (in_flight(metrics), counted(metrics, "OK"), counted(metrics, "Internal")) == (0, 1, None)
    assert len(lines()) == 1


def test_a_block_ends_the_call_with_the_status_that_it_set(metrics: Metrics) -> None:
    with begin(metrics) as account:
        account.status = Status(Code.OK)
        assert in_flight(metrics) == 1
    assert (in_flight(metrics), counted(metrics, "OK")) == (0, 1)


async def test_a_line_inside_the_block_has_the_calls_fields_and_one_outside_has_none(
    metrics: Metrics, lines: Lines
) -> None:
    async def serve() -> None:
        with begin(metrics):
            log.info("inside")

    await asyncio.create_task(serve())
    log.info("outside")
    inside, finished, outside = lines()
    assert inside["call_id"] == finished["call_id"] == "c-1"
    assert "call_id" not in outside


def leave(account: Account, after_s: float) -> None:
    """What a caller makes of its call's task when it does not wait any more."""
    with account:
        account.began -= after_s
        raise asyncio.CancelledError


@pytest.mark.parametrize("timeout_s", [None, 10.0])
def test_a_caller_that_did_not_wait_is_counted_as_cancelled(metrics: Metrics, timeout_s: float | None) -> None:
    with pytest.raises(asyncio.CancelledError):
        leave(begin(metrics, timeout_s), after_s=8.9)
    assert counted(metrics, "Canceled") == 1
    assert in_flight(metrics) == 0


@pytest.mark.parametrize("after_s", [9.1, 10.0, 11.0], ids=["the cancel was quicker than the open", "now", "long ago"])
def test_a_caller_whose_time_was_up_is_counted_as_such_not_as_cancelled(
    metrics: Metrics, lines: Lines, after_s: float
) -> None:
    with pytest.raises(asyncio.CancelledError):
        leave(begin(metrics, timeout_s=10.0), after_s)
    assert counted(metrics, "DeadlineExceeded") == 1
    assert (lines()[0]["origin"], lines()[0]["status"]) == ("hub", "the caller's time was up")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ZeroDivisionError(), "Unavailable"), (Draining("hub"), "Unavailable"), (CallTimeout(), "DeadlineExceeded")],
)
def test_an_error_that_nobody_caught_is_counted_as_what_its_caller_is_told(
    metrics: Metrics, lines: Lines, error: Exception, code: str
) -> None:
    with pytest.raises(type(error)), begin(metrics, timeout_s=10.0):
        raise error
    assert counted(metrics, code) == 1
    assert lines()[0]["status"] == status_of(error, Origin.HUB).message


def test_a_call_without_an_answer_is_counted_as_what_its_caller_is_told(metrics: Metrics) -> None:
    with begin(metrics):
        pass
    assert counted(metrics, "Unavailable") == 1


def test_an_error_passes_through_and_the_status_set_before_counts(metrics: Metrics) -> None:
    def fail() -> None:
        with begin(metrics) as account:
            account.status = Status(Code.UNAVAILABLE, "gone", Origin.HUB)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert counted(metrics, "Unavailable") == 1
