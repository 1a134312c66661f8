"""What the caller is told when a handler fails."""

import errno
import sqlite3
from pathlib import Path

import grpc
import pytest

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from examples.dirdriver.errors import CsiError
from tests.kit.testdriver import calls
from tests.kit.testdriver.call_log import CallLog
from tests.kit.testdriver.faults import Faults


def told(error: Exception) -> CsiError:
    return calls._translated("CreateVolume", error)


def test_an_error_of_the_driver_is_told_as_it_is() -> None:
    error = errors.not_found("volume vol-1 does not exist")

    assert told(error) is error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_exhausts_the_resource(number: int) -> None:
    assert told(OSError(number, "no space")).code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "/state/s3cret"), KeyError("s3cret"), sqlite3.OperationalError("database is locked")],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_that_nobody_foresaw_is_unavailable_so_that_no_sidecar_takes_it_for_final(error: Exception) -> None:
    failure = told(error)

    assert failure.code is grpc.StatusCode.UNAVAILABLE
    assert "s3cret" not in failure.message


def test_a_driver_that_forgets_sees_another_name_each_time_within_the_specs_limit() -> None:
    made = calls.Calls(faults=Faults([], Path("/nonexistent")), call_log=CallLog(None))
    request = pb.CreateVolumeRequest(name="x" * 128)

    names = {made._renamed_request(request).name for _ in range(3)}

    assert len(names) == 3
    assert all(len(name) == 128 for name in names)
    assert request.name == "x" * 128
