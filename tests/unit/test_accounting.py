"""What a hop notes of a call: a metric and one line, however it ended, and only after the answer has left."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.accounting import Accounted
from common.errors import CallTimeout, Draining, status_of
from common.metrics import Metrics
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.test")

CREATE = "/csi.v1.Controller/CreateVolume"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def account(metrics: Metrics, timeout_s: float | None = None) -> Accounted:
    return Accounted(metrics, log, origin=Origin.HUB, driver="d", method=CREATE, call_id="c-1", timeout_s=timeout_s)


def counted(metrics: Metrics, code: str) -> float | None:
    labels = {"driver_name": "d", "method_name": CREATE, "grpc_status_code": code}
    return metrics.registry.get_sample_value("csi_plugin_operations_seconds_count", labels)


def in_flight(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("csi_bridge_calls_in_flight")


async def test_a_call_is_counted_and_logged_after_its_answer(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    with account(metrics) as noted:
        noted.status = Status(Code.OK)
        assert in_flight(metrics) == 1
    assert in_flight(metrics) == 0
    assert (counted(metrics, "OK"), caplog.records) == (None, [])
    await asyncio.sleep(0)
    assert counted(metrics, "OK") == 1
    assert len(caplog.records) == 1


def leave(account: Accounted, after_s: float) -> None:
    """What a caller makes of its call's task when it does not wait any more."""
    with account as noted:
        noted.began -= after_s
        raise asyncio.CancelledError


@pytest.mark.parametrize("timeout_s", [None, 10.0])
async def test_a_caller_that_did_not_wait_is_counted_as_cancelled(metrics: Metrics, timeout_s: float | None) -> None:
    with pytest.raises(asyncio.CancelledError):
        leave(account(metrics, timeout_s), after_s=8.9)
    await asyncio.sleep(0)
    assert counted(metrics, "Canceled") == 1
    assert in_flight(metrics) == 0


@pytest.mark.parametrize("after_s", [9.1, 10.0, 11.0], ids=["the cancel was quicker than the open", "now", "long ago"])
async def test_a_caller_whose_time_was_up_is_counted_as_such_not_as_cancelled(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, after_s: float
) -> None:
    with pytest.raises(asyncio.CancelledError):
        leave(account(metrics, timeout_s=10.0), after_s)
    await asyncio.sleep(0)
    assert counted(metrics, "DeadlineExceeded") == 1
    assert "the caller's time was up" in str(caplog.records[0].__dict__)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ZeroDivisionError(), "Unavailable"), (Draining("hub"), "Unavailable"), (CallTimeout(), "DeadlineExceeded")],
)
async def test_an_error_that_nobody_caught_is_counted_as_what_its_caller_is_told(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, error: Exception, code: str
) -> None:
    with pytest.raises(type(error)), account(metrics, timeout_s=10.0):
        raise error
    await asyncio.sleep(0)
    assert counted(metrics, code) == 1
    assert status_of(error, Origin.HUB).message in str(caplog.records[0].__dict__)


async def test_a_call_without_an_answer_is_counted_as_what_its_caller_is_told(metrics: Metrics) -> None:
    with account(metrics):
        pass
    await asyncio.sleep(0)
    assert counted(metrics, "Unavailable") == 1


async def test_an_error_passes_through_and_the_status_set_before_counts(metrics: Metrics) -> None:
    def fail() -> None:
        with account(metrics) as noted:
            noted.status = Status(Code.UNAVAILABLE, "gone", Origin.HUB)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    await asyncio.sleep(0)
    assert counted(metrics, "Unavailable") == 1
