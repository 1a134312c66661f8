"""The memory of a call is free at its end: it waits for no garbage collection, before which come thousands of calls."""

import asyncio
import gc
from pathlib import Path

from common.status import Code
from tests.kit.forms import slow_in_hub
from tests.kit.local_bridge import LocalBridge
from tests.kit.requests import create, create_of_bytes
from tests.kit.vendor import Vendor

_ENDS = {
    "answered": ("CreateVolume", create("v")),
    "refused": ("DeleteVolume", None),
    "plain": ("GetCapacity", None),
    "large": ("CreateVolume", create_of_bytes("w", 1_000_000)),
    "invalid": ("CreateSnapshot", None),
    "late": ("ListVolumes", None),
}


@slow_in_hub
async def test_a_call_that_has_ended_is_in_no_cycle_of_references(
    short_dir: Path, vendor: Vendor, *, in_hub: bool
) -> None:
    vendor.refuse("DeleteVolume", Code.NOT_FOUND, "there is none")
    vendor.on("CreateSnapshot", lambda _: b"\xff\xff\xff this is no protobuf")
    gate = vendor.hold("ListVolumes")
    async with LocalBridge(short_dir, vendor.socket, in_hub=in_hub) as bridge:
        for how, (method, message) in _ENDS.items():
            request = b"" if message is None else message.SerializeToString()
            timeout_s = 0.3 if how == "late" else None
            await bridge.call(method, request, timeout_s=timeout_s)
            await asyncio.sleep(0.1)  # until the last acknowledgement
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.disable()
            try:
                await bridge.call(method, request, timeout_s=timeout_s)
                await asyncio.sleep(0.1)
                gc.collect()
                found = {f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage}
            finally:
                gc.enable()
                gc.set_debug(0)
                gc.garbage.clear()
            assert {name for name in found if name.startswith(("cloud.", "common.", "edge."))} == set(), how
        gate.set()
