"""What an operator does by hand, as processes: `csi-bridge status` and `csi-bridge call`."""

import json

from tests.integration.conftest import Routed
from tests.kit.answers import volume
from tests.kit.bridge import Bridge
from tests.kit.operator import by_hand
from tests.kit.vendor import Vendor

MIB = 1 << 20


def test_the_status_shows_nodes_with_their_drivers_and_proxy_drivers(routed: Routed) -> None:
    hub = f"--hub=unix://{routed.bridge.hub.uds}"
    shown = by_hand("status", hub)
    assert (shown.returncode, shown.stderr) == (0, "")
    head, _, nodes, n1, _, proxies, proxy, _, insecure = shown.stdout.splitlines()
    assert "1 of 1 nodes connected" in head
    assert nodes.split() == ["NODE", "STATE", "SINCE", "DRIVERS"]
    assert (n1.split()[:2], n1.split()[-1]) == (["n1", "connected"], "vendor.test")
    assert proxies.split()[:2] == ["PROXY", "DRIVER"]
    assert proxy.startswith("vendor.test")
    assert insecure.startswith("PROBLEM: --insecure: ")

    routed.agent.kill()
    routed.bridge.hub.wait_logged("edge n1 is gone")
    state = json.loads(by_hand("status", hub, "-o", "json").stdout)
    ((n1,), (proxy,)) = state["nodes"], state["drivers"]
    assert (n1["node"], n1["connected"], n1["drivers"]) == ("n1", False, ["vendor.test"])
    assert (proxy["driver"], state["known"], state["connected"]) == ("vendor.test", 1, 0)
    assert (state["lost"], state["trouble"]) == ([], "")


def test_an_answer_larger_than_usual_is_taken_by_an_operator_who_says_so(bridge: Bridge, vendor: Vendor) -> None:
    hub = bridge.start_hub("--max-message=8MiB")
    bridge.start_agent("n1", vendor.socket, flags=["--max-message=8MiB"])
    bridge.wait_routed(bridge.start_proxy("vendor.test").sidecar())
    large = volume("v")
    large.volume.volume_context["x"] = "x" * 5 * MIB
    vendor.on("CreateVolume", lambda _: large.SerializeToString())
    call = ("call", "CreateVolume", '{"name": "v"}', "--driver=vendor.test", f"--hub=unix://{hub.uds}")
    usual = by_hand(*call)
    assert usual.returncode == 1
    assert "larger than the limit of 4194304 bytes" in usual.stderr
    told = by_hand(*call, "--max-message=8MiB")
    assert (told.returncode, told.stderr) == (0, "")
    assert len(told.stdout) > 5 * MIB
