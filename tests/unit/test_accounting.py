"""What a hop notes of a call: a metric and one line, however it ended, and only after the answer has left."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.accounting import Accounted
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


def account(metrics: Metrics) -> Accounted:
    return Accounted(metrics, log, origin=Origin.HUB, driver="d", method=CREATE, call_id="c-1")


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


async def test_a_caller_that_did_not_wait_is_counted_as_cancelled(metrics: Metrics) -> None:
    with pytest.raises(asyncio.CancelledError), account(metrics):
        raise asyncio.CancelledError
    await asyncio.sleep(0)
    assert counted(metrics, "Canceled") == 1
    assert in_flight(metrics) == 0


async def test_an_error_passes_through_and_the_status_set_before_counts(metrics: Metrics) -> None:
    def fail() -> None:
        with account(metrics) as noted:
            noted.status = Status(Code.UNAVAILABLE, "gone", Origin.HUB)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    await asyncio.sleep(0)
    assert counted(metrics, "Unavailable") == 1
