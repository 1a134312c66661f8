"""Faults in the recording of a call's outcome are in the log, also when nobody waits for the answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cloud.placement.carry import CarriedCall
from cloud.placement.decisions import Keeping
from common.status import Code, Status
from tests.kit.waiting import settle

if TYPE_CHECKING:
    import pytest


async def test_a_fault_of_the_store_is_logged_although_the_caller_has_left(caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()

    async def record() -> None:
        await gate.wait()
        raise RuntimeError("the store has a bug")

    placed = SimpleNamespace(
        ask=SimpleNamespace(method="/csi.v1.Controller/DeleteVolume"),
        send=SimpleNamespace(keeping=Keeping.FIRST),
        attempt=None,
        pending=SimpleNamespace(record=lambda _untaken: None),
        record=lambda *_: record(),
    )
    call = CarriedCall(cast("Any", placed), cast("Any", None))
    call.reply = cast("Any", SimpleNamespace(cancel=lambda: None))
    call.ended(Status(Code.OK), None)
    call.cancel()
    gate.set()
    await settle()
    (record_,) = caplog.records
    assert record_.getMessage().startswith("the outcome of /csi.v1.Controller/DeleteVolume was not recorded")
