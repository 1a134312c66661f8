"""A sidecar's call, as its callee sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from common.relay.server_call import CancelReason, ServerCall, in_task
from common.status import Code, Status
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from common.relay.pump import Taken


class Connection:
    """A stand-in for `server_connection.ServerConnection`: remembers what it was asked and told."""

    def __init__(self) -> None:
        self.told: list[Status] = []
        self.asked: list[BaseException | None] = []

    def send_message(self, call: ServerCall, message: bytes, taken: Taken) -> None:
        raise AssertionError("there is no message")

    def send_status(self, call: ServerCall, status: Status, taken: Taken) -> None:
        self.told.append(status)
        taken(True)

    def status_for(self, call: ServerCall, error: BaseException | None) -> Status:
        self.asked.append(error)
        return Status(Code.UNAVAILABLE, "a fault")


async def never_ends(_call: ServerCall) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("reason", "status", "asked"),
    [
        (CancelReason.CALLER_CANCELLED, Code.CANCELLED, []),
        (CancelReason.CALLER_LOST, Code.CANCELLED, []),
        (CancelReason.DEADLINE, Code.UNAVAILABLE, [asyncio.CancelledError]),
        (CancelReason.CLOSING, Code.UNAVAILABLE, [asyncio.CancelledError]),
    ],
)
async def test_a_call_that_was_cut_gets_the_servers_status_unless_its_caller_has_left(
    reason: CancelReason, status: Code, asked: list[type[BaseException]]
) -> None:
    connection = Connection()
    call = ServerCall(connection, 1, method="/a/B", request=b"", timeout_s=None)
    callee = in_task(never_ends)(call)
    await settle()
    call.cancelled_by = reason
    callee.cancelled()
    await settle()
    assert [type(error) for error in connection.asked] == asked
    assert [told.code for told in connection.told] == [status]
