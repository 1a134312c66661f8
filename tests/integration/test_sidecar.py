"""The sidecar that the tests call with."""

from tests.kit.requests import create
from tests.kit.sidecar import Sidecar
from tests.kit.vendor import Vendor


def test_a_call_goes_on_when_nobody_holds_it_any_more(vendor: Vendor, name: str) -> None:
    vendor.hold("CreateVolume")
    with Sidecar(vendor.socket) as sidecar:
        call = sidecar.start("CreateVolume", create(name))
        seen = vendor.wait_for_call("CreateVolume")
        del call
        assert sidecar.call("GetCapacity").ok  # a cancel would have come before it, on the same connection
        assert not seen.cancelled
