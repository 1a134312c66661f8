"""csi-sanity sees no difference between a driver and the bridge in front of it on a bad link between two networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.needs import capability, program, skip_without, tun
from tests.kit.processes import listens_on
from tests.kit.waiting import let_pass
from tests.lab.wire import CLOUD, Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.peers.sanity import SanityReport
    from tests.kit.processes import Supervisor

pytestmark = [
    skip_without(capability(21, "CAP_SYS_ADMIN"), program("tc"), program("iptables"), tun()),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

NAME = "mock.csi-bridge.io"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"delay": "50ms", "loss": 0.01}, id="LTE"),
        pytest.param({"rate": "64kbit"}, id="64 kbit/s"),
        pytest.param({"delay": "10ms", "nat": 8}, id="a NAT"),
        pytest.param({"delay": "300ms"}, id="satellite", marks=pytest.mark.endurance),
    ],
)
def test_on_a_bad_link_without_cuts_nothing_comes_out_otherwise(
    short_dir: Path,
    tmp_path: Path,
    supervisor: Supervisor,
    peer: Callable[[str], Path],
    sanity: Callable[..., SanityReport],
    line: dict[str, Any],
) -> None:
    authority, vendor = Authority(tmp_path), short_dir / "vendor.sock"
    command = [peer("mockdriver"), f"--endpoint=unix://{vendor}", f"--name={NAME}", "--topology=true", "--attach=true"]
    supervisor.start("mockdriver", command, ready=lambda: listens_on(vendor))
    direct = sanity(endpoint=vendor)
    with Wire(**line) as wire, Bridge(short_dir, tmp_path) as bridge:
        with wire.at("cloud"):
            hub = bridge.start_hub(*authority.hub(CLOUD).flags, host=CLOUD)
        with wire.at("edge"):
            flags = (f"--hub=wss://{hub.address}", *authority.edge("n1").flags)
            agent = bridge.start_agent("n1", vendor, flags=flags)
        proxy = bridge.start_proxy(NAME)
        bridge.wait_routed(proxy.sidecar())
        since = agent.status()["since"]
        if "nat" in line:
            let_pass(line["nat"] + 2.0)  # the keepalive passes meanwhile
        bridged = sanity(endpoint=vendor, controller_endpoint=proxy.socket, timeout_s=500.0)
        assert direct.differences(bridged) == []
        assert agent.status()["since"] == since
        assert wire.command("stats")["packets_up"] > 100
