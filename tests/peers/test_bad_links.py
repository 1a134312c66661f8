"""The bridge on a bad link between two networks. docs/links.md has more lines, and figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.needs import capability, program, skip_without, tun
from tests.kit.peers.sanity import SanityReport
from tests.kit.processes import Supervisor, listens_on
from tests.kit.waiting import let_pass
from tests.lab import trial
from tests.lab.rows import Row
from tests.lab.site import PEERS
from tests.lab.wire import CLOUD, Wire

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


def test_under_cuts_and_stalls_every_volume_lives_and_ends_and_no_sidecar_is_told_a_false_end(
    peer: Callable[[str], Path],
) -> None:
    for name in PEERS:
        peer(name)
    line = {"delay": "20ms", "loss": 0.02}
    row = Row(title="", wire=line, weather="heal 7 cut 4 rebind 25 stall 2", journeys=4, every_s=4.0, idle_s=0.0)

    found = trial.run(row, "bridge")

    assert (found.unsettled, found.false_final, found.lost, found.doubled) == (0, 0, 0, 0), found
    assert len(found.published_s) == row.journeys
