"""Identity and capabilities: from a cache, within milliseconds, whatever the link does; and what they say never flaps.

Sidecars ask once at their start, exit if they get no answer, and decide by it for as long as they run:
docs/csi-contract.md#sidecars-read-capabilities-once.
"""

import pytest

from common.csi import csi_pb2
from common.csi.reports import REPORTED_METHODS
from common.status import Code
from tests.integration.conftest import Routed
from tests.kit.answers import answer_of
from tests.kit.bridge import Bridge, Proxy
from tests.kit.sidecar import Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

CACHED = [path.rpartition("/")[2] for path in REPORTED_METHODS if not path.endswith("NodeGetInfo")]

NOTHING_KNOWN = (
    Code.UNAVAILABLE,
    "nothing is known of driver vendor.test yet: no edge node has reported it since this proxy driver was installed",
)


def answers_like(sidecar: Sidecar, vendor: Vendor) -> bool:
    """Whether a sidecar is told of the driver what the driver says of itself."""
    paths = {path.rpartition("/")[2]: path for path in REPORTED_METHODS}
    return all(sidecar.call(name).answer == answer_of(vendor.identity, paths[name], b"") for name in CACHED)


def is_ready(sidecar: Sidecar) -> bool:
    outcome = sidecar.call("Probe")
    assert outcome.ok
    return bool(outcome.answer.ready.value)


def answers_as_unknown(sidecar: Sidecar) -> bool:
    """Whether a sidecar is told what is told of a driver that nobody has heard of."""
    info = csi_pb2.GetPluginInfoResponse(name="vendor.test", vendor_version="unknown")
    others = [name for name in CACHED if name != "GetPluginInfo"]
    return (
        not is_ready(sidecar)
        and sidecar.call("GetPluginInfo").answer == info
        and all(sidecar.call(name).refusal == NOTHING_KNOWN for name in others)
    )


def test_the_vendors_identity_is_told_through_every_outage_and_restart_but_not_by_a_new_proxy_without_a_hub(
    routed: Routed,
) -> None:
    assert answers_like(routed.sidecar, routed.vendor)
    routed.agent.kill()
    assert answers_like(routed.sidecar, routed.vendor)
    routed.bridge.hub.kill()
    routed.vendor.stop()
    assert answers_like(routed.sidecar, routed.vendor)
    wait_for(routed.proxy.cache.exists, what="cache")  # it is written behind the answers
    routed.proxy.kill()
    routed.proxy.start()
    restarted = routed.proxy.sidecar()
    assert answers_like(restarted, routed.vendor)
    assert is_ready(restarted)
    assert answers_as_unknown(routed.bridge.start_proxy("vendor.test").sidecar())


def test_a_driver_that_nobody_has_heard_of_has_a_name_and_is_not_ready_until_it_is_heard_of(
    bridge: Bridge, vendor: Vendor
) -> None:
    bridge.start_hub()
    sidecar = bridge.start_proxy("vendor.test").sidecar()
    assert answers_as_unknown(sidecar)
    bridge.start_agent("n1", vendor.socket)
    wait_for(lambda: is_ready(sidecar), what="Probe that is ready")
    assert answers_like(sidecar, vendor)


def test_a_new_proxy_is_told_by_the_hub_of_a_driver_whose_node_is_away(routed: Routed) -> None:
    routed.agent.kill()
    routed.bridge.hub.kill()  # and the hub knows it from its disk
    routed.bridge.hub.start()
    sidecar = routed.bridge.start_proxy("vendor.test").sidecar()
    wait_for(lambda: is_ready(sidecar), what="Probe that is ready")
    assert answers_like(sidecar, routed.vendor)


def test_a_change_is_logged_and_stored_and_published_at_the_proxys_next_start(routed: Routed) -> None:
    old = routed.sidecar.call("ControllerGetCapabilities").answer
    routed.vendor.identity.capabilities = ["CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"]
    routed.vendor.restart()
    routed.proxy.wait_logged("has changed its Identity or capabilities", timeout_s=20.0)
    assert routed.sidecar.call("ControllerGetCapabilities").answer == old
    with routed.proxy.sidecar() as later:
        assert later.call("ControllerGetCapabilities").answer == old
    routed.bridge.hub.kill()
    routed.proxy.kill()
    routed.proxy.start()
    assert answers_like(routed.proxy.sidecar(), routed.vendor)


def named(size: int) -> csi_pb2.GetPluginInfoResponse:
    """What a vendor says of itself, at some length."""
    return csi_pb2.GetPluginInfoResponse(name="vendor.test", manifest={"a": "x" * size})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (named(5_000_000), "larger than the limit"),
        (named(3_500_000), "the hub gets only its name"),
        (b"\xff\xff\xff this is no protobuf", "GetPluginInfo does not parse; look at the driver's log"),
    ],
    ids=["too large for the agent", "too large for the hub", "garbage"],
)
def test_a_vendor_that_introduces_itself_too_large_or_with_garbage_is_told_of_and_found_when_it_speaks_clearly(
    bridge: Bridge, vendor: Vendor, answer: csi_pb2.GetPluginInfoResponse | bytes, said: str
) -> None:
    bridge.start_hub()
    vendor.on("GetPluginInfo", lambda _: answer)
    agent = bridge.start_agent("n1", vendor.socket)
    agent.wait_logged(said)
    agent.wait_connected()
    vendor.as_usual("GetPluginInfo")
    vendor.restart()
    bridge.wait_routed(bridge.start_proxy("vendor.test").sidecar())


def test_a_vendor_that_changes_its_name_is_found_under_the_new_one(routed: Routed) -> None:
    routed.vendor.identity.name = "renamed.test"
    routed.vendor.restart()
    renamed: Proxy = routed.bridge.start_proxy("renamed.test")
    sidecar = renamed.sidecar()
    routed.bridge.wait_routed(sidecar)
    assert sidecar.call("GetPluginInfo").answer.name == "renamed.test"
    assert routed.sidecar.call("GetPluginInfo").answer.name == "vendor.test"
    assert routed.sidecar.call("GetCapacity").refusal[0] is Code.UNAVAILABLE
    assert routed.agent.logged("was vendor.test and now calls itself renamed.test")
