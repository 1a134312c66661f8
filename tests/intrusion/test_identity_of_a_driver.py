"""A hostile node with a good certificate reports another node's driver with a false name or no capabilities."""

from pathlib import Path

import pytest

from tests.kit.bridge import Proxy
from tests.kit.operator import by_hand
from tests.kit.spoken_node import CAPABILITIES, Site, report
from tests.kit.waiting import wait_for

DRIVER = "vendor.test"


def said(proxy: Proxy) -> tuple[str, list[int]]:
    """What a proxy driver tells sidecars after a restart: the driver's name and its controller's capabilities."""
    proxy.stop()
    proxy.start()
    sidecar = proxy.sidecar()
    told = sidecar.call("ControllerGetCapabilities").answer.capabilities
    return sidecar.call("GetPluginInfo").answer.name, [each.rpc.type for each in told]


@pytest.mark.parametrize("name", ["evil.test", DRIVER])
def test_one_report_does_not_change_what_sidecars_are_told_of_a_driver(
    short_dir: Path, tmp_path: Path, name: str
) -> None:
    with Site(short_dir, tmp_path) as site:
        honest = site.told(site.node("n2"), report(DRIVER, "n2"))
        proxy = site.bridge.start_proxy(DRIVER, "--placement=local")
        sidecar = proxy.sidecar()
        wait_for(lambda: sidecar.call("Probe").answer.ready.value, what="proxy driver that knows its driver")
        before = said(proxy)
        assert (before[0], len(before[1])) == (DRIVER, len(CAPABILITIES))
        liar = site.told(site.node("a-liar"), report(DRIVER, "a-liar", name=name, capabilities=()))
        assert said(proxy) == before
        site.leave(liar)
        by_hand("forget", "a-liar", f"--hub=unix://{site.hub.uds}")
        assert said(proxy) == before
        assert site.state(honest)["refused"] == {}
