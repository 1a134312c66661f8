"""Go's gRPC on the bridge, with more calls at once than all sidecars make together.

They make about 265: docs/csi-contract.md#calls-and-sizes-that-a-sidecar-may-send.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from common.status import Code
from tests.kit.forms import in_each_form
from tests.kit.peers import csi_client
from tests.kit.peers.tunnel import Tunnel
from tests.kit.processes import Supervisor, listens_on
from tests.kit.waiting import wait_for

_CALLERS = 300
_DRIVER = "load.csi-bridge.io"


@pytest.fixture
def tunnel(
    short_dir: Path, supervisor: Supervisor, peer: Callable[[str], Path], tunnel_to: Callable[[Path, str], Tunnel]
) -> Tunnel:
    """A bridge in front of a driver that takes 6 s for every call."""
    vendor = short_dir / "vendor.sock"
    command = [peer("loadgen"), "serve", f"--endpoint=unix://{vendor}", f"--name={_DRIVER}", "--delay=6s"]
    supervisor.start("loadgen-serve", command, ready=lambda: listens_on(vendor))
    return tunnel_to(vendor, _DRIVER)


@in_each_form
@pytest.mark.slow
def test_three_hundred_callers_at_once_are_all_answered_and_identity_does_not_wait_for_them(
    tunnel: Tunnel, peer: Callable[[str], Path]
) -> None:
    flags = [f"--callers={_CALLERS}", f"--count={_CALLERS}", "--warm-up=1ms", "--timeout=30s"]
    run = [str(peer("loadgen")), "run", *flags, f"--socket=bridge=unix://{tunnel.socket}"]
    with subprocess.Popen(run, stdout=subprocess.PIPE) as process:
        wait_for(
            lambda: _identity_is_answered_while_all_wait(tunnel),
            what="answer to the Identity calls before the first of the others ended",
            instead=tunnel.calls_in_flight,
        )
        report = json.loads(process.communicate(timeout=60)[0])

    target = report["targets"]["bridge"]
    assert target["errors"] == {}
    assert target["calls"] == 2 * target["operations"]["count"] == 2 * _CALLERS
    wait_for(
        lambda: set(tunnel.calls_in_flight().values()) == {0},
        what="end of every call at every hop",
        instead=tunnel.calls_in_flight,
    )


def _identity_is_answered_while_all_wait(tunnel: Tunnel) -> bool:
    if set(tunnel.calls_in_flight().values()) != {_CALLERS}:
        return False
    outcomes = [csi_client.probe(tunnel.socket), *csi_client.identify(tunnel.socket)]
    refusals = {outcome.refusal for outcome in outcomes if not outcome.ok}
    assert {code for code, _ in refusals} <= {Code.DEADLINE_EXCEEDED}, refusals
    return not refusals and set(tunnel.calls_in_flight().values()) == {_CALLERS}
