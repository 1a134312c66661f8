"""Many calls at once: more than all sidecars can hold (contract A: 265), none refused, none in another's way."""

from tests.integration.conftest import Routed
from tests.kit.answers import volume
from tests.kit.forms import in_each_form
from tests.kit.requests import create

_CALLS = 300

_IDENTITY = (
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "ControllerGetCapabilities",
    "NodeGetCapabilities",
)


@in_each_form
def test_300_slow_calls_at_once_are_all_answered_and_every_identity_call_before_the_first_of_them(
    routed: Routed, name: str
) -> None:
    gate = routed.vendor.hold("CreateVolume")
    calls = [routed.sidecar.start("CreateVolume", create(f"{name}-{number}")) for number in range(_CALLS)]
    with routed.proxy.sidecar() as another:
        for sidecar in (routed.sidecar, another):
            for method in _IDENTITY * 5:
                assert sidecar.call(method).ok
    routed.vendor.wait_for_call("CreateVolume", _CALLS)
    assert not any(call.done for call in calls)
    gate.set()
    assert [call.outcome().answer for call in calls] == [volume(f"{name}-{number}") for number in range(_CALLS)]
    assert len(routed.vendor.calls("CreateVolume")) == _CALLS


def test_300_callers_of_one_operation_share_one_vendor_call(routed: Routed, name: str) -> None:
    gate = routed.vendor.hold("CreateVolume")
    calls = [routed.sidecar.start("CreateVolume", create(name)) for _ in range(_CALLS)]
    routed.vendor.wait_for_call("CreateVolume")
    assert routed.sidecar.call("GetCapacity").ok  # it came in behind them all
    gate.set()
    assert all(call.outcome().answer == volume(name) for call in calls)
    assert len(routed.vendor.calls("CreateVolume")) == 1
