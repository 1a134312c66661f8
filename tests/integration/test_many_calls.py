"""Many calls at once: more than all sidecars can hold (contract A: 265), none refused, none in another's way."""

import time

from common.csi import csi_pb2
from tests.integration.conftest import World
from tests.support.answers import volume
from tests.support.requests import create
from tests.support.vendor import VendorCall

_CALLS = 300
_EACH_TAKES_S = 2.0

_IDENTITY = (
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "ControllerGetCapabilities",
    "NodeGetCapabilities",
)


def test_300_slow_calls_at_once_are_all_answered_and_every_identity_call_before_the_first_of_them(
    world: World, name: str
) -> None:
    def slow(call: VendorCall) -> csi_pb2.CreateVolumeResponse:
        time.sleep(_EACH_TAKES_S)
        return volume(call.request.name)

    world.vendor.on("CreateVolume", slow)
    ended: list[str] = []
    calls = [world.sidecar.start("CreateVolume", create(f"{name}-{number}")) for number in range(_CALLS)]
    for call in calls:
        call.when_done(lambda: ended.append("CreateVolume"))
    with world.proxy.sidecar() as another:
        for sidecar in (world.sidecar, another):
            for method in _IDENTITY * 5:
                assert sidecar.call(method).ok
                ended.append(method)
    outcomes = [call.outcome() for call in calls]
    assert [outcome.answer for outcome in outcomes] == [volume(f"{name}-{number}") for number in range(_CALLS)]
    assert len(world.vendor.calls("CreateVolume")) == _CALLS
    identity_calls = 2 * 5 * len(_IDENTITY)
    assert "CreateVolume" not in ended[:identity_calls]
    assert ended[identity_calls:] == ["CreateVolume"] * _CALLS


def test_300_callers_of_one_operation_share_one_vendor_call(world: World, name: str) -> None:
    gate = world.vendor.hold("CreateVolume")
    calls = [world.sidecar.start("CreateVolume", create(name)) for _ in range(_CALLS)]
    world.vendor.wait_for_call("CreateVolume")
    assert world.sidecar.call("GetCapacity").ok  # it came in behind them all
    gate.set()
    assert all(call.outcome().answer == volume(name) for call in calls)
    assert len(world.vendor.calls("CreateVolume")) == 1
